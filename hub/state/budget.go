package state

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DisruptedFor is how long an allowed eviction counts while its pod has not begun to stop. After
// that the eviction counts as failed.
const DisruptedFor = 2 * time.Minute

// A BudgetCount is the state of a PodDisruptionBudget at one moment.
type BudgetCount struct {
	Expected int32 // pods that should exist
	Desired  int32 // how many of the expected pods must be healthy
	Healthy  int32 // healthy pods
	Allowed  int32 // pods that may be disrupted now
	// Unknown names a pod whose workload cannot be found. Then the expected count is unknown and no
	// pod may be disrupted.
	Unknown   string
	Disrupted map[string]metav1.Time // allowed evictions whose pods have not begun to stop
}

// CountBudget counts a PodDisruptionBudget as kube-controller-manager's disruption controller does.
// The budget's status, the eviction API and preemption use it.
//
// maxUnavailable and percentages refer to the replicas that the pods' workloads want, and round up;
// an absolute minAvailable refers to the existing pods. A budget with neither field allows nothing.
// Pods without a controller count as healthy but not as expected. Unlike Kubernetes, a DaemonSet
// counts with its number of nodes.
func CountBudget(s Snapshot, b *policyv1.PodDisruptionBudget, now time.Time) (c BudgetCount) {
	for name, at := range b.Status.DisruptedPods {
		pod := s.Pod(b.Namespace, name)
		if pod == nil || pod.DeletionTimestamp != nil || !at.Add(DisruptedFor).After(now) {
			continue
		}
		if c.Disrupted == nil {
			c.Disrupted = map[string]metav1.Time{}
		}
		c.Disrupted[name] = at
	}
	var there, scale int32
	counted := map[types.UID]bool{}
	for pod := range s.Pods(b.Namespace) {
		if !Selects(b.Spec.Selector, pod.Labels) {
			continue
		}
		there++
		ready := PodCondition(pod, corev1.PodReady)
		if _, disrupted := c.Disrupted[pod.Name]; pod.DeletionTimestamp == nil && !disrupted && ready != nil &&
			ready.Status == corev1.ConditionTrue {
			c.Healthy++
		}
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			continue
		}
		owner, replicas := scaleOf(s, ref.UID)
		switch {
		case owner == "":
			c.Unknown = pod.Name
		case !counted[owner]:
			counted[owner] = true
			scale += replicas
		}
	}
	switch most, least := b.Spec.MaxUnavailable, b.Spec.MinAvailable; {
	case most != nil:
		c.Expected = scale
		c.Desired = max(scale-share(most, scale), 0)
	case least != nil && least.Type == intstr.String:
		c.Expected, c.Desired = scale, share(least, scale)
	case least != nil:
		c.Expected, c.Desired, c.Unknown = there, least.IntVal, ""
	default:
		c.Unknown = ""
	}
	if c.Expected > 0 && c.Unknown == "" {
		c.Allowed = max(c.Healthy-c.Desired, 0)
	}
	return c
}

// scaleOf returns the workload that sets the replicas for a controller, and their number. The uid
// is "" if the workload cannot be found.
func scaleOf(s Snapshot, controller types.UID) (types.UID, int32) {
	z := ScaleOf(s.ByUID(controller))
	if z.Of != "" {
		d, ok := s.ByUID(z.Of).(*appsv1.Deployment)
		if !ok {
			return "", 0
		}
		z = ScaleOf(d)
	} else if _, direct := s.ByUID(controller).(*appsv1.Deployment); direct {
		return "", 0
	}
	return z.UID, z.Pods
}

// A Scale is the part of a workload that budgets need.
type Scale struct {
	UID, Of types.UID // Of is the Deployment that sets the replicas of a ReplicaSet
	Pods    int32     // wanted replicas
}

// ScaleOf returns the scale of an object, which may be nil. It is zero for kinds without a number
// of pods.
func ScaleOf(o Object) Scale {
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		if up := metav1.GetControllerOfNoCopy(o); up != nil {
			return Scale{UID: o.UID, Of: up.UID}
		}
		return Scale{UID: o.UID, Pods: Replicas(o)}
	case *appsv1.Deployment, *appsv1.StatefulSet, *corev1.ReplicationController:
		return Scale{UID: o.GetUID(), Pods: Replicas(o)}
	case *appsv1.DaemonSet:
		return Scale{UID: o.UID, Pods: o.Status.DesiredNumberScheduled}
	}
	return Scale{}
}

// share returns v as a number. A percentage is of whole, rounded up.
func share(v *intstr.IntOrString, whole int32) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(v, int(whole), true)
	if err != nil {
		return 0
	}
	return int32(n)
}

// BudgetsOf returns the budgets that select a pod.
func BudgetsOf(s Snapshot, pod *corev1.Pod) (all []*policyv1.PodDisruptionBudget) {
	for b := range Each[*policyv1.PodDisruptionBudget](s, PodDisruptionBudgets, pod.Namespace) {
		if Selects(b.Spec.Selector, pod.Labels) {
			all = append(all, b)
		}
	}
	return all
}

// MayEvict tells whether a budget allows the eviction of a pod. A pod that is not ready may be
// evicted if the policy says so, or if enough other pods are healthy.
func (c BudgetCount) MayEvict(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if ready := PodCondition(pod, corev1.PodReady); ready == nil || ready.Status != corev1.ConditionTrue {
		if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow ||
			c.Healthy >= c.Desired && c.Desired > 0 {
			return true
		}
	}
	return c.Allowed > 0
}

// Selects tells whether a selector matches labels. A missing or invalid selector matches nothing.
func Selects(sel *metav1.LabelSelector, l map[string]string) bool {
	if sel == nil {
		return false
	}
	if len(sel.MatchExpressions) == 0 {
		for k, v := range sel.MatchLabels {
			if have, ok := l[k]; !ok || have != v {
				return false
			}
		}
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(sel)
	return err == nil && s.Matches(labels.Set(l))
}

// An EvictionRefusal says why a pod may not be evicted now.
type EvictionRefusal struct {
	Several bool        // more than one budget selects the pod, which evictions do not support
	Budget  string      // the budget that forbids the eviction
	Count   BudgetCount // the state of that budget
}

// RefusalFor returns why a pod may not be evicted now, nil if it may. A pod that has not started,
// has ended or is being deleted may always be evicted.
func RefusalFor(s Snapshot, p *corev1.Pod, now time.Time) *EvictionRefusal {
	return NewEvictionRefusals(s, now).For(p)
}

// EvictionRefusals answers RefusalFor for many pods at one moment; it counts each budget once.
type EvictionRefusals struct {
	s      Snapshot
	now    time.Time
	counts map[types.UID]BudgetCount
}

// NewEvictionRefusals returns the EvictionRefusals of a snapshot.
func NewEvictionRefusals(s Snapshot, now time.Time) *EvictionRefusals {
	return &EvictionRefusals{s, now, map[types.UID]BudgetCount{}}
}

// For is RefusalFor for one pod.
func (h *EvictionRefusals) For(p *corev1.Pod) *EvictionRefusal {
	if p.DeletionTimestamp != nil || Terminated(p) || p.Status.Phase == corev1.PodPending {
		return nil
	}
	all := BudgetsOf(h.s, p)
	switch {
	case len(all) == 0:
		return nil
	case len(all) > 1:
		return &EvictionRefusal{Several: true}
	}
	c, known := h.counts[all[0].UID]
	if !known {
		c = CountBudget(h.s, all[0], h.now)
		h.counts[all[0].UID] = c
	}
	if c.MayEvict(all[0], p) {
		return nil
	}
	return &EvictionRefusal{Budget: all[0].Name, Count: c}
}

// String returns the sentence that the eviction API and drains show.
func (h *EvictionRefusal) String() string {
	switch {
	case h == nil:
		return ""
	case h.Several:
		return "it has more than one PodDisruptionBudget, which evictions do not support"
	}
	return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", h.Budget, h.Count.Desired,
		h.Count.Healthy)
}

// RefusalText is RefusalFor as a sentence; "" if the pod may be evicted.
func RefusalText(s Snapshot, p *corev1.Pod, now time.Time) string {
	return RefusalFor(s, p, now).String()
}
