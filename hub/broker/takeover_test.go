package broker

import (
	"strconv"
	"testing"

	"flotilla.dev/shared/wire"
)

// An external broker may have taken over the address of the hub's own broker. A device then takes
// it for the hub and sends no proofs, so the hub would ignore the device after its restart. So the
// hub requests a proof at intervals.
func TestADeviceThatSendsNoProofIsAskedForOne(t *testing.T) {
	h := behindBroker(t, nil)
	asked := func(want int, status wire.Status) {
		t.Helper()
		h.say("status", status)
		marker := h.say("event", wire.Event{Boot: "b1", Type: "Normal",
			Reason: "Marker" + strconv.FormatUint(status.Seq, 10)})
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
	asked(1, wire.Status{Boot: "b2", Seq: 5}) // the device was off in between
}
