package workload

import (
	"cmp"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A bucket is a group of events of the same kind and hour. All buckets share the event limit.
type bucket struct {
	hour                    int64 // the hour of the hub's last write of the event
	kind, namespace, reason string
}

func bucketOf(e *corev1.Event, now time.Time) bucket {
	return bucket{state.LastOccurred(e, now).Unix() / int64(time.Hour/time.Second), e.InvolvedObject.Kind,
		e.InvolvedObject.Namespace, e.Reason}
}

// surplusEvents returns the events to remove so that limit remain, oldest first. Each bucket gets
// the same share, and unused parts of a share go to the other buckets. So a storm of similar events
// replaces only itself. Within a bucket the oldest events are removed. With more buckets than
// limit, the small and new buckets stay.
func surplusEvents(all []*corev1.Event, limit int, now time.Time) (gone []*corev1.Event) {
	if len(all) <= limit {
		return nil
	}
	buckets := map[bucket][]*corev1.Event{}
	for _, e := range all {
		c := bucketOf(e, now)
		buckets[c] = append(buckets[c], e)
	}
	keys := make([]bucket, 0, len(buckets))
	for c := range buckets {
		keys = append(keys, c)
	}
	sort.Slice(keys, func(i, j int) bool { // smallest first; buckets of equal size, newest first
		a, b := keys[i], keys[j]
		return cmp.Or(cmp.Compare(len(buckets[a]), len(buckets[b])), cmp.Compare(b.hour, a.hour),
			cmp.Compare(a.kind, b.kind), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.reason, b.reason)) < 0
	})
	room := limit
	for i, c := range keys {
		mine := buckets[c]
		left := len(keys) - i
		share := room / left
		if len(mine) > share && share*left < room {
			share++ // the remainder of the division
		}
		keep := min(len(mine), share)
		room -= keep
		gone = append(gone, mine[:len(mine)-keep]...)
	}
	return gone
}

// eventGrid is the interval of walks over the events, which are removed in batches.
const eventGrid = 10 * time.Minute

func (p *pass) wakeEvents() {
	if p.s.Len(state.Events) > 0 {
		p.plan.WakeFor(allEvents, nextMultiple(p.now, eventGrid))
	}
}

// eventMade schedules a removal after a new event. At 5 % over the limit the removal is in the next
// second.
func (p *pass) eventMade() {
	limit := cmp.Or(p.EventLimit, DefaultEventLimit)
	if p.s.Len(state.Events) > limit+limit/20 {
		p.plan.WakeFor(allEvents, nextMultiple(p.now, time.Second))
	} else {
		p.wakeEvents()
	}
}

// trimEvents removes expired events and the surplus events.
func (p *pass) trimEvents() {
	ttl, limit := cmp.Or(p.EventTTL, DefaultEventTTL), cmp.Or(p.EventLimit, DefaultEventLimit)
	var all []*corev1.Event
	for e := range state.Each[*corev1.Event](p.s, state.Events, "") {
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b *corev1.Event) int {
		return state.LastOccurred(a, p.now).Compare(state.LastOccurred(b, p.now))
	})
	var changes []state.Change
	for len(all) > 0 && !state.LastOccurred(all[0], p.now).Add(ttl).After(p.now) {
		changes = append(changes, state.Remove(all[0], ""))
		all = all[1:]
	}
	for _, e := range surplusEvents(all, limit, p.now) {
		changes = append(changes, state.Remove(e, ""))
	}
	p.do(changes...)
	p.wakeEvents()
}
