package workload

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// disruptedFor is how long an eviction that was allowed counts although its pod
// has not begun to leave: after that it has failed.
const disruptedFor = 2 * time.Minute

// budget counts how many pods of a PodDisruptionBudget may leave now.
func (p *pass) budget(k state.Key) {
	b, ok := p.s.Get(k).(*policyv1.PodDisruptionBudget)
	if !ok {
		return
	}
	if at := p.hurry(p.s.Len(state.Pods), p.rang(k)); !at.IsZero() {
		p.wake(k, at)
		return
	}
	var pods []*corev1.Pod
	for pod := range p.s.Pods(b.Namespace) {
		if matches(b.Spec.Selector, pod.Labels) && !state.Terminated(pod) {
			pods = append(pods, pod)
		}
	}
	st := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, Conditions: b.Status.DeepCopy().Conditions}
	var next time.Time
	for name, at := range b.Status.DisruptedPods {
		pod := p.s.Pod(b.Namespace, name)
		if pod == nil || pod.DeletionTimestamp != nil || !at.Add(disruptedFor).After(p.now) {
			continue
		}
		if st.DisruptedPods == nil {
			st.DisruptedPods = map[string]metav1.Time{}
		}
		st.DisruptedPods[name] = at
		sooner(&next, at.Add(disruptedFor))
	}
	for _, pod := range pods {
		_, disrupted := st.DisruptedPods[pod.Name]
		if pod.DeletionTimestamp == nil && !disrupted && ready(pod) {
			st.CurrentHealthy++
		}
	}
	st.ExpectedPods, st.DesiredHealthy = p.expected(b, pods)
	if st.ExpectedPods > 0 {
		st.DisruptionsAllowed = max(st.CurrentHealthy-st.DesiredHealthy, 0)
	}
	p.allowedCondition(&st)
	if !next.IsZero() {
		p.wake(k, next)
	}
	if !equality.Semantic.DeepEqual(b.Status, st) {
		b = b.DeepCopy()
		b.Status = st
		p.do(state.Put(b, ""))
	}
}

// rang tells whether the look is because of the subject's own alarm, or of everything.
func (p *pass) rang(k state.Key) bool {
	for _, due := range p.base.Look.Due {
		if due == k {
			return true
		}
	}
	return p.base.Look.All
}

// expected returns how many pods there should be, and how many of them healthy.
// A percentage, and maxUnavailable, are of what the pods' workloads ask for, not
// of what happens to be there. Ours: a DaemonSet's pods count as many as it has
// nodes, and a pod without a controller as one; Kubernetes refuses both.
func (p *pass) expected(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (expected, healthy int32) {
	var scale int32
	counted := map[types.UID]bool{}
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			scale++
			continue
		}
		owner := p.s.ByUID(ref.UID)
		if rs, ok := owner.(*appsv1.ReplicaSet); ok {
			if up := metav1.GetControllerOfNoCopy(rs); up != nil {
				if d, ok := p.s.ByUID(up.UID).(*appsv1.Deployment); ok {
					owner = d
				}
			}
		}
		if owner == nil {
			scale++
			continue
		}
		if counted[owner.GetUID()] {
			continue
		}
		counted[owner.GetUID()] = true
		switch o := owner.(type) {
		case *appsv1.Deployment:
			if o.Spec.Replicas == nil {
				scale++
			} else {
				scale += *o.Spec.Replicas
			}
		case *appsv1.ReplicaSet:
			scale += replicasOf(o)
		case *appsv1.DaemonSet:
			scale += o.Status.DesiredNumberScheduled
		}
	}
	switch most, least := b.Spec.MaxUnavailable, b.Spec.MinAvailable; {
	case most != nil:
		return scale, max(scale-scaled(most, scale, true), 0)
	case least != nil && least.StrVal != "":
		return scale, scaled(least, scale, true)
	case least != nil:
		return int32(len(pods)), least.IntVal
	}
	return int32(len(pods)), 0
}

// allowedCondition sets the condition that tells whether a pod may leave.
func (p *pass) allowedCondition(st *policyv1.PodDisruptionBudgetStatus) {
	c := metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
		ObservedGeneration: st.ObservedGeneration, LastTransitionTime: p.stamp(),
	}
	if st.DisruptionsAllowed > 0 {
		c.Status, c.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	for i, have := range st.Conditions {
		if have.Type == c.Type {
			if have.Status == c.Status {
				c.LastTransitionTime = have.LastTransitionTime
			}
			st.Conditions[i] = c
			return
		}
	}
	st.Conditions = append(st.Conditions, c)
}
