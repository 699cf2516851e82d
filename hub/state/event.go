package state

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// LastOccurred returns when an event occurred last. Clients set these times, so times in the future
// are ignored.
func LastOccurred(e *corev1.Event, now time.Time) time.Time {
	at, times := e.CreationTimestamp.Time, [...]time.Time{e.EventTime.Time, e.LastTimestamp.Time, {}}
	if e.Series != nil {
		times[2] = e.Series.LastObservedTime.Time
	}
	for _, t := range times {
		if t.After(at) && !t.After(now) {
			at = t
		}
	}
	return at
}
