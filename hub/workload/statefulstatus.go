package workload

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/state"
)

// status counts what there is, and says what it waits for.
func (d *stateful) status(ends bool) {
	d.gather(false)
	st := d.set.Status.DeepCopy()
	if ends || d.update != nil {
		st.ObservedGeneration = d.set.Generation
	}
	if d.update != nil {
		st.CurrentRevision, st.UpdateRevision, st.CollisionCount = d.current.Name, d.update.Name, &d.collisions
	}
	st.Replicas, st.ReadyReplicas, st.AvailableReplicas, st.CurrentReplicas, st.UpdatedReplicas = 0, 0, 0, 0, 0
	for _, pod := range d.pods {
		st.Replicas++
		if pod.Status.Phase == corev1.PodRunning && ready(pod) {
			st.ReadyReplicas++
			if d.available(pod, d.set.Spec.MinReadySeconds, &d.next) {
				st.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if revisionLabel(pod) == st.CurrentRevision {
			st.CurrentReplicas++
		}
		if revisionLabel(pod) == st.UpdateRevision {
			st.UpdatedReplicas++
		}
	}
	all := int32(d.want)
	if !ends && d.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && st.UpdatedReplicas == all && st.ReadyReplicas == all && st.Replicas == all {
		st.CurrentReplicas, st.CurrentRevision = st.UpdatedReplicas, st.UpdateRevision
	}
	refused := d.condition(st, statefulFailure, failedCreate, d.refuse)
	for _, c := range st.Conditions {
		if c.Type == statefulFailure && d.Complete != nil {
			sooner(&d.next, d.tryAgain(c.LastTransitionTime))
		}
	}
	unreachable, blocked := d.unreachable(maps.Values(d.pods), "No other is made under that name until the device is back"), d.blocked()
	stuck := d.condition(st, state.PodUnreachable, string(state.PodUnreachable), unreachable)
	behind := d.condition(st, state.RolloutBlocked, string(state.RolloutBlocked), blocked)
	if equality.Semantic.DeepEqual(&d.set.Status, st) {
		return
	}
	set := d.set.DeepCopy()
	set.Status = *st
	c := state.Put(set, "")
	switch {
	case refused:
		c = refusal(set, d.refuse, statefulSource)
	case stuck:
		c = waits(set, unreachable, string(state.PodUnreachable), statefulSource)
	case behind:
		c = waits(set, blocked, string(state.RolloutBlocked), statefulSource)
	}
	d.do(c)
}

// waits is the change of a workload that begins to wait.
func waits(o state.Object, why, reason, source string) state.Change {
	c := state.Put(o, fmt.Sprintf("%s waits: %s", state.Display(o), why)).Warning(reason)
	c.Message, c.Source = why, source
	return c
}

// unreadyFor is how long a pod may be unready before it counts as one that may never be ready.
const unreadyFor = time.Minute

// blocked says which pod of an older revision the newest one waits for, and what helps; empty: none.
func (d *stateful) blocked() string {
	pod := d.waitsFor
	if pod == nil || pod.DeletionTimestamp != nil || silent(d.s.Node(pod.Spec.NodeName)) {
		return ""
	}
	since := pod.CreationTimestamp
	if c := state.PodCondition(pod, corev1.PodReady); c != nil && !c.LastTransitionTime.IsZero() {
		since = c.LastTransitionTime
	}
	if at := since.Add(unreadyFor); at.After(d.now) {
		sooner(&d.next, at)
		return ""
	}
	return fmt.Sprintf("%s is of an older revision and does not become ready, and pods that come one after the other wait for it. If it never will be ready: kubectl delete pod %s -n %s", pod.Name, pod.Name, pod.Namespace)
}

// statefulFailure is ours, as ReplicaSets have it: Kubernetes tells it of StatefulSets by
// events only.
const statefulFailure = appsv1.StatefulSetConditionType(appsv1.ReplicaSetReplicaFailure)

// condition keeps a condition that is there while there is something to say, and tells
// whether it is new. Those of others stay.
func (d *stateful) condition(st *appsv1.StatefulSetStatus, t appsv1.StatefulSetConditionType, reason, message string) bool {
	at := slices.IndexFunc(st.Conditions, func(c appsv1.StatefulSetCondition) bool { return c.Type == t })
	switch {
	case message == "" && at >= 0:
		st.Conditions = slices.Delete(st.Conditions, at, at+1)
		return false
	case message == "" || at >= 0 && st.Conditions[at].Message == message:
		return false
	case at >= 0:
		st.Conditions[at].Message = message
		return false
	}
	st.Conditions = append(st.Conditions, appsv1.StatefulSetCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: d.stamp(), Reason: reason, Message: message})
	return true
}

// silent tells whether nothing is known of what a node's device does.
func silent(n *corev1.Node) bool { return n != nil && state.ReadyOf(n) == corev1.ConditionUnknown }

// mostNamed is how many pods a sentence names.
const mostNamed = 3

// unreachable says which pods are on devices that do not answer, what follows, and what to do; empty: none.
func (p *pass) unreachable(pods iter.Seq[*corev1.Pod], follows string) string {
	var list []*corev1.Pod
	for pod := range pods {
		if pod.Spec.NodeName != "" && !state.Terminated(pod) && silent(p.s.Node(pod.Spec.NodeName)) {
			list = append(list, pod)
		}
	}
	if len(list) == 0 {
		return ""
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	var who []string
	for _, pod := range list[:min(len(list), mostNamed)] {
		who = append(who, fmt.Sprintf("%s on %s", pod.Name, pod.Spec.NodeName))
	}
	if more := len(list) - mostNamed; more > 0 {
		who = append(who, fmt.Sprintf("%d more", more))
	}
	first := list[0]
	text := fmt.Sprintf("%s may still run, as the device does not answer. %s. If it never will be: kubectl delete node %s; if the pod surely does not run any more: kubectl delete pod %s -n %s --force",
		strings.Join(who, ", "), follows, first.Spec.NodeName, first.Name, first.Namespace)
	if state.HasClaims(first) {
		text += ". Its volume is on that device: a new pod waits for it, unless its claims are deleted, too"
	}
	return text
}
