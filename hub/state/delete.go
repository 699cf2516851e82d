package state

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Delete is the change by which a pod is asked to leave, with the grace given or
// (nil) its own. A pod that has no node or has finished goes at once, and so does
// one with a grace of 0. Any other stays, Terminating, until its device confirms
// that it has stopped. Asking again can only shorten the grace, and only by one that
// is given: its own is not what it was given to leave. One of 0 counts also when that
// time is over: what holds the pod then is no device. Where it changes nothing, ok is false.
func Delete(p *corev1.Pod, now time.Time, grace *int64, why string) (c Change, ok bool) {
	seconds := int64(30)
	switch {
	case grace != nil:
		seconds = max(*grace, 0)
	case p.Spec.TerminationGracePeriodSeconds != nil:
		seconds = max(*p.Spec.TerminationGracePeriodSeconds, 1)
	}
	if len(p.Finalizers) == 0 && (seconds == 0 || p.Spec.NodeName == "" || Terminated(p)) {
		return Remove(p, why), true
	}
	due := now.Add(time.Duration(seconds) * time.Second)
	if p.DeletionTimestamp != nil {
		late := !due.Before(p.DeletionTimestamp.Time)
		if grace == nil || late && (seconds > 0 || Forced(p)) {
			return Change{}, false
		}
		if late {
			due = p.DeletionTimestamp.Time
		}
	}
	p = p.DeepCopy()
	at := metav1.NewTime(due.Truncate(time.Second))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
	p.Generation++
	return Put(p, why), true
}

// Evict is Delete for a reason that the pod is told in its condition
// DisruptionTarget.
func Evict(p *corev1.Pod, now time.Time, reason, why string) (Change, bool) {
	if p.DeletionTimestamp != nil {
		return Change{}, false
	}
	c, _ := Delete(p, now, nil, why)
	if !c.Delete {
		SetPodCondition(c.Object.(*corev1.Pod), corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: why,
		}, now)
	}
	return c, true
}

// Forced tells whether a pod is to be forgotten, whatever its device does.
func Forced(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// Released tells whether nothing holds an object any more that is to go.
func Released(o Object) bool {
	if o.GetDeletionTimestamp() == nil || len(o.GetFinalizers()) > 0 {
		return false
	}
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Spec.NodeName == "" || Terminated(o) || Forced(o) // else the device still has to stop it
	case *corev1.Namespace:
		return len(o.Spec.Finalizers) == 0
	}
	return true
}

// Immortal tells whether a namespace is one that is always there: nobody deletes it, and it goes with no owner.
func Immortal(namespace string) bool {
	switch namespace {
	case metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease:
		return true
	}
	return false
}

// Display names a pod for people: without the namespace where that is default.
func Display(o metav1.Object) string {
	if ns := o.GetNamespace(); ns != "" && ns != metav1.NamespaceDefault {
		return fmt.Sprintf("%s/%s", ns, o.GetName())
	}
	return o.GetName()
}
