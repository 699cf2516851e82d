package workload

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/state"
)

// Quotas decides what stands in the status of ResourceQuotas: what of each is used. It is asked
// before the workloads, so that these never trust what a restored database says. Whoever writes an
// object adds it to the status in the same transaction (package admission), so that two never have
// the same room; this decider gives room back, and mends.
//
// In a large namespace everything is counted once in a while, and until then what is given back is
// taken off.
type Quotas struct{}

// A giving is an object before and after a change that may leave a quota more room.
type giving struct{ old, next state.Object }

// Touches says that whatever may be counted concerns the quotas of its namespace.
func (Quotas) Touches(c state.Applied) []state.Subject {
	q := quotasOf(c.Key.Namespace)
	switch {
	case c.Key.Kind == state.ResourceQuotas:
		if !sameQuota(c.Old, c.New) {
			return []state.Subject{state.About(c.Key), q} // of which others may count the number
		}
	case c.Key.Namespace == "" || c.Key.Kind == state.Events ||
		c.Old != nil && c.New != nil && state.SameCharge(c.Old, c.New):
		return nil
	case c.Old != nil:
		q.Was = giving{c.Old, c.New}
	}
	return []state.Subject{q}
}

// sameQuota tells whether a quota limits what it did: at most its status is another.
func sameQuota(old, next state.Object) bool {
	was, ok := old.(*corev1.ResourceQuota)
	is, also := next.(*corev1.ResourceQuota)
	return ok && also && was.UID == is.UID && equality.Semantic.DeepEqual(was.Spec, is.Spec)
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
	whole := set{}                 // those for which everything is counted now
	given := map[string][]giving{} // by namespace
	for _, q := range subjects {
		if q.Name != "" {
			whole[q.Key] = true
			continue
		}
		list := given[q.Namespace]
		if g, ok := q.Was.(giving); ok {
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
		turn := turnOf(chargeCosts*podsIn(s, k.Namespace), now)
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

// chargeCosts is how many objects can be walked while what one pod uses is reckoned.
const chargeCosts = 10

// podsIn is how many pods a namespace has, as far as it matters to how often they are walked.
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

// withoutGiven is a quota's status where what changes have given back is used no more.
func withoutGiven(q *corev1.ResourceQuota, given []giving, now time.Time) corev1.ResourceQuotaStatus {
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
