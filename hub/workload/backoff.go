package workload

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// maxBackoff is the longest back-off of a workload.
const maxBackoff = 5 * time.Minute

// backoffReset ends a back-off. A pod that ran for so long does not count as lost, and the count of
// a workload without a loss for so long starts again.
const backoffReset = 10 * time.Minute

// backoffFor returns the back-off after a number of strikes. The first loss is replaced at once;
// after that the wait is 1 s and doubles to 5 min.
func backoffFor(strikes int) time.Duration {
	if strikes < 2 {
		return 0
	}
	return doubled(time.Second, strikes-2, maxBackoff)
}

// doubled doubles a duration the given number of times, up to longest.
func doubled(d time.Duration, times int, longest time.Duration) time.Duration {
	return min(d<<min(times, 16), longest)
}

// backoffEnd returns when the lost pods may be replaced.
func backoffEnd(l *state.Backoff) time.Time { return l.Last.Add(backoffFor(l.Count)) }

// lossKey returns the key of a workload's losses. They count per node for a DaemonSet, per pod for
// a StatefulSet, and in total for a ReplicaSet, since its next pod may run on any node.
func lossKey(owner state.Object, of string) state.Key {
	k := state.Key{Kind: state.Losses, Namespace: owner.GetNamespace(), Name: string(owner.GetUID())}
	switch owner.(type) {
	case *appsv1.DaemonSet, *appsv1.StatefulSet:
		k.Name += "." + of
	}
	return k
}

func (p *pass) lossOf(owner state.Object, of string) *state.Backoff {
	l, _ := p.s.Get(lossKey(owner, of)).(*state.Backoff)
	return l
}

// countLoss counts a pod that was evicted, preempted, rejected, failed, or lost with its node. Pods
// that a user or a scale-down deletes do not count.
//
// A strike is the loss of a pod that was placed after the last strike, so a hundred pods that leave
// a node together are one strike. Pods lost during a back-off are replaced at its end.
func (p *pass) countLoss(w *work, old, pod *corev1.Pod) {
	if old == nil || pod == nil || old.Spec.NodeName == "" || !active(old) || active(pod) || !involuntary(pod) {
		return
	}
	bound := state.BoundAt(old)
	ref := metav1.GetControllerOfNoCopy(old)
	if ref == nil || p.now.Sub(bound) >= backoffReset {
		return
	}
	owner := p.s.ByUID(ref.UID)
	var kind gvk
	of := old.Spec.NodeName
	switch owner.(type) {
	case *appsv1.StatefulSet:
		kind, of = statefulSetKind, old.Name
	case *corev1.ReplicationController:
		kind = controllerKind
	case *appsv1.ReplicaSet:
		kind = replicaSetKind
	case *appsv1.DaemonSet:
		kind = daemonSetKind
	default: // a Job counts its failures itself
		return
	}
	k := lossKey(owner, of)
	l := w.losses[k]
	if l == nil {
		if l, _ = p.s.Get(k).(*state.Backoff); l != nil {
			l = l.DeepCopy()
		}
	}
	if l == nil || !p.now.Before(backoffEnd(l).Add(backoffReset)) {
		l = &state.Backoff{ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name, CreationTimestamp: p.stamp(),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		}}
	}
	switch {
	case l.Count > 0 && p.now.Before(backoffEnd(l)):
		l.Pending++
	case l.Count > 0 && bound.Before(l.Last.Time):
		return
	default:
		l.Count, l.Last, l.Pending = l.Count+1, metav1.NewMicroTime(p.now), 1
		l.Failed = failedItself(pod)
	}
	w.losses[k] = l
}

// failedItself reports whether a pod failed on its device; otherwise the hub evicted it.
func failedItself(pod *corev1.Pod) bool {
	c := state.PodCondition(pod, corev1.DisruptionTarget)
	return c == nil || c.Reason == corev1.PodReasonTerminationByKubelet
}

// involuntary reports whether a pod was lost involuntarily.
func involuntary(pod *corev1.Pod) bool {
	if state.Terminated(pod) {
		return true
	}
	c := state.PodCondition(pod, corev1.DisruptionTarget)
	return c != nil && c.Status == corev1.ConditionTrue &&
		(c.Reason == "DeletionByTaintManager" || c.Reason == "PreemptionByScheduler")
}

// storeLosses stores the losses, and an event for each workload in back-off.
func (p *pass) storeLosses(w *work) {
	keys := keySet{}
	for k := range w.losses {
		keys[k] = true
	}
	for _, k := range keys.sorted() {
		l := w.losses[k]
		c := state.Put(l, "")
		if was, _ := p.s.Get(k).(*state.Backoff); l.Count > 1 && (was == nil || was.Count < l.Count) {
			owner := p.s.ByUID(l.OwnerReferences[0].UID)
			c = state.Put(l, fmt.Sprintf("hold %s back for %s: its pods are lost as soon as they are placed",
				state.Display(owner), backoffFor(l.Count))).Warning("BackOff")
			c.About = owner
		}
		p.do(c)
		p.wake(k, backoffEnd(l).Add(backoffReset))
	}
}

// expireLoss removes a workload's losses after backoffReset, or schedules that. A Job's failures
// are removed after a success or with the Job; the count for its limit is removed with the Job. A
// CronJob's wait is removed when it ends.
func (p *pass) expireLoss(k state.Key) {
	l, ok := p.s.Get(k).(*state.Backoff)
	if !ok || l.Failed && len(l.OwnerReferences) > 0 && l.OwnerReferences[0].Kind == jobKind.Kind || l.Failures > 0 ||
		!l.Waits.IsZero() {
		return
	}
	if end := backoffEnd(l).Add(backoffReset); end.After(p.now) {
		p.wake(k, end)
		return
	}
	p.do(state.Remove(l, ""))
}

// allowance returns how many missing pods of a workload may be created now, and when to try the
// remaining ones (zero: all may be created).
//
// Kubernetes replaces a lost pod at once, so a device that rejects its pods makes it create
// thousands. Here the replacements of the last strike's pods wait. After failures there are at most
// as many unready pods as ready ones, or one after the back-off, until backoffReset. Only the hub's
// clock counts.
func (p *pass) allowance(owner state.Object, of string, missing int, live []*corev1.Pod) (int, time.Time) {
	l := p.lossOf(owner, of)
	if l == nil || l.Count < 2 || missing <= 0 {
		return missing, time.Time{}
	}
	until, room, least := backoffEnd(l), missing, 1
	if p.now.Before(until) {
		room, least = max(missing-l.Pending, 0), 0
	} else {
		until = until.Add(backoffReset)
	}
	if l.Failed && p.now.Before(until) {
		proven := 0
		for _, pod := range live {
			if ready(pod) {
				proven++
			}
		}
		room = min(room, max(max(proven, least)-(len(live)-proven), 0))
	}
	if room == missing {
		return missing, time.Time{}
	}
	return room, until
}
