package broker

import (
	"bytes"
	"math/rand"
	"testing"
	"time"

	"flotilla.dev/shared/wire"
)

// A packet stream in any pieces: mochi gets every byte but those of whole leases
// that nothing precedes, and the fleet hears each lease once, here or there.
func FuzzLeaseReader(f *testing.F) {
	f.Add(int64(1), uint8(7))
	f.Add(int64(2), uint8(1))
	f.Add(int64(3), uint8(255))
	f.Fuzz(func(t *testing.T, seed int64, most uint8) {
		r := rand.New(rand.NewSource(seed))
		d := &counted{}
		s := &session{peer: Peer{Node: "pi-1"}, lease: wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelLease), rate: newBucket(1e9)}
		s.established.Store(true)
		e := leaseReader{session: s, b: &Broker{cfg: Config{Handler: d}}}
		lease := func(seq uint64) []byte {
			m := message{topic: s.lease, payload: wire.AppendLease(nil, wire.Lease{Boot: "01JD8Y3QK8Z6M5N4P3R2S1T0VW", Seq: seq, Time: time.Unix(1, 0)})}
			return bytes.Join(publishPacket(m), nil)
		}
		var stream, others []byte
		seq := uint64(0)
		for range 30 {
			if r.Intn(2) == 0 {
				seq++
				stream = append(stream, lease(seq)...)
				continue
			}
			payload := make([]byte, r.Intn(400))
			r.Read(payload)
			p := bytes.Join(publishPacket(message{topic: "fleet/v1/nodes/pi-1/status", payload: payload}), nil)
			if r.Intn(4) == 0 {
				p = []byte{0xc0, 0x00} // PINGREQ
			}
			stream, others = append(stream, p...), append(others, p...)
		}
		var passed []byte
		for rest := stream; len(rest) > 0; {
			n := min(1+r.Intn(1+int(most)*3), len(rest))
			chunk := bytes.Clone(rest[:n])
			passed = append(passed, e.take(chunk)...)
			rest = rest[n:]
		}
		// What passed is a stream of whole packets, and without its leases it is the others.
		var left []byte
		for len(passed) > 0 {
			size, whole := packetSize(passed)
			if !whole || size > len(passed) {
				t.Fatalf("what passed is not whole packets: %x", passed)
			}
			if bytes.Contains(passed[:size], []byte(s.lease)) {
				d.leases++
			} else {
				left = append(left, passed[:size]...)
			}
			passed = passed[size:]
		}
		if !bytes.Equal(left, others) {
			t.Errorf("other packets were changed")
		}
		if d.leases != int(seq) {
			t.Errorf("%d leases were heard or passed, want %d", d.leases, seq)
		}
	})
}

// counted is a Handler that counts leases and hears nothing else.
type counted struct {
	Handler
	leases int
}

func (c *counted) Lease(Peer, wire.Lease) { c.leases++ }

func TestALeaseDoesNotOvertakeTheStatusBeforeIt(t *testing.T) {
	d := &counted{}
	s := &session{peer: Peer{Node: "pi-1"}, lease: wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelLease), rate: newBucket(1e9)}
	s.established.Store(true)
	e := leaseReader{session: s, b: &Broker{cfg: Config{Handler: d}}}
	status := bytes.Join(publishPacket(message{topic: "fleet/v1/nodes/pi-1/status", payload: []byte("{}")}), nil)
	lease := bytes.Join(publishPacket(message{topic: s.lease, payload: wire.AppendLease(nil, wire.Lease{Boot: "b1", Seq: 1})}), nil)
	if rest := e.take(append(bytes.Clone(status), lease...)); d.leases != 0 || len(rest) != len(status)+len(lease) {
		t.Errorf("the lease behind a status was heard first: %d heard, %d bytes left", d.leases, len(rest))
	}
	if rest := e.take(bytes.Clone(lease)); d.leases != 1 || len(rest) != 0 {
		t.Errorf("the next lease was not taken: %d heard, %d bytes left", d.leases, len(rest))
	}
}
