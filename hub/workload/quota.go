package workload

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/state"
)

// Quotas updates the usage in the status of ResourceQuotas. It runs before the workloads, so that
// they never rely on the status of a restored database.
//
// Package admission raises the usage in the transaction that creates an object, so two objects
// cannot use the same remaining amount. This decider lowers the usage after deletions, and corrects
// it. In a large namespace it counts all objects only at intervals, and subtracts freed usage in
// between.
type Quotas struct{}

// A freed is an object before and after a change that may lower a quota's usage.
type freed struct{ old, next state.Object }

// Touches returns the quotas of the namespace for every object that a quota may count.
func (Quotas) Touches(c state.Applied) []state.Subject {
	q := quotasOf(c.Key.Namespace)
	switch {
	case c.Key.Kind == state.ResourceQuotas:
		if !sameQuota(c.Old, c.New) {
			return []state.Subject{state.About(c.Key), q} // another quota may count this quota object
		}
	case c.Key.Namespace == "" || c.Key.Kind == state.Events ||
		c.Old != nil && c.New != nil && state.SameCharge(c.Old, c.New):
		return nil
	case c.Old != nil:
		q.Was = freed{c.Old, c.New}
	}
	return []state.Subject{q}
}

// sameQuota reports whether only the status of a quota has changed.
func sameQuota(old, next state.Object) bool {
	was, ok := old.(*corev1.ResourceQuota)
	is, also := next.(*corev1.ResourceQuota)
	return ok && also && was.UID == is.UID && equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

// quotasOf is the subject of all quotas of a namespace.
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

// Decide updates the status of the quotas.
func (Quotas) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	whole := keySet{}             // quotas to count completely
	given := map[string][]freed{} // by namespace
	for _, q := range subjects {
		if q.Name != "" {
			whole[q.Key] = true
			continue
		}
		list := given[q.Namespace]
		if g, ok := q.Was.(freed); ok {
			list = append(list, g)
		}
		given[q.Namespace] = list
	}
	keys := maps.Clone(whole)
	for namespace := range given {
		for q := range s.Quotas(namespace) {
			keys[state.KeyOf(q)] = true
		}
	}
	for _, k := range keys.sorted() {
		q, ok := s.Get(k).(*corev1.ResourceQuota)
		if !ok {
			plan.Wake(k, time.Time{})
			continue
		}
		var st corev1.ResourceQuotaStatus
		turn := nextTurn(chargeCosts*podsIn(s, k.Namespace), now)
		next := turn
		if whole[k] || turn.IsZero() {
			if st, next = state.QuotaStatus(s, q, now); !next.IsZero() {
				if next = next.Add(time.Nanosecond); next.Before(turn) {
					next = turn
				}
			}
		} else {
			st = withoutGiven(q, given[k.Namespace], now)
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

// chargeCosts is how many objects can be walked in the time that one pod's usage takes to compute.
const chargeCosts = 10

// podsIn returns how many pods a namespace has. It stops counting at the number that makes walks
// slow.
func podsIn(s state.Snapshot, namespace string) (n int) {
	if s.Len(state.Pods) <= state.LargeSet/chargeCosts {
		return 0
	}
	for range s.Pods(namespace) {
		if n++; n == 10_000 {
			break
		}
	}
	return n
}

// withoutGiven returns a quota's status without the usage that changes have freed.
func withoutGiven(q *corev1.ResourceQuota, given []freed, now time.Time) corev1.ResourceQuotaStatus {
	st := *q.Status.DeepCopy()
	for _, g := range given {
		var has corev1.ResourceList
		if g.next != nil {
			has = state.Charged(q, g.next, now)
		}
		for name, had := range state.Charged(q, g.old, now) {
			back := had.DeepCopy()
			back.Sub(has[name])
			used, ok := st.Used[name]
			if !ok || back.Sign() <= 0 {
				continue
			}
			if used.Sub(back); used.Sign() < 0 {
				used.Set(0)
			}
			st.Used[name] = used
		}
	}
	return st
}
