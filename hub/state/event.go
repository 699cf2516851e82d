package state

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// LastOccurred is when an event was told last. A client says of that what it likes: not that it will be told later.
func LastOccurred(e *corev1.Event, now time.Time) time.Time {
	at, said := e.CreationTimestamp.Time, [...]time.Time{e.EventTime.Time, e.LastTimestamp.Time, {}}
	if e.Series != nil {
		said[2] = e.Series.LastObservedTime.Time
	}
	for _, t := range said {
		if t.After(at) && !t.After(now) {
			at = t
		}
	}
	return at
}
