package workload

import (
	"cmp"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A bucket is what events are alike in: those of one share the room that there is.
type bucket struct {
	hour                    int64 // in which the hub last wrote it
	kind, namespace, reason string
}

func bucketOf(e *corev1.Event, now time.Time) bucket {
	return bucket{state.LastOccurred(e, now).Unix() / int64(time.Hour/time.Second), e.InvolvedObject.Kind,
		e.InvolvedObject.Namespace, e.Reason}
}

// spare returns the events to remove so that limit are left, of all of them, the oldest
// first. Every bucket gets the same room, and what one does not need the others get: a
// storm, which says the same of thousands within the hour, pushes out what it said
// itself, and not the history of everything else. Of a bucket that is too large the
// oldest go. Of more buckets than there is room for, the small and new ones stay.
func spare(all []*corev1.Event, limit int, now time.Time) (gone []*corev1.Event) {
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
	sort.Slice(keys, func(i, j int) bool { // the smallest first; of those alike the newest
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
			share++ // of what does not divide
		}
		keep := min(len(mine), share)
		room -= keep
		gone = append(gone, mine[:len(mine)-keep]...)
	}
	return gone
}

// eventGrid is how often the events are walked: they go in batches.
const eventGrid = 10 * time.Minute

func (p *pass) wakeEvents() {
	if p.s.Len(state.Events) > 0 {
		p.plan.WakeFor(allEvents, until(p.now, eventGrid))
	}
}

// eventMade makes sure that a new event will be removed one day, and asks to
// remove some at the next second when there are too many by a twentieth.
func (p *pass) eventMade() {
	limit := cmp.Or(p.EventLimit, DefaultEventLimit)
	if p.s.Len(state.Events) > limit+limit/20 {
		p.plan.WakeFor(allEvents, until(p.now, time.Second))
	} else {
		p.wakeEvents()
	}
}

// trimEvents removes the events that have had their time, and of those that are too
// many the ones that take more than their share of the room.
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
	for _, e := range spare(all, limit, p.now) {
		changes = append(changes, state.Remove(e, ""))
	}
	p.do(changes...)
	p.wakeEvents()
}
