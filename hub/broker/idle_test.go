//go:build linux

package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/hub/broker/idle"
	"flotilla.dev/shared/wire"
)

// isIdle reports whether the node's connection has no goroutine.
func isIdle(b *Broker, node string) bool {
	s := b.session(node)
	return s != nil && s.conn.sock != nil && s.conn.sock.Idle()
}

// leaseBytes returns a lease followed by a ping.
func leaseBytes(node string, seq uint64) []byte {
	p := leasePacket(topicOf(node, wire.ChannelLease),
		wire.AppendLease(nil, wire.Lease{Boot: "b", Seq: seq, Time: time.Now()}))
	return append(p, 0xc0, 0)
}

func (c *client) raw(p []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(p); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) expect(kind byte) {
	c.t.Helper()
	if pk, err := c.read(); err != nil || pk.FixedHeader.Type != kind {
		c.t.Fatalf("got packet %d, %v, want %d", pk.FixedHeader.Type, err, kind)
	}
}

func clumsy(l wire.Lease) {
	if l.Seq == 666 {
		panic("a bug")
	}
}

// both runs a test with and without TLS.
func both(t *testing.T, test func(t *testing.T, d *recorder, b *Broker, dial func(node string) *client)) {
	t.Run("plain", func(t *testing.T) {
		d, l := &recorder{lease: clumsy}, loopback(t)
		b := start(t, Config{Handler: d, DevListen: l})
		test(t, d, b, func(node string) *client {
			return dialDev(t, l.Addr(), node, willOf(topicOf(node, wire.ChannelPresence), `{"boot":"b","state":"lost"}`))
		})
	})
	t.Run("tls", func(t *testing.T) {
		d, l, a := &recorder{lease: clumsy}, loopback(t), newAuthority(t)
		b := start(t, Config{Handler: d, Listen: l, TLS: a.server()})
		test(t, d, b, func(node string) *client {
			c, err := tls.Dial("tcp", l.Addr().String(), a.client(a.device(node)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			cl, code := connect(t, c, connectPacket(node, func(pk *packets.Packet) {
				willOf(topicOf(node, wire.ChannelPresence), `{"boot":"b","state":"lost"}`)(pk)
				pk.Connect.UsernameFlag, pk.Connect.Username = false, nil
			}))
			if code != 0 {
				t.Fatalf("refused with %d", code)
			}
			return cl
		})
	})
}

func TestAnIdleDeviceHasNoGoroutine(t *testing.T) {
	both(t, func(t *testing.T, d *recorder, b *Broker, dial func(string) *client) {
		dial("warm-up").ping()
		before := runtime.NumGoroutine()
		var all []*client
		for _, node := range []string{"pi-0", "pi-1", "pi-2", "pi-3", "pi-4", "pi-5", "pi-6", "pi-7", "pi-8", "pi-9"} {
			c := dial(node)
			c.subscribeOwn(node)
			all = append(all, c)
			await(t, node+" is idle", func() bool { return isIdle(b, node) })
		}
		await(t, "the end of their goroutines", func() bool { return runtime.NumGoroutine() <= before })
		for seq := range uint64(3) {
			for i, c := range all {
				node := "pi-" + string(rune('0'+i))
				c.raw(leaseBytes(node, seq+1))
				c.expect(packets.Pingresp)
			}
		}
		if n := d.count("lease pi-"); n != 30 {
			t.Errorf("%d leases were received, want 30", n)
		}
	})
}

func TestAnIdleDeviceHasNoCertificateInMemory(t *testing.T) {
	both(t, func(t *testing.T, _ *recorder, b *Broker, dial func(string) *client) {
		dial("pi-1").ping()
		await(t, "pi-1 is idle", func() bool { return isIdle(b, "pi-1") })
		secure, ok := b.session("pi-1").conn.Conn.(*tls.Conn)
		if !ok {
			return // without TLS there is no certificate
		}
		state := secure.ConnectionState()
		for _, chain := range append(state.VerifiedChains, state.PeerCertificates) {
			for _, c := range chain {
				if c != nil {
					t.Errorf("the connection holds the certificate of %s", c.Subject)
				}
			}
		}
	})
}

// Each message is handled once and in order, however the bytes are split.
func TestMessagesMayArriveInPieces(t *testing.T) {
	both(t, func(t *testing.T, d *recorder, b *Broker, dial func(string) *client) {
		c := dial("pi-1")
		quietly := func() { t.Helper(); await(t, "idle", func() bool { return isIdle(b, "pi-1") }) }
		event := encode(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, ProtocolVersion: 4,
			PacketID:  7,
			TopicName: topicOf("pi-1", wire.ChannelPresence), Payload: []byte(`{"boot":"b","state":"shutdown"}`)})
		quietly()
		for seq, cut := range []int{1, 2, 3, 40, 100} { // cuts in the header, the topic and the payload
			p := leaseBytes("pi-1", uint64(seq+1))
			c.raw(p[:cut])
			time.Sleep(30 * time.Millisecond) // so that the hub reads the parts separately
			c.raw(p[cut:])
			c.expect(packets.Pingresp)
			quietly()
		}
		c.raw(append(append(leaseBytes("pi-1", 6), event...), leaseBytes("pi-1", 7)...))
		c.expect(packets.Pingresp)
		c.expect(packets.Puback)
		c.expect(packets.Pingresp)
		quietly()
		c.raw(bytes.Repeat(leaseBytes("pi-1", 8), 60)) // more bytes than one read returns
		for range 60 {
			c.expect(packets.Pingresp)
		}
		want := "lease pi-1 1,lease pi-1 2,lease pi-1 3,lease pi-1 4,lease pi-1 5,lease pi-1 6,presence pi-1 b shutdown,lease pi-1 7" + strings.Repeat(",lease pi-1 8", 60)
		if got := strings.Join(d.all(), ","); !strings.HasSuffix(got, want) {
			t.Errorf("received %s\nwant %s", got, want)
		}
	})
}

func TestTheSessionOfAnIdleConnectionEndsOnce(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(b *Broker, c *client)
		will bool
	}{
		"the device's connection breaks": {func(_ *Broker, c *client) { c.conn.Close() }, true},
		"the connection breaks after a lease": {func(_ *Broker, c *client) { c.raw(leaseBytes("pi-1", 9)); c.conn.Close() },
			true},
		"the device sends DISCONNECT":    {func(_ *Broker, c *client) { c.raw([]byte{0xe0, 0}); c.conn.Close() }, false},
		"the hub disconnects the device": {func(b *Broker, _ *client) { b.Disconnect("pi-1") }, true},
		"the device sends invalid MQTT":  {func(_ *Broker, c *client) { c.raw([]byte{0xf0, 0}) }, true},
		"the Handler panics for a lease": {func(b *Broker, c *client) { c.raw(leaseBytes("pi-1", 666)) }, true},
		"the device is silent":           {func(*Broker, *client) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "the device is silent" && testing.Short() {
				t.Skip("-short: silence takes fifteen seconds")
			}
			t.Parallel()
			both(t, func(t *testing.T, d *recorder, b *Broker, dial func(string) *client) {
				c := dial("pi-1")
				await(t, "idle", func() bool { return isIdle(b, "pi-1") })
				end.do(b, c)
				await(t, "the session's end", func() bool { return !b.Online("pi-1") && b.Stats().Connections == 0 })
				await(t, "the call of Disconnected", func() bool { return d.count("disconnected pi-1") == 1 })
				if will := d.count("presence pi-1 b lost"); will != map[bool]int{true: 1}[end.will] {
					t.Errorf("the will was published %d times: %q", will, d.all())
				}
				dial("pi-1").ping() // the node's slot is free
			})
		})
	}
}

// After a pause of its process, the hub reads the packets that have arrived before it expires a
// session.
func TestPendingDataIsReadBeforeASessionExpires(t *testing.T) {
	both(t, func(t *testing.T, d *recorder, b *Broker, dial func(string) *client) {
		c := dial("pi-1")
		await(t, "idle", func() bool { return isIdle(b, "pi-1") })
		s := b.session("pi-1")
		for seq := range uint64(20) { // simulate the deadline; data and deadline may come in either order
			end := time.Now().Add(s.conn.maxSilence) // computed first, so that a connection that is idle again does not expire
			c.raw(leaseBytes("pi-1", seq+1))
			for !s.conn.sock.ExpireAt(end) && d.count("lease pi-1") == int(seq) {
				time.Sleep(time.Millisecond)
			}
			c.expect(packets.Pingresp)
			await(t, "idle", func() bool { return isIdle(b, "pi-1") })
		}
		if n := d.count("lease pi-1"); n != 20 || d.count("disconnected") > 0 {
			t.Errorf("%d leases were received, want 20: %q", n, d.all())
		}
		await(t, "silence", func() bool { return s.conn.sock.ExpireAt(time.Now().Add(s.conn.maxSilence)) })
		await(t, "its end", func() bool { return d.count("disconnected pi-1") == 1 })
	})
}

// If a device disconnects and reconnects at once, its DISCONNECT counts, so no will is published.
func TestAnIdleSessionsLastPacketsPrecedeTheNextSession(t *testing.T) {
	both(t, func(t *testing.T, d *recorder, b *Broker, dial func(string) *client) {
		other := dial("pi-2")
		for i := range 10 {
			c := dial("pi-1")
			await(t, "idle", func() bool { return isIdle(b, "pi-1") })
			other.raw(leaseBytes("pi-2", 1)) // this packet wakes the poller, so that the next tick is some time away
			other.expect(packets.Pingresp)
			c.raw(append(leaseBytes("pi-1", uint64(i+1)), 0xe0, 0))
		}
		await(t, "the end of the last session", func() bool { return !b.Online("pi-1") })
		if leases, wills := d.count("lease pi-1"), d.count("presence"); leases != 10 || wills != 0 {
			t.Errorf("%d leases and %d wills were received, want 10 and 0", leases, wills)
		}
	})
}

// An idle device receives the hub's messages, and a device that does not read blocks
// neither the hub nor another idle device.
func TestAnIdleDeviceThatDoesNotReadBlocksNoOther(t *testing.T) {
	both(t, func(t *testing.T, d *recorder, b *Broker, dial func(string) *client) {
		blocked, other := dial("pi-1"), dial("pi-2")
		blocked.subscribeOwn("pi-1")
		await(t, "idle", func() bool { return isIdle(b, "pi-1") && isIdle(b, "pi-2") })
		large := make([]byte, wire.MaxToDevice)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		defer func() { cancel(); <-over }()
		go func() { // fill the device's socket and outbox
			defer close(over)
			for ctx.Err() == nil {
				_ = b.Publish("pi-1", wire.ChannelDesired, large)
				time.Sleep(time.Millisecond)
			}
		}()
		longest := time.Duration(0)
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
			_ = blocked.conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = blocked.conn.Write(leaseBytes("pi-1", 1)) // the device does not read the responses
			began := time.Now()
			other.raw(leaseBytes("pi-2", 1))
			other.expect(packets.Pingresp)
			longest = max(longest, time.Since(began))
		}
		if longest > 1500*time.Millisecond { // blocking would take five seconds
			t.Errorf("another device waited %s", longest)
		}
	})
}

var _ net.Conn = (*idle.Conn)(nil)
