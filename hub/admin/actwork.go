package admin

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

	"flotilla.dev/hub/state"
)

const (
	restartedAt = "kubectl.kubernetes.io/restartedAt" // as `kubectl rollout restart` says it
	maxReplicas = 100_000
)

// podActions are what can be done to pods.
func podActions() []*action {
	all := []*action{
		{Name: "evict", Label: "Evict", Done: "is asked to leave", Destroy: true,
			Means: "Asks the pod to leave, unless a disruption budget needs it. Its owner makes a new one.",
			notes: podNotes, idle: idlePod, do: func(ctx context.Context, w *worker, o state.Object) (undo, error) {
				return nil, w.evict(ctx, o.(*corev1.Pod))
			}},
		{Name: "delete", Label: "Delete", Done: "is asked to leave", Destroy: true,
			Means: "Asks the pod to leave, whatever disruption budgets say. Its owner makes a new one.", notes: podNotes, idle: idlePod, do: remove},
	}
	for _, a := range all {
		a.kind, a.one, a.verb, a.resource = state.Pods, "pod", "delete", "pods"
		a.list, a.listed = "/pods", "Pods"
	}
	all[0].verb, all[0].resource = "create", "pods/eviction"
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
		notes = append(notes, fmt.Sprintf("%s no owner: nobody makes it again.", hasHave(bare, "pod")))
	}
	if silent > 0 {
		notes = append(notes, fmt.Sprintf("%s on a node that is not ready, and stays Terminating until the device confirms that it has stopped.", isAre(silent, "pod")))
	}
	return notes
}

// workloadActions are what can be done to what keeps pods running.
func workloadActions(now func() time.Time) []*action {
	restart := restarter(now)
	deployments := []*action{
		{Name: "restart", Label: "Restart", Done: "restarts", Means: "Replaces every pod by a new one of the same version, a few at a time.", do: restart},
		{Name: "scale", Label: "Scale", Done: "is scaled", Means: "Sets how many pods there should be.", fields: scaleFields, parse: parseScale, do: scale},
		{Name: "undo", Label: "Roll back", Done: "is rolled back", Means: "Goes back to an earlier version of the pods, a few at a time.", fields: revisionFields, parse: parseRevision, do: rollBack},
		{Name: "pause", quick: true, Label: "Pause", Done: "is paused", Means: "Changes of the template are not rolled out until it is resumed.", idle: idlePaused(true), do: pause(true)},
		{Name: "resume", quick: true, Label: "Resume", Done: "is resumed", Means: "Changes of the template are rolled out again.", idle: idlePaused(false), do: pause(false)},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true, Means: "Deletes the deployment with its pods.", notes: workloadNotes, do: remove},
	}
	daemonSets := []*action{
		{Name: "restart", Label: "Restart", Done: "restarts", Means: "Replaces every pod by a new one of the same version, node by node.", do: restart},
		{Name: "undo", Label: "Roll back", Done: "is rolled back", Means: "Goes back to an earlier version of the pods, node by node.", fields: revisionFields, parse: parseRevision, do: rollBack},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true, Means: "Deletes the daemon set with its pods.", notes: workloadNotes, do: remove},
	}
	statefulSets := []*action{
		{Name: "restart", Label: "Restart", Done: "restarts", Means: "Replaces every pod by a new one of the same version, the last first. Their claims stay.", do: restart},
		{Name: "scale", Label: "Scale", Done: "is scaled", Means: "Sets how many pods there should be: the last go first, and their claims as the stateful set says.", fields: scaleFields, parse: parseScale, do: scale},
		{Name: "undo", Label: "Roll back", Done: "is rolled back", Means: "Goes back to an earlier version of the pods, the last first.", fields: revisionFields, parse: parseRevision, do: rollBack},
		{Name: "delete", Label: "Delete", Done: "is deleted", Destroy: true, Means: "Deletes the stateful set with its pods.", notes: statefulNotes, do: remove},
	}
	for _, a := range statefulSets {
		a.kind, a.one, a.verb, a.resource = state.StatefulSets, "stateful set", "patch", "statefulsets"
		a.list, a.listed = "/workloads", "Workloads"
	}
	for _, a := range deployments {
		a.kind, a.one, a.verb, a.resource = state.Deployments, "deployment", "patch", "deployments"
		a.list, a.listed = "/workloads", "Workloads"
	}
	for _, a := range daemonSets {
		a.kind, a.one, a.verb, a.resource = state.DaemonSets, "daemon set", "patch", "daemonsets"
		a.list, a.listed = "/workloads", "Workloads"
	}
	for _, all := range [][]*action{deployments, daemonSets, statefulSets} {
		all[len(all)-1].verb = "delete"
	}
	return slices.Concat(deployments, daemonSets, statefulSets)
}

// statefulNotes tells also what becomes of the claims.
func statefulNotes(s state.Snapshot, with []state.Object) []string {
	kept, gone := 0, 0
	for _, o := range with {
		set := o.(*appsv1.StatefulSet)
		n := len(set.Spec.VolumeClaimTemplates) * len(podsOf(s, set))
		if keep := set.Spec.PersistentVolumeClaimRetentionPolicy; keep != nil && keep.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
			gone += n
		} else {
			kept += n
		}
	}
	notes := workloadNotes(s, with)
	if kept > 0 {
		notes = append(notes, plural(kept, "claim")+" and what is in their volumes stay.")
	}
	if gone > 0 {
		notes = append(notes, plural(gone, "claim")+" and what is in their volumes go, too.")
	}
	return notes
}

// podsOf walks the pods of a workload.
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
	return []string{fmt.Sprintf("%s to leave, and nobody makes new ones.", hasHave(n, "pod"))}
}

// restarter marks the template with the moment, as `kubectl rollout restart` does.
func restarter(now func() time.Time) func(context.Context, *worker, state.Object) (undo, error) {
	return func(ctx context.Context, w *worker, o state.Object) (undo, error) { return restart(ctx, w, o, now()) }
}

func restart(ctx context.Context, w *worker, o state.Object, now time.Time) (undo, error) {
	if d, ok := o.(*appsv1.Deployment); ok && d.Spec.Paused {
		return nil, fmt.Errorf("it is paused: resume it, and restart it then")
	}
	mark := tree{restartedAt: now.UTC().Format(time.RFC3339)}
	return nil, w.patch(ctx, o, tree{"spec": tree{"template": tree{"metadata": tree{"annotations": mark}}}})
}

func scaleFields(_ state.Snapshot, with []state.Object) []field {
	f := field{Name: "replicas", Label: "Pods of each", Type: "number", Min: "0", Max: strconv.Itoa(maxReplicas), Required: true}
	if len(with) == 1 {
		f.Label, f.Value = "Pods", strconv.Itoa(int(state.Replicas(with[0])))
	}
	return []field{f}
}

func parseScale(form url.Values) (any, error) {
	n, err := strconv.Atoi(form.Get("replicas"))
	if err != nil || n < 0 || n > maxReplicas {
		return nil, fmt.Errorf("%q is no number of pods: use 0 to %d", form.Get("replicas"), maxReplicas)
	}
	return int32(n), nil
}

func scale(ctx context.Context, w *worker, o state.Object) (undo, error) {
	before, after := state.Replicas(o), w.given.(int32)
	if before == after {
		return nil, nil
	}
	return setSpec(ctx, w, o, tree{"replicas": after})
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

func pause(is bool) func(context.Context, *worker, state.Object) (undo, error) {
	return func(ctx context.Context, w *worker, o state.Object) (undo, error) {
		return setSpec(ctx, w, o, tree{"paused": is})
	}
}

// evict asks a pod to leave, as the disruption budgets allow.
func (w *worker) evict(ctx context.Context, p *corev1.Pod) error {
	return w.send(ctx, apiCall{method: http.MethodPost, path: objectURL(state.Pods, p.Namespace, p.Name) + "/eviction", media: plainJSON}, tree{
		"kind": "Eviction", "apiVersion": "policy/v1", "metadata": tree{"name": p.Name, "namespace": p.Namespace},
		"deleteOptions": tree{"preconditions": tree{"uid": p.UID}},
	})
}
