package workload

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/state"
)

// Quotas decides what stands in the status of ResourceQuotas: what of each is used. It is asked before the workloads, so
// that these never trust what a restored database says. Whoever writes an object adds it to the status in the same
// transaction (package admission), so that two never have the same room; this decider gives room back, and mends.
type Quotas struct{}

// Touches says that whatever may be counted concerns the quotas of its namespace.
func (Quotas) Touches(c state.Applied) []state.Subject {
	switch {
	case c.Key.Kind == state.ResourceQuotas:
		return []state.Subject{state.About(c.Key), quotasOf(c.Key.Namespace)} // of which others may count the number
	case c.Key.Namespace == "" || c.Key.Kind == state.Events || c.Old != nil && c.New != nil && state.SameCharge(c.Old, c.New):
		return nil
	}
	return []state.Subject{quotasOf(c.Key.Namespace)}
}

// quotasOf are all quotas of a namespace.
func quotasOf(namespace string) state.Subject {
	return state.About(state.Key{Kind: state.ResourceQuotas, Namespace: namespace})
}

// Subjects returns all quotas.
func (Quotas) Subjects(s state.Snapshot) (all []state.Subject) {
	for o := range s.All(state.ResourceQuotas, "") {
		all = append(all, state.About(state.KeyOf(o)))
	}
	return all
}

// Decide counts.
func (Quotas) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	var keys []state.Key
	for _, q := range subjects {
		if q.Name != "" {
			keys = append(keys, q.Key)
			continue
		}
		for o := range s.Quotas(q.Namespace) {
			keys = append(keys, state.KeyOf(o))
		}
	}
	slices.SortFunc(keys, byKey)
	for _, k := range slices.Compact(keys) {
		q, ok := s.Get(k).(*corev1.ResourceQuota)
		if !ok {
			plan.Wake(k, time.Time{})
			continue
		}
		st, next := state.QuotaStatus(s, q, now)
		if !next.IsZero() {
			next = next.Add(time.Nanosecond)
		}
		plan.Wake(k, next)
		if !equality.Semantic.DeepEqual(st, q.Status) {
			q = q.DeepCopy()
			q.Status = st
			plan.Do(state.Put(q, ""))
		}
	}
	return plan
}
