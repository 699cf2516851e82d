package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

// Each of these tests is about a known weakness of MQTT brokers. Each fails without its
// counter-measure. Their devices use mochi's codec, so that a bug of the broker's codec is not on
// both sides.

// bubble runs a test in fake time, with a broker on an in-memory network.
func bubble(t *testing.T, d *recorder, test func(t *testing.T, b *Broker, n *pipe.Net)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := pipe.New()
		test(t, start(t, Config{Handler: d, DevListen: n}), n)
	})
}

const lostWill = `{"boot":"b1","state":"lost"}`

func TestWillsAreCheckedAgainstTheIdentity(t *testing.T) {
	own := topicOf("pi-1", wire.ChannelPresence)
	for _, c := range []struct {
		name string
		mod  func(*packets.Packet)
		code int
	}{
		{"its own presence is allowed", willOf(own, lostWill), 0},
		{"another node's presence", willOf(topicOf("pi-2", wire.ChannelPresence), lostWill), 5},
		{"its own lease", willOf(topicOf("pi-1", wire.ChannelLease), lostWill), 5},
		{"a retained will", func(pk *packets.Packet) { willOf(own, lostWill)(pk); pk.Connect.WillRetain = true }, 5},
		{"a will of 513 bytes", willOf(own, `{"boot":"b1","state":"lost","reason":"`+strings.Repeat("x", 513-39)+`"}`), 5},
		{"a will with shutdown", willOf(own, `{"boot":"b1","state":"shutdown"}`), 5},
		{"a will without a boot", willOf(own, `{"state":"lost"}`), 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, &recorder{}, func(t *testing.T, _ *Broker, n *pipe.Net) {
				conn, _ := n.Dial(t.Context(), "pi-1")
				_, code := connect(t, conn, connectPacket("pi-1", c.mod))
				if code != c.code {
					t.Errorf("CONNACK %d, want %d", code, c.code)
				}
				conn.Close()
			})
		})
	}
}

func TestAWillPrecedesTheNextSessionAndHasItsBoot(t *testing.T) {
	const sessions = 300
	d := &recorder{}
	bubble(t, d, func(t *testing.T, _ *Broker, n *pipe.Net) {
		for i := range sessions {
			dialPipe(t, n, "pi-1", willOf(topicOf("pi-1", wire.ChannelPresence), fmt.Sprintf(`{"boot":"b%d","state":"lost"}`, i)))
		}
		synctest.Wait()
		heard := d.all()
		var want []string
		for i := range sessions {
			want = append(want, "connected pi-1 ")
			if i < sessions-1 {
				want = append(want, fmt.Sprintf("presence pi-1 b%d lost", i), "disconnected pi-1 ")
			}
		}
		if !slices.Equal(heard, want) {
			t.Errorf("takeovers were reported in the wrong order:\n got %.600q\nwant %.600q", heard, want)
		}
	})
}

func TestADisconnectPacketPublishesNoWill(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, _ *Broker, n *pipe.Net) {
		c := dialPipe(t, n, "pi-1", willOf(topicOf("pi-1", wire.ChannelPresence), lostWill))
		c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ProtocolVersion: 4})
		synctest.Wait()
		if got := d.all(); !slices.Equal(got, []string{"connected pi-1 ", "disconnected pi-1 "}) {
			t.Errorf("received %q", got)
		}
	})
}

func TestADeviceThatStopsReadingIsDisconnected(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		stuck := dialPipe(t, n, "pi-1", nil)
		stuck.subscribeOwn("pi-1")
		good := dialPipe(t, n, "pi-2", nil)
		good.subscribeOwn("pi-2")
		began := time.Now()
		for range 100 { // pi-1 never reads them
			_ = b.Publish("pi-1", wire.ChannelDesired, make([]byte, wire.MaxToDevice))
			_ = b.Request("pi-1", "1", wire.Request{Type: wire.RequestRefresh})
		}
		if err := b.Publish("pi-2", wire.ChannelDesired, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if pk, err := good.read(); err != nil || string(pk.Payload) != "x" {
			t.Fatalf("pi-2 got %v, %v", pk.Payload, err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("pi-1 blocked the hub for %s", waited)
		}
		time.Sleep(writeTimeout + time.Millisecond)
		synctest.Wait()
		if b.Online("pi-1") || !b.Online("pi-2") {
			t.Errorf("after %s: pi-1 online %v, pi-2 online %v; want only pi-2", writeTimeout, b.Online("pi-1"),
				b.Online("pi-2"))
		}
		if s := b.Stats().Dropped; s["superseded"] < 90 {
			t.Errorf("100 desired states wait at once: %v", s)
		}
	})
}

// A large desired state goes over a slow connection. Every 16 KiB has its own deadline, and the
// device's messages are handled meanwhile.
func TestASlowReaderGetsAllDataAndCanSend(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		slow := dialPipe(t, n, "pi-1", nil)
		slow.subscribeOwn("pi-1")
		if err := b.Publish("pi-1", wire.ChannelDesired, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		_ = slow.conn.SetReadDeadline(time.Time{})
		got, buf := 0, make([]byte, 16<<10)
		for got < 1<<20 {
			time.Sleep(time.Second)
			slow.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, ProtocolVersion: 4, PacketID: 7, TopicName: topicOf("pi-1", wire.ChannelLease), Payload: fmt.Appendf(nil, `{"boot":"b1","seq":%d}`, got)})
			synctest.Wait()
			m, err := slow.r.Read(buf)
			if err != nil {
				t.Fatalf("disconnected after %d bytes: %v", got, err)
			}
			got += m
		}
		if leases := d.count("lease pi-1"); leases < 60 {
			t.Errorf("%d leases were received in more than 60 seconds of reading", leases)
		}
	})
}

func TestALargeConnectAllocatesNoMemory(t *testing.T) {
	l := loopback(t)
	d := &recorder{}
	b := start(t, Config{Handler: d, DevListen: l})
	before := memory()
	for range 100 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte{0x10, 0xff, 0xff, 0xff, 0x7f}) // CONNECT of 256 MiB
	}
	await(t, "100 refusals", func() bool { return b.Stats().Refused["too-large"] == 100 })
	if grown := memory() - before; grown > 32<<20 {
		t.Errorf("100 headers of 5 bytes use %d MiB of memory", grown>>20)
	}
}

func TestALargePublishAllocatesNoMemory(t *testing.T) {
	l := loopback(t)
	d := &recorder{}
	b := start(t, Config{Handler: d, DevListen: l})
	c := dialDev(t, l.Addr(), "pi-1", nil)
	before := memory()
	_, _ = c.conn.Write([]byte{0x30, 0xff, 0xff, 0xff, 0x7f}) // PUBLISH of 256 MiB
	await(t, "the end of the connection", func() bool { return d.count("disconnected pi-1") == 1 })
	if grown := memory() - before; grown > 32<<20 {
		t.Errorf("a header of 5 bytes uses %d MiB of memory", grown>>20)
	}
	if b.Stats().Offences["packet-too-large"] != 1 || d.count("offence pi-1 sent a packet of more than") != 1 {
		t.Errorf("the reason was not reported: %q", d.all())
	}
}

func TestALargeTLSHandshakeIsRefused(t *testing.T) {
	ca := newAuthority(t)
	l := loopback(t)
	b := start(t, Config{Handler: &recorder{}, Listen: l, TLS: ca.server()})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The client announces a handshake message of 64 KiB in records of 16 KiB, and sends three
	// records.
	record := append([]byte{22, 3, 1, 0x40, 0}, make([]byte, 0x4000)...)
	copy(record[5:], []byte{1, 0, 0xff, 0xff})
	for range 3 { // more than the broker reads before CONNECT, less than TLS would read
		_, _ = c.Write(record)
	}
	began := time.Now()
	await(t, "a refusal", func() bool { return b.Stats().Refused["tls"] == 1 })
	if took := time.Since(began); took > connectTimeout/2 {
		t.Errorf("refused only after %s, by the deadline instead of the limit", took)
	}
}

func TestAnUnfinishedConnectEndsAfterTenSeconds(t *testing.T) {
	whole := encode(connectPacket("pi-1", nil))
	for _, c := range []struct {
		name string
		send []byte // sent one byte per second
	}{
		{"silence", nil},
		{"a CONNECT of one byte per second", whole},
		{"only a header", whole[:2]},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, &recorder{}, func(t *testing.T, b *Broker, n *pipe.Net) {
				conn, _ := n.Dial(t.Context(), "pi-1")
				began := time.Now()
				go func() {
					for _, octet := range c.send {
						if _, err := conn.Write([]byte{octet}); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}()
				_, err := conn.Read(make([]byte, 1))
				if took := time.Since(began); err == nil || took != connectTimeout {
					t.Errorf("closed after %s (%v), want %s", took, err, connectTimeout)
				}
				conn.Close()
				time.Sleep(time.Second) // until the writer has ended
			})
		})
	}
}

func TestTheClientIDMustBelongToTheIdentity(t *testing.T) {
	for _, c := range []struct {
		id   string
		code int
	}{
		{"pi-1", 0}, {"pi-1:3f2a9c0d1e4b5a67", 0},
		{"pi-2", 2}, {"pi-2:3f2a9c0d1e4b5a67", 2}, {"", 2}, {"#", 2}, {"pi-1:", 2}, {"pi-1:x", 2}, {"pi-1/a", 2},
		{strings.Repeat("x", 3<<10), 2},
	} {
		t.Run(fmt.Sprintf("%.30q", c.id), func(t *testing.T) {
			bubble(t, &recorder{}, func(t *testing.T, b *Broker, n *pipe.Net) {
				victim := dialPipe(t, n, "pi-2", nil)
				conn, _ := n.Dial(t.Context(), "pi-1")
				_, code := connect(t, conn, connectPacket("pi-1", func(pk *packets.Packet) { pk.Connect.ClientIdentifier = c.id }))
				if code != c.code {
					t.Errorf("CONNACK %d, want %d", code, c.code)
				}
				victim.ping() // the victim's session was not taken over
				conn.Close()
			})
		})
	}
}

func TestANodeHasOneSession(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		machine := func(m string) func(*packets.Packet) {
			return func(pk *packets.Packet) { pk.Connect.ClientIdentifier = wire.ClientID("pi-1", m) }
		}
		dialPipe(t, n, "pi-1", machine("3f2a9c0d1e4b5a67"))
		second := dialPipe(t, n, "pi-1", machine("0000000000000000"))
		second.ping()
		if want := []string{"connected pi-1 3f2a9c0d1e4b5a67", "disconnected pi-1 3f2a9c0d1e4b5a67",
			"connected pi-1 0000000000000000"}; !slices.Equal(d.all(), want) {
			t.Errorf("received %q, want %q", d.all(), want)
		}
		if s := b.Stats(); s.Sessions != 1 || s.Connections != 1 {
			t.Errorf("%d sessions, %d connections, want one", s.Sessions, s.Connections)
		}
	})
}

func TestNothingIsRetained(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		c := dialPipe(t, n, "pi-1", nil)
		for i := range 300 {
			topic := fmt.Sprintf("fleet/v1/nodes/pi-1/status/%d", i)
			if i%3 == 0 {
				topic = topicOf("pi-1", wire.ChannelStatus)
			}
			if !c.publish1(topic, `{"boot":"b1","seq":1}`, true) {
				t.Fatal("a retained publish was not acknowledged: the device would repeat it for ever")
			}
		}
		if d.count("status") != 0 {
			t.Error("a retained status was handled")
		}
		if got := b.Stats().Offences["retain"]; got != 300 {
			t.Errorf("%d retained messages are counted, want 300", got)
		}
	})
}

func TestAnAcknowledgementWaitsForTheStore(t *testing.T) {
	d := &recorder{status: func(context.Context) error { time.Sleep(time.Second); return nil }}
	bubble(t, d, func(t *testing.T, _ *Broker, n *pipe.Net) {
		c := dialPipe(t, n, "pi-1", nil)
		began := time.Now()
		if !c.publish1(topicOf("pi-1", wire.ChannelStatus), `{"boot":"b1","seq":1}`, false) {
			t.Fatal("no PUBACK")
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("PUBACK came after %s, but storing takes 1s", took)
		}
	})
}

func TestAMessageThatCannotBeStoredIsNotAcknowledged(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	d := &recorder{status: func(context.Context) error {
		if broken.Load() {
			return errors.New("disk is full")
		}
		return nil
	}}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		c := dialPipe(t, n, "pi-1", nil)
		if c.publish1(topicOf("pi-1", wire.ChannelStatus), `{"boot":"b1","seq":1}`, false) {
			t.Error("a status that was not stored was acknowledged")
		}
		c.ping() // the device is still connected
		broken.Store(false)
		if !c.publish1(topicOf("pi-1", wire.ChannelStatus), `{"boot":"b1","seq":1}`, false) || d.count("status pi-1 1") != 1 {
			t.Error("the repeated status was not stored")
		}
	})
}

func TestAConnectionCostsLittleMemory(t *testing.T) {
	const connections = 300
	l := loopback(t)
	b := start(t, Config{Handler: &recorder{}, DevListen: l})
	dialDev(t, l.Addr(), "warm", nil).subscribeOwn("warm")
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range connections {
		node := fmt.Sprintf("pi-%d", i)
		dialDev(t, l.Addr(), node, nil).subscribeOwn(node)
	}
	// The test's own ends use about 5 KiB per connection.
	if each := (heap() - before) / connections; each > 24<<10 {
		t.Errorf("a connection holds %d bytes of heap, both ends counted", each)
	}
	if b.Stats().Sessions != connections+1 {
		t.Errorf("%d sessions", b.Stats().Sessions)
	}
}

func TestNothingIsQueuedForAnAbsentDevice(t *testing.T) {
	bubble(t, &recorder{}, func(t *testing.T, b *Broker, n *pipe.Net) {
		persistent := func(pk *packets.Packet) { pk.Connect.Clean = false }
		c := dialPipe(t, n, "pi-1", persistent)
		c.subscribeOwn("pi-1")
		n.Cut("pi-1")
		synctest.Wait()
		if kept := b.Stats().Sessions; kept != 0 {
			t.Errorf("%d sessions exist for an absent device", kept)
		}
		for range 100 {
			if err := b.Publish("pi-1", wire.ChannelDesired, []byte("old")); !errors.Is(err, ErrOffline) {
				t.Fatalf("publish to an absent device: %v, want ErrOffline", err)
			}
		}
		n.Heal("pi-1")
		conn, _ := n.Dial(t.Context(), "pi-1")
		again, code := connect(t, conn, connectPacket("pi-1", persistent))
		if code != 0 {
			t.Fatalf("CONNACK %d", code)
		}
		if err := b.Publish("pi-1", wire.ChannelDesired, []byte("x")); !errors.Is(err, ErrOffline) {
			t.Errorf("the old subscription still exists: %v", err)
		}
		again.ping() // the next packet is the response, so no old message was queued
		if b.Stats().Sessions != 1 {
			t.Errorf("%d sessions", b.Stats().Sessions)
		}
	})
}

func TestADeviceMayHaveTwoSubscriptions(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		c := dialPipe(t, n, "pi-1", nil)
		for i := range 100 {
			many := make([]string, 100)
			for k := range many {
				many[k] = fmt.Sprintf("fleet/v1/nodes/pi-1/x%d-%d", i, k)
			}
			for _, code := range c.subscribe(many...) {
				if code != 0x80 {
					t.Fatalf("SUBACK %d", code)
				}
			}
		}
		c.subscribeOwn("pi-1")
		c.subscribeOwn("pi-1")
		if err := b.Publish("pi-1", wire.ChannelDesired, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if pk, err := c.read(); err != nil || string(pk.Payload) != "x" {
			t.Errorf("got %q, %v", pk.Payload, err)
		}
		c.ping() // the message comes only once
	})
}

// moody is a listener that fails to accept a few times, as at a file limit.
type moody struct {
	net.Listener
	failures atomic.Int32
}

func (m *moody) Accept() (net.Conn, error) {
	if m.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return m.Listener.Accept()
}

func TestAFailedAcceptIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := pipe.New()
		l := &moody{Listener: n}
		l.failures.Store(20)
		b := start(t, Config{Handler: &recorder{}, DevListen: l})
		began := time.Now()
		dialPipe(t, n, "pi-1", nil)
		if took := time.Since(began); took > 20*time.Second || took < time.Second {
			t.Errorf("accepted again after %s; want a pause that grows to 1s between tries", took)
		}
		if got := b.Stats().AcceptErrors; got != 20 {
			t.Errorf("%d accept errors counted", got)
		}
	})
}

func TestConnectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := pipe.New()
		var said bytes.Buffer
		b := start(t, Config{Handler: &recorder{}, DevListen: n, Limits: Limits{Connections: 10, Greeting: 3},
			Log: slog.New(slog.NewTextHandler(&said, nil))})
		var idle []net.Conn
		for range 8 { // three may begin the handshake, five are refused
			c, err := n.Dial(t.Context(), "idle")
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, c)
		}
		synctest.Wait()
		if s := b.Stats(); s.Connections != 3 || s.Refused["capacity"] != 5 {
			t.Errorf("%d connections, %d refused; want 3 and 5", s.Connections, s.Refused["capacity"])
		}
		if !strings.Contains(said.String(), "3 connections have not finished CONNECT") {
			t.Errorf("the log is %s", &said)
		}
		for _, c := range idle {
			c.Close()
		}
		synctest.Wait()
		time.Sleep(time.Hour) // after an hour the next refusal is logged again
		for i := range 10 {
			dialPipe(t, n, fmt.Sprintf("pi-%d", i), nil)
		}
		c, _ := n.Dial(t.Context(), "one-more")
		if _, code := connect(t, c, connectPacket("one-more", nil)); code != -1 {
			t.Errorf("the eleventh got CONNACK %d", code)
		}
		synctest.Wait()
		if !strings.Contains(said.String(), "10 connections are open") || !strings.Contains(said.String(), "LimitNOFILE=") {
			t.Errorf("the log is %s", &said)
		}
	})
}

func TestSilenceIsDetectedWithAnyKeepAlive(t *testing.T) {
	for _, c := range []struct {
		asked uint16
		cut   time.Duration
	}{{0, 45 * time.Second}, {1, 15 * time.Second}, {10, 15 * time.Second}, {20, 30 * time.Second}, {60,
		45 * time.Second}, {65535, 45 * time.Second}} {
		t.Run(fmt.Sprintf("keep-alive of %ds", c.asked), func(t *testing.T) {
			d := &recorder{}
			bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
				dialPipe(t, n, "pi-1", func(pk *packets.Packet) { pk.Connect.Keepalive = c.asked })
				n.Freeze("pi-1") // a half-open connection: the broker gets no error
				time.Sleep(c.cut - time.Millisecond)
				synctest.Wait()
				if !b.Online("pi-1") {
					t.Fatalf("disconnected before %s", c.cut)
				}
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if b.Online("pi-1") {
					t.Errorf("still online after %s of silence", c.cut)
				}
			})
		})
	}
}

// memory returns the memory that the process has obtained and uses.
func memory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}
