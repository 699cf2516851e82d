package workload

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/state"
)

// updated reports whether a pod has the current template.
func (d *daemon) updated(pod *corev1.Pod) bool {
	return pod.Labels[appsv1.ControllerRevisionHashLabelKey] == d.hash
}

// bounds resolves maxSurge and maxUnavailable for a number of nodes, both rounded up. If both are
// zero one pod may be unavailable, because otherwise the rollout would never continue.
func (d *daemon) bounds(nodes int) (surge, gone int) {
	u := d.ds.Spec.UpdateStrategy
	if u.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return 0, 0
	}
	if u.RollingUpdate == nil {
		return 0, 1
	}
	surge = int(scaled(u.RollingUpdate.MaxSurge, int32(nodes), true))
	gone = 1
	if u.RollingUpdate.MaxUnavailable != nil {
		gone = int(scaled(u.RollingUpdate.MaxUnavailable, int32(nodes), true))
	}
	if surge == 0 && gone == 0 {
		gone = 1
	}
	return surge, gone
}

// roll replaces pods of earlier templates within maxSurge and maxUnavailable. It reports whether it
// changed anything.
func (d *daemon) roll(byNode map[string][]*corev1.Pod) bool {
	if d.ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return false
	}
	type spot struct {
		node     string
		old, new *corev1.Pod
	}
	var spots []spot
	wanted, away, doubled := 0, 0, 0
	lost := 0                // nodes that became silent with the new template, or during the replacement of their pod
	var broken, sound []spot // nodes with only an old pod: unavailable, available
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		n := d.s.Node(node)
		if n == nil {
			continue
		}
		run, _, silent := d.wants(n)
		if !run && !silent {
			continue
		}
		sp := spot{node: node}
		for _, pod := range byNode[node] {
			switch {
			case !active(pod):
			case d.updated(pod):
				sp.new = pod
			default:
				sp.old = pod
			}
		}
		switch {
		case silent:
			if d.lostInRollout(byNode[node]) {
				wanted++
				lost++
			}
			continue
		case sp.old != nil || sp.new != nil:
			spots = append(spots, sp)
		default:
			away++
		}
		wanted++
	}
	away += lost
	surge, gone := d.bounds(wanted)
	up := func(pod *corev1.Pod) bool { return d.available(pod, d.ds.Spec.MinReadySeconds, &d.next) }
	for _, sp := range spots {
		switch {
		case sp.old == nil:
			if !up(sp.new) {
				away++
			}
		case sp.new != nil && up(sp.new): // surge: the new pod is available, so delete the old pod
			d.drop(sp.old, "its replacement is available")
		case sp.new != nil && !ready(sp.old): // the old pod serves no requests and may hold resources that the new pod needs
			d.drop(sp.old, "it is not ready, and its replacement is there")
		case sp.new != nil:
			doubled++
		case up(sp.old):
			sound = append(sound, sp)
		default:
			broken = append(broken, sp)
			away++
		}
	}
	if surge == 0 {
		sound = slices.DeleteFunc(sound, func(sp spot) bool { return d.waitsForImages(sp.node, sp.old) })
	}
	// Replacing pods that are not ready costs no availability, so the budget does not limit it.
	many := gone - away
	if surge > 0 {
		many = surge - doubled - lost
	}
	for _, sp := range append(broken, sound[:max(0, min(len(sound), many))]...) {
		if surge > 0 {
			d.surge(sp.node)
		} else {
			d.drop(sp.old, "its template has changed")
		}
	}
	did := len(d.changes) > 0
	d.flush()
	return did
}

// lostInRollout reports whether the rollout may have made a node silent: its pod has the new
// template and is not available, or was being replaced. Then the rollout stops. A node that was
// silent before keeps its old pod.
func (d *daemon) lostInRollout(pods []*corev1.Pod) bool {
	for _, pod := range pods {
		if state.Terminated(pod) {
			continue
		}
		if d.updated(pod) && !d.available(pod, d.ds.Spec.MinReadySeconds, &d.next) ||
			!d.updated(pod) && pod.DeletionTimestamp != nil {
			return true
		}
	}
	return false
}

// surge creates a node's next pod beside the old one. After repeated losses on that node it waits
// for the back-off.
func (d *daemon) surge(node string) {
	if many, retry := d.allowance(d.ds, node, 1, nil); many == 0 {
		d.wakeFor(d.onNode(node), retry)
		return
	}
	d.launch(node)
}

// status updates the status.
func (d *daemon) status(byNode map[string][]*corev1.Pod) {
	if d.sample == nil {
		d.sample = &corev1.Pod{Spec: d.ds.Spec.Template.Spec}
	}
	ds := d.s.Get(d.key).(*appsv1.DaemonSet)
	st := appsv1.DaemonSetStatus{
		ObservedGeneration: ds.Generation, CollisionCount: ds.Status.CollisionCount, Conditions: ds.Status.Conditions,
	}
	for node, pods := range byNode {
		n := d.s.Node(node)
		if n == nil {
			continue
		}
		// A finished pod does not count as running.
		pods = slices.DeleteFunc(slices.Clone(pods), state.Terminated)
		run, _, silent := d.wants(n)
		switch {
		case !run && !silent:
			if len(pods) > 0 {
				st.NumberMisscheduled++
			}
			continue
		case len(pods) > 0:
			st.CurrentNumberScheduled++
		}
		st.DesiredNumberScheduled++
		if len(pods) == 0 {
			continue
		}
		slices.SortFunc(pods, byAge)
		pod := pods[0]
		if ready(pod) {
			st.NumberReady++
			if d.available(pod, ds.Spec.MinReadySeconds, &d.next) {
				st.NumberAvailable++
			}
		}
		if d.updated(pod) {
			st.UpdatedNumberScheduled++
		}
	}
	st.NumberUnavailable = st.DesiredNumberScheduled - st.NumberAvailable
	refused := d.unrevised
	if refused != "" { // the template has not been checked yet
		st.ObservedGeneration = ds.Status.ObservedGeneration
	} else if ds.DeletionTimestamp == nil && st.CurrentNumberScheduled < st.DesiredNumberScheduled {
		refused = d.refusal()
	}
	isNew := d.replicaFailure(&st, refused)
	if !equality.Semantic.DeepEqual(st, ds.Status) {
		ds = ds.DeepCopy()
		ds.Status = st
		c := state.Put(ds, "")
		if isNew {
			c = refusal(ds, refused, "daemonset-controller")
		}
		d.do(c)
	}
}

// replicaFailure updates the condition ReplicaFailure and reports whether the message is new.
// Kubernetes' DaemonSets lack the condition; they only have events.
func (d *daemon) replicaFailure(st *appsv1.DaemonSetStatus, refused string) bool {
	of := appsv1.ReplicaSetStatus{}
	var others []appsv1.DaemonSetCondition
	for _, c := range st.Conditions {
		if string(c.Type) == string(appsv1.ReplicaSetReplicaFailure) {
			of.Conditions = append(of.Conditions, appsv1.ReplicaSetCondition{
				Type: appsv1.ReplicaSetReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
				LastTransitionTime: c.LastTransitionTime})
		} else {
			others = append(others, c)
		}
	}
	isNew := d.pass.replicaFailure(&of, refused)
	for _, c := range of.Conditions {
		others = append(others, appsv1.DaemonSetCondition{
			Type: appsv1.DaemonSetConditionType(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message,
			LastTransitionTime: c.LastTransitionTime})
	}
	st.Conditions = others
	if len(of.Conditions) > 0 && d.Complete != nil {
		// check all nodes again, not only the status
		d.wakeFor(state.Subject{Key: d.key, Part: partTemplate}, d.retryAt(of.Conditions[0].LastTransitionTime))
	}
	return isNew
}
