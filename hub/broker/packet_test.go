package broker

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"slices"
	"testing"
	"testing/synctest"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

// FuzzPacketReader reads packets in pieces. Each packet is returned complete and unchanged. A
// packet that is too large or has an invalid length is an error.
func FuzzPacketReader(f *testing.F) {
	f.Add(int64(1), uint8(7))
	f.Add(int64(2), uint8(1))
	f.Add(int64(3), uint8(255))
	f.Fuzz(func(t *testing.T, seed int64, most uint8) {
		r := rand.New(rand.NewSource(seed))
		var sent [][]byte
		for range 30 {
			size := []int{0, 10, smallPacket - 20, smallPacket, 3000, 40_000}[r.Intn(6)]
			payload := make([]byte, r.Intn(size+1))
			r.Read(payload)
			p := bytes.Join(publishPacket(message{topic: "fleet/v1/nodes/pi-1/status", payload: payload}), nil)
			if r.Intn(4) == 0 {
				p = []byte{0xc0, 0x00} // PINGREQ
			}
			sent = append(sent, p)
		}
		in := &packetReader{from: &pieces{bytes.NewReader(bytes.Join(sent, nil)), r, 1 + int(most)*3}}
		for i, p := range sent {
			head, body, err := in.next()
			if err != nil {
				t.Fatalf("packet %d: %v", i, err)
			}
			if _, header := packetSize(p); head != p[0] || !bytes.Equal(body, p[header:]) {
				t.Fatalf("packet %d: the %d bytes read differ from the sent ones", i, len(body))
			}
		}
		if _, _, err := in.next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the last packet: %v", err)
		}
	})
}

// pieces is a reader that returns a few bytes per read.
type pieces struct {
	from io.Reader
	rand *rand.Rand
	most int
}

func (p *pieces) Read(b []byte) (int, error) {
	return p.from.Read(b[:min(len(b), 1+p.rand.Intn(p.most))])
}

func TestAnInvalidPacketIsReportedAndEndsTheConnection(t *testing.T) {
	for _, c := range []struct {
		name   string
		packet []byte
	}{
		{"a length of five bytes", []byte{0x30, 0xff, 0xff, 0xff, 0xff, 1}},
		{"type 0", []byte{0x00, 0}},
		{"type 15", []byte{0xf0, 0}},
		{"a second CONNECT", encode(connectPacket("pi-1", nil))},
		{"a CONNACK", []byte{0x20, 2, 0, 0}},
		{"a SUBACK", []byte{0x90, 3, 0, 1, 0}},
		{"a PINGREQ with a body", []byte{0xc0, 1, 0}},
		{"a PINGREQ with flags", []byte{0xc1, 0}},
		{"PUBLISH without a topic", []byte{0x30, 1, 0}},
		{"a topic longer than its packet", []byte{0x30, 3, 0, 2, 'x'}},
		{"QoS 1 without an identifier", []byte{0x32, 3, 0, 1, 'x'}},
		{"QoS 1 with identifier 0", []byte{0x32, 5, 0, 1, 'x', 0, 0}},
		{"QoS 2", []byte{0x34, 5, 0, 1, 'x', 0, 1}},
		{"QoS 3", []byte{0x36, 5, 0, 1, 'x', 0, 1}},
		{"SUBSCRIBE with other flags", []byte{0x80, 6, 0, 1, 0, 1, 'x', 0}},
		{"SUBSCRIBE to nothing", []byte{0x82, 2, 0, 1}},
		{"SUBSCRIBE with identifier 0", []byte{0x82, 6, 0, 0, 0, 1, 'x', 0}},
		{"SUBSCRIBE at QoS 3", []byte{0x82, 6, 0, 1, 0, 1, 'x', 3}},
		{"a filter longer than its packet", []byte{0x82, 6, 0, 1, 0, 9, 'x', 0}},
		{"UNSUBSCRIBE without an identifier", []byte{0xa2, 0}},
		{"a filter to unsubscribe that is longer than its packet", []byte{0xa2, 5, 0, 1, 0, 9, 'x'}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &recorder{}
			bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
				dev := dialPipe(t, n, "pi-1", nil)
				_, _ = dev.conn.Write(c.packet)
				if pk, err := dev.read(); err == nil {
					t.Errorf("answered with %v", pk.FixedHeader.Type)
				}
				synctest.Wait()
				if b.Online("pi-1") || d.count("offence pi-1 sent a packet that is not MQTT 3.1.1: ") != 1 {
					t.Errorf("online %t, received %q", b.Online("pi-1"), d.all())
				}
			})
		})
	}
}

func TestALeaseDoesNotOvertakeTheStatusBeforeIt(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, _ *Broker, n *pipe.Net) {
		dev := dialPipe(t, n, "pi-1", nil)
		publish := func(c wire.Channel, payload string) []byte {
			return bytes.Join(publishPacket(message{topic: topicOf("pi-1", c), payload: []byte(payload)}), nil)
		}
		_, _ = dev.conn.Write(slices.Concat(publish(wire.ChannelStatus, `{"boot":"b1","seq":1}`), publish(wire.ChannelLease, `{"boot":"b1","seq":2}`), publish(wire.ChannelStatus, `{"boot":"b1","seq":3}`)))
		dev.ping()
		if want := []string{"connected pi-1 ", "status pi-1 1", "lease pi-1 2",
			"status pi-1 3"}; !slices.Equal(d.all(), want) {
			t.Errorf("received %q, want %q", d.all(), want)
		}
	})
}

// The hub handles messages that a device sends right after CONNECT, before the CONNACK.
func TestADeviceNeedNotWaitForConnack(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		c, _ := n.Dial(t.Context(), "pi-1")
		defer c.Close()
		lease := bytes.Join(publishPacket(message{topic: topicOf("pi-1", wire.ChannelLease), payload: []byte(`{"boot":"b1","seq":2}`)}), nil)
		go func() {
			_, _ = c.Write(slices.Concat(encode(connectPacket("pi-1", nil)), bytes.Repeat(lease, 20)))
		}()
		_, _ = io.ReadFull(c, make([]byte, 4))
		synctest.Wait()
		if d.count("lease pi-1 2") != 20 {
			t.Errorf("received %q", d.all())
		}
	})
}

// After UNSUBSCRIBE a device receives no more requests.
func TestUnsubscribe(t *testing.T) {
	bubble(t, &recorder{}, func(t *testing.T, b *Broker, n *pipe.Net) {
		dev := dialPipe(t, n, "pi-1", nil)
		dev.subscribeOwn("pi-1")
		own := wire.Filters(wire.DefaultPrefix, "pi-1")[0]
		_, _ = dev.conn.Write(slices.Concat([]byte{0xa2, byte(4 + len(own)), 0, 7, 0, byte(len(own))}, []byte(own)))
		if pk, err := dev.read(); err != nil || pk.FixedHeader.Type != 11 {
			t.Fatalf("got %v %v, want UNSUBACK", pk.FixedHeader.Type, err)
		}
		if err := b.Publish("pi-1", wire.ChannelDesired, []byte("x")); !errors.Is(err, ErrOffline) {
			t.Errorf("published: %v", err)
		}
		if err := b.Request("pi-1", "r", wire.Request{Type: wire.RequestRefresh}); err != nil {
			t.Errorf("the second subscription: %v", err)
		}
	})
}
