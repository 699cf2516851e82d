package workloads

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

const (
	restartedAt = "kubectl.kubernetes.io/restartedAt" // the annotation of `kubectl rollout restart`
	maxReplicas = 100_000
)

// PodActions are what users can do to pods.
func PodActions() []*frame.Action {
	all := []*frame.Action{
		{Name: "evict", Label: "Evict", Done: "is told to leave", Destroy: true,
			Means: "Tells the pod to leave, unless a disruption budget needs it. Its owner makes a new pod.",
			Notes: podNotes, Idle: idlePod, Do: func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo,
				error) {
				return nil, evict(w, ctx, o.(*corev1.Pod))
			}},
		{Name: "delete", Label: "Delete", Done: "is told to leave", Destroy: true,
			Means: "Tells the pod to leave, even against disruption budgets. Its owner makes a new pod.",
			Notes: podNotes, Idle: idlePod, Do: frame.Remove},
	}
	for _, a := range all {
		a.Kind, a.One, a.Verb, a.Resource = state.Pods, "pod", "delete", "pods"
		a.List, a.Listed = "/pods", "Pods"
	}
	all[0].Verb, all[0].Resource = "create", "pods/eviction"
	return all
}

func idlePod(o state.Object) string {
	if o.GetDeletionTimestamp() != nil {
		return "is leaving already"
	}
	return ""
}

func podNotes(s state.Snapshot, with []state.Object) (notes []string) {
	bare, silent := 0, 0
	for _, o := range with {
		p := o.(*corev1.Pod)
		if metav1.GetControllerOfNoCopy(p) == nil {
			bare++
		}
		if n := s.Node(p.Spec.NodeName); n != nil && state.ReadyOf(n) != corev1.ConditionTrue {
			silent++
		}
	}
	if bare > 0 {
		notes = append(notes, fmt.Sprintf("%s no owner: not made again.", format.HasHave(bare, "pod")))
	}
	if silent > 0 {
		notes = append(notes, fmt.Sprintf(
			"%s on a node that is not ready, and stays Terminating until the device confirms that it has stopped.",
			format.IsAre(silent, "pod")))
	}
	return notes
}

// Actions are what users can do to workloads that keep pods running.
func Actions(now func() time.Time) []*frame.Action {
	restart := restarter(now)
	deployments := []*frame.Action{
		{Name: "restart", Label: "Restart", Done: "restarts",
			Means: "Replaces every pod by a new one of the same version, a few at a time.", Do: restart},
		{Name: "scale", Label: "Scale", Done: "is scaled", Means: "Sets how many pods there should be.",
			Fields: scaleFields, Parse: parseScale, Do: scale},
		{Name: "undo", Label: "Roll back", Done: "is rolled back",
			Means: "Goes back to an earlier version of the pods, a few at a time.", Fields: revisionFields,
			Parse: parseRevision, Do: rollBack},
		{Name: "pause", Quick: true, Label: "Pause", Done: "is paused",
			Means: "Changes of the template are not rolled out until it is resumed.", Idle: idlePaused(true),
			Do: pause(true)},
		{Name: "resume", Quick: true, Label: "Resume", Done: "is resumed",
			Means: "Changes of the template are rolled out again.", Idle: idlePaused(false), Do: pause(false)},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true,
			Means: "Deletes the deployment with its pods.", Notes: workloadNotes, Do: frame.Remove},
	}
	daemonSets := []*frame.Action{
		{Name: "restart", Label: "Restart", Done: "restarts",
			Means: "Replaces every pod by a new one of the same version, node by node.", Do: restart},
		{Name: "undo", Label: "Roll back", Done: "is rolled back",
			Means: "Goes back to an earlier version of the pods, node by node.", Fields: revisionFields,
			Parse: parseRevision, Do: rollBack},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true,
			Means: "Deletes the daemon set with its pods.", Notes: workloadNotes, Do: frame.Remove},
	}
	statefulSets := []*frame.Action{
		{Name: "restart", Label: "Restart", Done: "restarts",
			Means: "Replaces every pod by a new one of the same version, the last first. Their claims stay.",
			Do:    restart},
		{Name: "scale", Label: "Scale", Done: "is scaled",
			Means:  "Sets how many pods there should be: the last go first, and their claims as the stateful set says.",
			Fields: scaleFields, Parse: parseScale, Do: scale},
		{Name: "undo", Label: "Roll back", Done: "is rolled back",
			Means: "Goes back to an earlier version of the pods, the last first.", Fields: revisionFields,
			Parse: parseRevision, Do: rollBack},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true,
			Means: "Deletes the stateful set with its pods.", Notes: statefulNotes, Do: frame.Remove},
	}
	for _, a := range statefulSets {
		a.Kind, a.One, a.Verb, a.Resource = state.StatefulSets, "stateful set", "patch", "statefulsets"
		a.List, a.Listed = "/workloads", "Workloads"
	}
	for _, a := range deployments {
		a.Kind, a.One, a.Verb, a.Resource = state.Deployments, "deployment", "patch", "deployments"
		a.List, a.Listed = "/workloads", "Workloads"
	}
	for _, a := range daemonSets {
		a.Kind, a.One, a.Verb, a.Resource = state.DaemonSets, "daemon set", "patch", "daemonsets"
		a.List, a.Listed = "/workloads", "Workloads"
	}
	for _, all := range [][]*frame.Action{deployments, daemonSets, statefulSets} {
		all[len(all)-1].Verb = "delete"
	}
	return slices.Concat(deployments, daemonSets, statefulSets)
}

// statefulNotes also says what happens to the claims.
func statefulNotes(s state.Snapshot, with []state.Object) []string {
	kept, gone := 0, 0
	for _, o := range with {
		set := o.(*appsv1.StatefulSet)
		n := len(set.Spec.VolumeClaimTemplates) * len(podsOf(s, set))
		if keep := set.Spec.PersistentVolumeClaimRetentionPolicy; keep != nil &&
			keep.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
			gone += n
		} else {
			kept += n
		}
	}
	notes := workloadNotes(s, with)
	if kept > 0 {
		notes = append(notes, format.Plural(kept, "claim")+" and what is in their volumes stay.")
	}
	if gone > 0 {
		notes = append(notes, format.Plural(gone, "claim")+" and what is in their volumes go, too.")
	}
	return notes
}

// podsOf returns the pods of a workload.
func podsOf(s state.Snapshot, o state.Object) (pods []*corev1.Pod) {
	owners := []state.Object{o}
	if _, ok := o.(*appsv1.Deployment); ok {
		owners = slices.Collect(s.Owned(o.GetUID(), state.ReplicaSets))
	}
	for _, owner := range owners {
		for p := range s.Owned(owner.GetUID(), state.Pods) {
			pods = append(pods, p.(*corev1.Pod))
		}
	}
	return pods
}

func workloadNotes(s state.Snapshot, with []state.Object) []string {
	n := 0
	for _, o := range with {
		n += len(podsOf(s, o))
	}
	return []string{fmt.Sprintf("%s to leave, and no new ones are made.", format.HasHave(n, "pod"))}
}

// restarter marks the template with the time, as `kubectl rollout restart` does.
func restarter(now func() time.Time) func(context.Context, *frame.Worker, state.Object) (frame.Undo, error) {
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		return restart(ctx, w, o, now())
	}
}

func restart(ctx context.Context, w *frame.Worker, o state.Object, now time.Time) (frame.Undo, error) {
	if d, ok := o.(*appsv1.Deployment); ok && d.Spec.Paused {
		return nil, fmt.Errorf("it is paused: resume it first")
	}
	mark := frame.JSON{restartedAt: now.UTC().Format(time.RFC3339)}
	return nil, w.Patch(ctx, o,
		frame.JSON{"spec": frame.JSON{"template": frame.JSON{"metadata": frame.JSON{"annotations": mark}}}})
}

func scaleFields(_ state.Snapshot, with []state.Object) []frame.Field {
	f := frame.Field{Name: "replicas", Label: "Pods of each", Type: "number", Min: "0", Max: strconv.Itoa(maxReplicas),
		Required: true}
	if len(with) == 1 {
		f.Label, f.Value = "Pods", strconv.Itoa(int(state.Replicas(with[0])))
	}
	return []frame.Field{f}
}

func parseScale(form url.Values) (any, error) {
	n, err := strconv.Atoi(form.Get("replicas"))
	if err != nil || n < 0 || n > maxReplicas {
		return nil, fmt.Errorf("%q is not a number of pods; use 0 to %d", form.Get("replicas"), maxReplicas)
	}
	return int32(n), nil
}

func scale(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	before, after := state.Replicas(o), w.Given.(int32)
	if before == after {
		return nil, nil
	}
	return frame.SetSpec(ctx, w, o, frame.JSON{"replicas": after})
}

func idlePaused(is bool) func(state.Object) string {
	return func(o state.Object) string {
		d, ok := o.(*appsv1.Deployment)
		switch {
		case !ok || d.Spec.Paused != is:
			return ""
		case is:
			return "is paused already"
		}
		return "is not paused"
	}
}

func pause(is bool) func(context.Context, *frame.Worker, state.Object) (frame.Undo, error) {
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		return frame.SetSpec(ctx, w, o, frame.JSON{"paused": is})
	}
}

// evict tells a pod to leave, as the disruption budgets allow.
func evict(w *frame.Worker, ctx context.Context, p *corev1.Pod) error {
	return w.Send(ctx, frame.APICall{Method: http.MethodPost, Path: frame.ObjectURL(state.Pods, p.Namespace, p.Name) +
		"/eviction", Media: frame.PlainJSON}, frame.JSON{
		"kind": "Eviction", "apiVersion": "policy/v1", "metadata": frame.JSON{"name": p.Name, "namespace": p.Namespace},
		"deleteOptions": frame.JSON{"preconditions": frame.JSON{"uid": p.UID}},
	})
}
