package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// An event whose acknowledgement was lost is sent again, and a broker may deliver it twice. Both
// count once. Two equal occurrences count twice.
func TestAnEventThatIsDeliveredTwiceCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		at := time.Now()
		say := func(at time.Time) {
			t.Helper()
			if err := l.Event(t.Context(), node.Caller{Node: "pi-1"},
				wire.Event{Boot: "b", Time: at, Type: "Warning", Reason: "Told", Message: "the lamp is broken"}); err != nil {
				t.Fatal(err)
			}
		}
		counts := func(want int32) {
			t.Helper()
			n := int32(0)
			for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
				if e.Reason == "Told" {
					n += max(e.Count, 1)
				}
			}
			if n != want {
				t.Errorf("the event counts %d times, want %d", n, want)
			}
		}
		say(at)
		say(at)
		counts(1)
		say(at.Add(time.Second))
		counts(2)
		say(time.Time{})
		say(time.Time{})
		counts(4)
	})
}
