package workload

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// maxBackoff is the longest that a workload waits.
const maxBackoff = 5 * time.Minute

// backoffReset is how long a pod has been on its node when its loss says nothing about the next
// one, and how long after a strike a workload counts as quiet again.
const backoffReset = 10 * time.Minute

// holdFor is how long a workload waits after so many strikes: the first loss is made good
// at once; then 1 s, doubling to 5 min.
func holdFor(strikes int) time.Duration {
	if strikes < 2 {
		return 0
	}
	return doubled(time.Second, strikes-2, maxBackoff)
}

// doubled is a duration doubled so many times, at most the longest.
func doubled(d time.Duration, times int, longest time.Duration) time.Duration {
	return min(d<<min(times, 16), longest)
}

// heldUntil returns until when what a loss owes is not replaced.
func heldUntil(l *state.Backoff) time.Time { return l.Last.Add(holdFor(l.Count)) }

// lossKey names the loss of a workload: of a DaemonSet on one node, of a StatefulSet as one
// pod, of a ReplicaSet on any, for its next pod may come to any other.
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

// countLoss counts that a pod was lost to a decision of the hub's or to its device: evicted,
// preempted, rejected, failed, or gone with its node. What a person deletes, and what its own
// workload has too many of, is no loss.
//
// A strike is the loss of a pod that was placed since the last strike, and so was its
// consequence: a hundred pods that leave one node together are one. What is lost
// while the workload waits is owed with the rest.
func (p *pass) countLoss(w *work, old, pod *corev1.Pod) {
	if old == nil || pod == nil || old.Spec.NodeName == "" || !active(old) || active(pod) || !driven(pod) {
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
	default: // a Job's failures have a count and a back-off of their own
		return
	}
	k := lossKey(owner, of)
	l := w.losses[k]
	if l == nil {
		if l, _ = p.s.Get(k).(*state.Backoff); l != nil {
			l = l.DeepCopy()
		}
	}
	if l == nil || !p.now.Before(heldUntil(l).Add(backoffReset)) {
		l = &state.Backoff{ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name, CreationTimestamp: p.stamp(),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		}}
	}
	switch {
	case l.Count > 0 && p.now.Before(heldUntil(l)):
		l.Pending++
	case l.Count > 0 && bound.Before(l.Last.Time):
		return
	default:
		l.Count, l.Last, l.Pending = l.Count+1, metav1.NewMicroTime(p.now), 1
		l.Failed = byItself(pod)
	}
	w.losses[k] = l
}

// byItself tells whether a pod that was lost failed, or was rejected: nobody drove it out.
func byItself(pod *corev1.Pod) bool {
	c := state.PodCondition(pod, corev1.DisruptionTarget)
	return c == nil || c.Reason == corev1.PodReasonTerminationByKubelet
}

// driven tells whether a pod has not left of anybody's own free will.
func driven(pod *corev1.Pod) bool {
	if state.Terminated(pod) {
		return true
	}
	c := state.PodCondition(pod, corev1.DisruptionTarget)
	return c != nil && c.Status == corev1.ConditionTrue &&
		(c.Reason == "DeletionByTaintManager" || c.Reason == "PreemptionByScheduler")
}

// remember writes the losses down, and says of whom the hub holds back.
func (p *pass) remember(w *work) {
	keys := set{}
	for k := range w.losses {
		keys[k] = true
	}
	for _, k := range keys.sorted() {
		l := w.losses[k]
		c := state.Put(l, "")
		if was, _ := p.s.Get(k).(*state.Backoff); l.Count > 1 && (was == nil || was.Count < l.Count) {
			owner := p.s.ByUID(l.OwnerReferences[0].UID)
			c = state.Put(l, fmt.Sprintf("hold %s back for %s: its pods are lost as soon as they are placed",
				state.Display(owner), holdFor(l.Count))).Warning("BackOff")
			c.About = owner
		}
		p.do(c)
		p.wake(k, heldUntil(l).Add(backoffReset))
	}
}

// forgetLoss removes a loss after its backoffReset, or asks again then. That a Job's pods have
// failed by themselves is forgotten with a success or with the Job, what a limit counts with the
// Job, and what a CronJob waits for when it waits no more.
func (p *pass) forgetLoss(k state.Key) {
	l, ok := p.s.Get(k).(*state.Backoff)
	if !ok || l.Failed && len(l.OwnerReferences) > 0 && l.OwnerReferences[0].Kind == jobKind.Kind || l.Failures > 0 ||
		!l.Waits.IsZero() {
		return
	}
	if end := heldUntil(l).Add(backoffReset); end.After(p.now) {
		p.wake(k, end)
		return
	}
	p.do(state.Remove(l, ""))
}

// allowance returns how many of a workload's missing pods may be made now, and when to ask
// again for the rest (zero: no need).
//
// Kubernetes replaces a lost pod at once, always: a device that rejects its pods makes it create
// thousands. Here what the last strike owes waits; and of pods that failed no more are tried again,
// until there has been backoffReset, than have proven ready, or one when the wait is over. Only the
// hub's own clock is used.
func (p *pass) allowance(owner state.Object, of string, missing int, live []*corev1.Pod) (int, time.Time) {
	l := p.lossOf(owner, of)
	if l == nil || l.Count < 2 || missing <= 0 {
		return missing, time.Time{}
	}
	until, room, least := heldUntil(l), missing, 1
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
