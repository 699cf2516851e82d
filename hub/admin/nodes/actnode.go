// Package nodes shows nodes and sites: state, history, charts, drains and their preview, boards,
// and devices that join.
package nodes

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

// again is how often a change is retried on the newest version when others change the object at the
// same time.
const again = 5

// Actions are what users can do to nodes.
func Actions() []*frame.Action {
	all := []*frame.Action{
		{Name: "cordon", Quick: true, Label: "Cordon", Done: "is cordoned",
			Means: "No new pods are placed there. Running pods stay.",
			Idle:  idleNode(func(n *corev1.Node) bool { return n.Spec.Unschedulable }, "is cordoned already"),
			Do:    cordon(true)},
		{Name: "uncordon", Quick: true, Label: "Uncordon", Done: "is uncordoned",
			Means: "Pods may be placed there again.",
			Idle:  idleNode(func(n *corev1.Node) bool { return !n.Spec.Unschedulable }, "is not cordoned"),
			Do:    cordon(false)},
		{Name: "drain", Label: "Drain", Done: "is drained", Destroy: true,
			Means: "No new pods are placed there, and running pods are told to leave as the disruption budgets allow; " +
				"their owners make new pods elsewhere. Pods of daemon sets stay.",
			Fields: drainFields, Parse: parseDrain, Notes: drainNotes, Foresee: foreseeDrain, All: drain},
		{Name: "stop-drain", Aside: true, Label: "Stop the drain", Save: "Stop the drain",
			Done:  "is no longer being drained",
			Means: "No more pods are told to leave. Pods that were told still leave, and the node stays cordoned.",
			Idle:  notDraining, Do: stopDrain},
		{Name: "label", Label: "Label", Done: "is labelled", Means: "Sets or removes a label.",
			Fields: labelFields, Parse: parseLabel, Do: label},
		{Name: "taint", Label: "Taint", Done: "is tainted",
			Means: "Sets or removes a taint. Pods that do not tolerate it are kept away.", Fields: taintFields,
			Parse: parseTaint, Notes: taintNotes, Do: taint},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true,
			Means: "The hub forgets the node and its pods. The device stops what it ran; it comes back only when it is " +
				"added again with a new token.",
			Notes: deleteNotes, Foresee: foreseeDelete, Do: frame.Remove},
	}
	for _, a := range all {
		a.Kind, a.One, a.Verb, a.Resource = state.Nodes, "node", "patch", "nodes"
		a.List, a.Listed = "/nodes", "Nodes"
	}
	all[len(all)-1].Verb = "delete"
	return all
}

func idleNode(is func(*corev1.Node) bool, why string) func(state.Object) string {
	return func(o state.Object) string {
		if n, ok := o.(*corev1.Node); ok && is(n) {
			return why
		}
		return ""
	}
}

func cordon(is bool) func(context.Context, *frame.Worker, state.Object) (frame.Undo, error) {
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		n := o.(*corev1.Node)
		if n.Spec.Unschedulable == is {
			return nil, nil
		}
		set := func(ctx context.Context, w *frame.Worker, is bool) error {
			if !is {
				return w.Patch(ctx, n, uncordonPatch())
			}
			return w.Patch(ctx, n, frame.JSON{"spec": frame.JSON{"unschedulable": true}})
		}
		back := uncordonAgain(n, n.Annotations[state.DrainAnnotation])
		if !is {
			back = func(ctx context.Context, w *frame.Worker) error { return set(ctx, w, true) }
		}
		return back, set(ctx, w, is)
	}
}

// uncordonAgain reverts a cordon, unless somebody has started another drain since.
func uncordonAgain(n *corev1.Node, order string) frame.Undo {
	return func(ctx context.Context, w *frame.Worker) error {
		o, err := w.Find(state.Nodes, frame.ItemOf(n))
		if err != nil {
			return err
		}
		if now := o.GetAnnotations()[state.DrainAnnotation]; now != "" && now != order {
			return frame.UserError("somebody has started another drain: stop it first")
		}
		return w.Patch(ctx, o, uncordonPatch())
	}
}

func deleteNotes(s state.Snapshot, with []state.Object) (notes []string) {
	pods, ready := 0, 0
	for _, o := range with {
		for range s.PodsOn(o.GetName()) {
			pods++
		}
		if state.ReadyOf(o.(*corev1.Node)) == corev1.ConditionTrue {
			ready++
		}
	}
	if pods > 0 {
		notes = append(notes, fmt.Sprintf("%s placed there will be gone; their owners make new pods elsewhere.",
			format.Plural(pods, "pod")))
	}
	if ready > 0 {
		notes = append(notes, fmt.Sprintf("%s ready now. Drain first to let pods leave gracefully.",
			format.IsAre(ready, "node")))
	}
	return notes
}

// ---- labels

type labelChange struct{ key, value, how string }

func labelFields(state.Snapshot, []state.Object) []frame.Field {
	return []frame.Field{
		{Name: "key", Label: "Label", Hint: "such as room, or example.com/room", Type: "text", Required: true},
		{Name: "value", Label: "Value", Type: "text"},
		{Name: "how", Label: "What to do", Type: "select",
			Options: frame.Options("set", [2]string{"set", "Set it"}, [2]string{"remove", "Remove it"})},
	}
}

func parseLabel(form url.Values) (any, error) {
	l := labelChange{strings.TrimSpace(form.Get("key")), strings.TrimSpace(form.Get("value")), form.Get("how")}
	if errs := validation.IsQualifiedName(l.key); len(errs) > 0 {
		return nil, fmt.Errorf("%q cannot be the name of a label: %s", l.key, errs[0])
	}
	if errs := validation.IsValidLabelValue(l.value); len(errs) > 0 {
		return nil, fmt.Errorf("%q cannot be the value of a label: %s", l.value, errs[0])
	}
	return l, nil
}

func label(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	l := w.Given.(labelChange)
	set := func(ctx context.Context, w *frame.Worker, value any) error {
		return w.Patch(ctx, o, frame.JSON{"metadata": frame.JSON{"labels": frame.JSON{l.key: value}}})
	}
	was, had := o.GetLabels()[l.key]
	var before, after any
	if had {
		before = was
	}
	if l.how != "remove" {
		after = l.value
	}
	if before == after {
		return nil, nil
	}
	return func(ctx context.Context, w *frame.Worker) error {
		o, err := w.Find(state.KindOf(o), frame.ItemOf(o))
		if err != nil {
			return err
		}
		var now any
		if v, has := o.GetLabels()[l.key]; has {
			now = v
		}
		switch now {
		case before:
			return nil
		case after:
			return set(ctx, w, before)
		}
		return frame.ErrChangedSince
	}, set(ctx, w, after)
}

// ---- taints

type taintChange struct {
	corev1.Taint
	remove bool
}

func taintFields(state.Snapshot, []state.Object) []frame.Field {
	return []frame.Field{
		{Name: "key", Label: "Taint", Hint: "such as maintenance, or example.com/broken-camera", Type: "text",
			Required: true},
		{Name: "value", Label: "Value", Type: "text"},
		{Name: "effect", Label: "Effect", Type: "select",
			Options: frame.Options("NoSchedule", [2]string{"NoSchedule", "NoSchedule: no new pods"},
				[2]string{"PreferNoSchedule", "PreferNoSchedule: new pods only if there is no better place"},
				[2]string{"NoExecute", "NoExecute: running pods leave, too"})},
		{Name: "how", Label: "What to do", Type: "select",
			Options: frame.Options("set", [2]string{"set", "Set it"}, [2]string{"remove", "Remove it"})},
	}
}

func parseTaint(form url.Values) (any, error) {
	t := taintChange{corev1.Taint{Key: strings.TrimSpace(form.Get("key")), Value: strings.TrimSpace(form.Get("value")),
		Effect: corev1.TaintEffect(form.Get("effect"))}, form.Get("how") == "remove"}
	if errs := validation.IsQualifiedName(t.Key); len(errs) > 0 {
		return nil, fmt.Errorf("%q cannot be the name of a taint: %s", t.Key, errs[0])
	}
	if errs := validation.IsValidLabelValue(t.Value); len(errs) > 0 {
		return nil, fmt.Errorf("%q cannot be the value of a taint: %s", t.Value, errs[0])
	}
	return t, nil
}

func taintNotes(s state.Snapshot, with []state.Object) []string {
	pods := 0
	for _, o := range with {
		for range s.PodsOn(o.GetName()) {
			pods++
		}
	}
	if pods == 0 {
		return nil
	}
	return []string{fmt.Sprintf("With the effect NoExecute, pods that do not tolerate the taint leave. Now %s there.",
		format.IsAre(pods, "pod"))}
}

func taint(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	t := w.Given.(taintChange)
	same := func(x corev1.Taint) bool { return x.MatchTaint(&t.Taint) }
	n := o.(*corev1.Node)
	at := slices.IndexFunc(n.Spec.Taints, same)
	if t.remove && at < 0 {
		return nil, nil
	}
	replace := func(want *corev1.Taint) func(*corev1.Node) []corev1.Taint {
		return func(n *corev1.Node) []corev1.Taint {
			taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), same)
			if want != nil {
				taints = append(taints, *want)
			}
			return taints
		}
	}
	var before, after *corev1.Taint
	if at >= 0 {
		before = &n.Spec.Taints[at]
	}
	if !t.remove {
		after = &t.Taint
	}
	back := func(ctx context.Context, w *frame.Worker) error {
		o, err := w.Find(state.Nodes, frame.ItemOf(n))
		if err != nil {
			return err
		}
		var now *corev1.Taint
		if at := slices.IndexFunc(o.(*corev1.Node).Spec.Taints, same); at >= 0 {
			now = &o.(*corev1.Node).Spec.Taints[at]
		}
		if (now == nil) != (after == nil) || now != nil && now.Value != after.Value {
			return frame.ErrChangedSince
		}
		return setTaints(w, ctx, n, replace(before))
	}
	return back, setTaints(w, ctx, n, replace(after))
}

// setTaints changes a node's taints, and keeps the changes that other users make at the same time.
func setTaints(w *frame.Worker, ctx context.Context, n *corev1.Node, change func(*corev1.Node) []corev1.Taint) error {
	for try := 0; ; try++ {
		o, err := w.Find(state.Nodes, frame.ItemOf(n))
		if err != nil {
			return err
		}
		err = w.Patch(ctx, o, frame.JSON{"metadata": frame.JSON{"resourceVersion": o.GetResourceVersion()},
			"spec": frame.JSON{"taints": change(o.(*corev1.Node))}})
		if !frame.RefusedWith(err, http.StatusConflict) || try == again {
			return err
		}
	}
}
