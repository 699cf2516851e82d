package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

// drainPoll is how often a job checks the drains that it started.
const drainPoll = 500 * time.Millisecond

func drainFields(s state.Snapshot, with []state.Object) (fields []frame.Field) {
	if c := countDrain(s, with); c.bare > 0 {
		fields = append(fields, frame.Field{Name: "bare", Type: "checkbox",
			Label: fmt.Sprintf("Delete %s without an owner", format.Plural(c.bare, "pod")),
			Hint:  "Otherwise these pods stay, and the drain of their node fails."})
	}
	return append(fields, frame.Field{Name: "until", Label: "Give up after", Type: "select",
		Options: frame.Options("15m", [2]string{"5m", "5 minutes"}, [2]string{"15m", "15 minutes"},
			[2]string{"1h", "1 hour"}, [2]string{"6h", "6 hours"})})
}

func parseDrain(form url.Values) (any, error) {
	text := cmp.Or(form.Get("until"), "15m")
	until, err := time.ParseDuration(text)
	if err != nil || until <= 0 || until > state.MaxDrainTimeout {
		return nil, fmt.Errorf("%q is not a duration up to 24h; use for example 15m", form.Get("until"))
	}
	return state.DrainOrder{Timeout: text, Force: form.Get("bare") != "", DeleteEmptyDirData: true}, nil
}

type drainCount struct{ leave, daemon, bare, data, silent int }

func countDrain(s state.Snapshot, with []state.Object) (c drainCount) {
	for _, o := range with {
		n := o.(*corev1.Node)
		before := c.leave
		for p := range s.PodsOn(n.Name) {
			switch what(p) {
			case "daemon":
				c.daemon++
				continue
			case "finished":
				continue
			case "bare":
				c.bare++
			}
			c.leave++
			if state.HasData(p) {
				c.data++
			}
		}
		if c.leave > before && state.ReadyOf(n) != corev1.ConditionTrue {
			c.silent++
		}
	}
	return c
}

// what says what a drain does to a pod. Daemon pods and finished pods stay; no owner replaces pods
// without one.
func what(p *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(p)
	switch {
	case state.Terminated(p):
		return "finished"
	case owner == nil:
		return "bare"
	case owner.Kind == "DaemonSet":
		return "daemon"
	}
	return ""
}

func drainNotes(s state.Snapshot, with []state.Object) (notes []string) {
	c := countDrain(s, with)
	if c.leave == 0 {
		notes = append(notes, "No pod has to leave.")
	} else {
		notes = append(notes, fmt.Sprintf("%s to leave.", format.HasHave(c.leave, "pod")))
	}
	if c.daemon > 0 {
		notes = append(notes, fmt.Sprintf("Pods of daemon sets stay: %d.", c.daemon))
	}
	if c.data > 0 {
		notes = append(notes, fmt.Sprintf("%s data in an emptyDir, which is lost.", format.HasHave(c.data, "pod")))
	}
	if c.silent > 0 {
		notes = append(notes, fmt.Sprintf(
			"%s not ready: pods there stay Terminating until the device comes back and confirms that it has stopped them.",
			format.IsAre(c.silent, "node")))
	}
	return notes
}

// drain orders the drain of its nodes and watches them. The order is an annotation of the node and
// outlives the job. All nodes are cordoned first, so that no pod moves to a node that is drained
// next.
func drain(ctx context.Context, j *frame.Job) {
	order := j.Given.(state.DrainOrder)
	j.Each(ctx, len(j.Items), func(i int) {
		ctx, end := frame.WithGrace(ctx)
		defer end()
		o, err := j.Find(state.Nodes, j.Items[i].Item)
		var back frame.Undo
		if err == nil && !o.(*corev1.Node).Spec.Unschedulable {
			back = uncordonAgain(o.(*corev1.Node), order.String())
			err = j.Patch(ctx, o, frame.JSON{"spec": frame.JSON{"unschedulable": true}})
		}
		if err != nil {
			j.Finish(i, nil, err)
			return
		}
		j.Set(i, func(p *frame.Progress) { p.State, p.Text, p.Undo = "doing", "cordoned", back })
	})
	var mu sync.Mutex
	open := map[int]bool{}
	j.Each(ctx, len(j.Items), func(i int) {
		if j.Items[i].State != "doing" {
			return
		}
		ctx, end := frame.WithGrace(ctx)
		defer end()
		o, err := j.Find(state.Nodes, j.Items[i].Item)
		if err == nil {
			err = j.Patch(ctx, o, frame.
				JSON{"metadata": frame.JSON{"annotations": frame.JSON{state.DrainAnnotation: order.String()}},
				"spec": frame.JSON{"unschedulable": true}})
		}
		if err != nil {
			j.Finish(i, j.Items[i].Undo, err)
			return
		}
		mu.Lock()
		open[i] = true
		mu.Unlock()
	})
	for i := range j.Items {
		if ctx.Err() != nil && j.Items[i].State == "doing" && !open[i] {
			j.Set(i, func(p *frame.Progress) {
				p.State, p.Text = "failed", "stopped before it was drained; it stays cordoned"
			})
		}
	}
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		for i := range open {
			if look(j, i) {
				delete(open, i)
			}
		}
		if len(open) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			left := slices.Collect(maps.Keys(open))
			j.Each(context.WithoutCancel(ctx), len(left), func(i int) { halt(j, ctx, left[i]) })
			return
		}
	}
}

// halt withdraws the order if a user has stopped the job. If the hub ends, the order stays.
func halt(j *frame.Job, ctx context.Context, i int) {
	if !j.IsStopped() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	o, err := j.Find(state.Nodes, j.Items[i].Item)
	if err == nil {
		_, err = stopDrain(ctx, &j.Worker, o)
	}
	j.Set(i, func(p *frame.Progress) {
		p.State, p.Text = "failed", p.Text+": stopped; it stays cordoned"
		if err != nil {
			p.Text += ", and the order could not be taken back: " + frame.ErrorText(err)
		}
	})
}

// look shows how far a node's drain is, and tells whether it has ended.
func look(j *frame.Job, i int) (over bool) {
	o, err := j.Find(state.Nodes, j.Items[i].Item)
	if err != nil {
		j.Finish(i, nil, err)
		return true
	}
	n := o.(*corev1.Node)
	_, ordered := n.Annotations[state.DrainAnnotation]
	st := state.DrainStatusOf(n)
	switch {
	case st == nil && !ordered:
		j.Finish(i, nil, errors.New("it was uncordoned before all pods had left"))
		return true
	case st == nil || ordered && !st.Going():
		return false // the hub has not started it yet
	}
	parts := drainParts(j.Fleet.Snapshot(), n, st)
	text := drainText(st)
	over = !st.Going()
	j.Update(i, func(p *frame.Progress) bool {
		changed := p.Text != text || !slices.Equal(p.Parts, parts)
		p.Text, p.Parts, p.Share = text, parts, float64(st.Pods-st.Left)/float64(max(st.Pods, 1))
		switch {
		case over && st.State == state.Drained:
			p.State = "done"
		case over:
			p.State, p.Text = "failed", text+": "+st.Why+"; it stays cordoned"
		}
		return changed || over
	})
	return over
}

func drainText(st *state.DrainStatus) string {
	if st.Pods == 0 {
		return "no pod had to leave"
	}
	return fmt.Sprintf("%d of %s left", st.Pods-st.Left, format.HasHave(st.Pods, "pod"))
}

// drainParts returns the pods that are still on a node: pods that cannot leave, with the reason, and
// terminating pods.
func drainParts(s state.Snapshot, n *corev1.Node, st *state.DrainStatus) (parts []frame.Part) {
	for _, h := range st.Held {
		x := frame.Part{Name: strings.TrimPrefix(h.Pod, metav1.NamespaceDefault+"/"),
			Pill: frame.Pill{Kind: "warn", Text: "Held"}, Text: h.Why}
		if h.Stays {
			x.Pill = frame.Pill{Kind: "bad", Text: "Stays"}
		}
		parts = append(parts, x)
	}
	for p := range s.PodsOn(n.Name) {
		if len(parts) < state.MaxDrainHeld && p.DeletionTimestamp != nil && what(p) != "daemon" &&
			what(p) != "finished" {
			parts = append(parts, frame.Part{Name: state.Display(p), Pill: frame.Pill{Kind: "warn", Text: "Leaving"}})
		}
	}
	return parts
}
