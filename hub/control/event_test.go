package control

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// The oldest event is the one with the earliest last occurrence, whether its times are in the
// fields of core/v1 or of events.k8s.io.
func TestTheOldestEventIsRemoved(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name    string
		setTime func(e *corev1.Event, at time.Time)
	}{
		{"old times", func(e *corev1.Event, at time.Time) { e.LastTimestamp = metav1.NewTime(at) }},
		{"new times", func(e *corev1.Event, at time.Time) { e.EventTime = metav1.NewMicroTime(at) }},
		{"a series", func(e *corev1.Event, at time.Time) {
			e.EventTime = metav1.NewMicroTime(now.Add(-3 * time.Hour))
			e.Series = &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NewMicroTime(at)}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ref := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "kiosk", UID: "u"}
			var objects []state.Object
			add := func(i int, at time.Time, setTime func(*corev1.Event, time.Time)) {
				e := &corev1.Event{InvolvedObject: ref, ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: fmt.Sprintf("kiosk.%03d", i),
					CreationTimestamp: metav1.NewTime(now.Add(-3 * time.Hour))}}
				setTime(e, at)
				objects = append(objects, e)
			}
			older := func(e *corev1.Event, at time.Time) { e.LastTimestamp = metav1.NewTime(at) }
			add(0, now.Add(-time.Minute), c.setTime)
			for i := 1; i < eventsAbout; i++ {
				add(i, now.Add(-time.Duration(i+60)*time.Minute), older)
			}
			s := state.Load(state.Empty("h", now), objects, uint64(len(objects)))
			var gone []string
			for _, change := range AddEvent(s, ref, EventText{Type: corev1.EventTypeNormal, Reason: "Pulled", Message: "more"},
				now) {
				if change.Delete {
					gone = append(gone, change.Object.GetName())
				}
			}
			if want := fmt.Sprintf("[kiosk.%03d]", eventsAbout-1); fmt.Sprint(gone) != want {
				t.Errorf("removed events: %v, want %s", gone, want)
			}
		})
	}
}
