package workload

import (
	"cmp"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A crowd is what events are alike in: those of one share what room there is.
type crowd struct {
	hour                    int64 // in which the hub last wrote it
	kind, namespace, reason string
}

func crowdOf(e *corev1.Event, now time.Time) crowd {
	return crowd{state.ToldAt(e, now).Unix() / int64(time.Hour/time.Second), e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.Reason}
}

// spare returns the events to remove so that limit are left, of all of them, the oldest
// first. Every crowd gets the same room, and what one does not need the others get: a
// storm, which says the same of thousands within the hour, pushes out what it said
// itself, and not the history of everything else. Of a crowd that is too large the
// oldest go. Of more crowds than there is room for, the small and new ones stay.
func spare(all []*corev1.Event, limit int, now time.Time) (gone []*corev1.Event) {
	if len(all) <= limit {
		return nil
	}
	crowds := map[crowd][]*corev1.Event{}
	for _, e := range all {
		c := crowdOf(e, now)
		crowds[c] = append(crowds[c], e)
	}
	keys := make([]crowd, 0, len(crowds))
	for c := range crowds {
		keys = append(keys, c)
	}
	sort.Slice(keys, func(i, j int) bool { // the smallest first; of those alike the newest
		a, b := keys[i], keys[j]
		return cmp.Or(cmp.Compare(len(crowds[a]), len(crowds[b])), cmp.Compare(b.hour, a.hour),
			cmp.Compare(a.kind, b.kind), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.reason, b.reason)) < 0
	})
	room := limit
	for i, c := range keys {
		mine := crowds[c]
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
