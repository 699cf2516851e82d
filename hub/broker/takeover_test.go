package broker

import (
	"strconv"
	"testing"

	"flotilla.dev/shared/wire"
)

// A broker that has taken over the address of the hub's own looks like the hub to a device. The
// device then sends no proofs, and is ignored after its restart. So the hub requests a proof at
// intervals.
func TestADeviceThatTakesABrokerForTheHubIsAskedForAProof(t *testing.T) {
	h := behindBroker(t, nil)
	asked := func(want int, status wire.Status) {
		t.Helper()
		h.say("status", status)
		marker := h.say("event", wire.Event{Boot: "b1", Type: "Normal", Reason: "Marker" + strconv.FormatUint(status.Seq, 10)})
		await(t, "the message after it", func() bool { return h.got("ack "+wire.AckOf(marker)) == 1 })
		if n := h.got("renew"); n != want {
			t.Errorf("status %d: asked %d times for a renewal, want %d", status.Seq, n, want)
		}
	}
	asked(0, wire.Status{Boot: "b1", Seq: 1, Proof: &wire.Proof{Key: []byte("key-1")}})
	asked(1, wire.Status{Boot: "b1", Seq: 2})
	asked(1, wire.Status{Boot: "b1", Seq: 3})
	asked(1, wire.Status{Boot: "b2", Seq: 4})
	h = behindBroker(t, nil)
	asked(1, wire.Status{Boot: "b2", Seq: 5}) // it was off in between
}
