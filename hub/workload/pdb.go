package workload

import (
	"fmt"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// budget counts how many pods of a PodDisruptionBudget may be evicted now. turn says that the call
// was deferred until now.
func (p *pass) budget(k state.Key, turn bool) {
	b, ok := p.s.Get(k).(*policyv1.PodDisruptionBudget)
	if !ok {
		return
	}
	if p.deferWalk(k, p.s.Len(state.Pods), turn) {
		return
	}
	c := state.CountBudget(p.s, b, p.now)
	st := policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation, Conditions: b.Status.DeepCopy().Conditions, DisruptedPods: c.Disrupted,
		ExpectedPods: c.Expected, DesiredHealthy: c.Desired, CurrentHealthy: c.Healthy, DisruptionsAllowed: c.Allowed,
	}
	var next time.Time
	for _, at := range c.Disrupted {
		setEarlier(&next, at.Add(state.DisruptedFor))
	}
	p.allowedCondition(&st, c.Unknown)
	if !next.IsZero() {
		p.wakeTurn(k, next)
	}
	if !equality.Semantic.DeepEqual(b.Status, st) {
		b = b.DeepCopy()
		b.Status = st
		p.do(state.Put(b, ""))
	}
}

// allowedCondition sets the condition DisruptionAllowed. unknown is a pod without a known workload,
// if any.
func (p *pass) allowedCondition(st *policyv1.PodDisruptionBudgetStatus, unknown string) {
	c := metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
		ObservedGeneration: st.ObservedGeneration, LastTransitionTime: p.stamp(),
	}
	switch {
	case unknown != "":
		c.Reason, c.Message = policyv1.SyncFailedReason, fmt.Sprintf("found no controllers for pod %q", unknown)
	case st.DisruptionsAllowed > 0:
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
