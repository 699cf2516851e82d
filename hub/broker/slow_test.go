package broker

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/line/linetest"
	"flotilla.dev/shared/wire"
)

// dropByDrop is a connection that writes in small pieces with pauses.
type dropByDrop struct {
	net.Conn
	drop  int
	pause time.Duration
}

func (d *dropByDrop) Write(p []byte) (done int, err error) {
	for piece := range slices.Chunk(p, d.drop) {
		n, err := d.Conn.Write(piece)
		if done += n; err != nil {
			return done, err
		}
		time.Sleep(d.pause)
	}
	return done, nil
}

// MQTT's keep-alive counts complete packets. Here a packet keeps the session alive while it arrives
// at 1 KiB a second.
func TestASlowPacketKeepsTheSessionAlive(t *testing.T) {
	const size = 60 << 10
	for _, c := range []struct {
		name  string
		drop  int
		pause time.Duration
		cut   time.Duration // when the session ends; 0: the packet arrives
	}{
		{"1.2 kB a second", 1200, time.Second, 0},
		{"16 KiB every fourteen seconds", 16 << 10, 14 * time.Second, 0},
		{"500 bytes a second", 512, time.Second, 75 * time.Second},
		// the session ends after the packet's length has arrived
		{"one byte every fourteen seconds", 1, 14 * time.Second, 75 * time.Second},
		{"ten bytes a second", 10, time.Second, 75 * time.Second},
		{"a pause of more than one and a half times the keep-alive", 8 << 10, 16 * time.Second, 15 * time.Second},
	} {
		for _, secure := range []bool{false, true} {
			name := c.name
			if secure {
				name += ", in TLS"
				if c.drop > 8<<10 {
					continue // with TLS each record would have its own pause, and most records are smaller
				}
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ca := newAuthority(t)
					n, d := pipe.New(), &recorder{}
					cfg := Config{Handler: d, DevListen: n}
					if secure {
						cfg.Listen, cfg.DevListen, cfg.TLS = n, nil, ca.server()
					}
					b := start(t, cfg)
					raw, err := n.Dial(t.Context(), "pi-1")
					if err != nil {
						t.Fatal(err)
					}
					drops := &dropByDrop{raw, 1 << 20, 0}
					var conn net.Conn = drops
					if secure {
						conn = tls.Client(drops, ca.client(ca.device("pi-1")))
					}
					_, code := connect(t, conn, connectPacket("pi-1", nil))
					if code != 0 {
						t.Fatalf("refused with %d", code)
					}
					synctest.Wait()
					drops.drop, drops.pause = c.drop, c.pause
					began := time.Now()
					pk := encode(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, ProtocolVersion: 4,
						PacketID: 7, TopicName: topicOf("pi-1", wire.ChannelStatus),
						Payload: []byte(`{"boot":"b1","seq":1,"x":"` + strings.Repeat("x", size-100) + `"}`)})
					_ = raw.SetWriteDeadline(time.Time{})
					go func() { _, _ = conn.Write(pk) }()
					for b.Online("pi-1") && d.count("status pi-1 1") == 0 && time.Since(began) < 10*time.Minute {
						time.Sleep(100 * time.Millisecond)
					}
					took, most := time.Since(began), c.cut
					if secure {
						most += 32 * time.Second // the length is known only after a whole record
					}
					switch {
					case c.cut == 0 && d.count("status pi-1 1") != 1:
						t.Errorf("disconnected after %s", took)
					case c.cut > 0 && (d.count("status pi-1 1") > 0 || !secure && took < c.cut-time.Second ||
						took > most+3*c.pause+time.Second):
						t.Errorf("disconnected after %s, want %s; received %q", took, c.cut, d.all())
					}
					raw.Close()
					time.Sleep(20 * time.Second)
				})
			})
		}
	}
}

// The total time for a packet limits a device that reads a few bytes from time to time.
func TestAReaderOfAHundredBytesASecondIsDisconnected(t *testing.T) {
	bubble(t, &recorder{}, func(t *testing.T, b *Broker, n *pipe.Net) {
		dev := dialPipe(t, n, "pi-1", nil)
		dev.subscribeOwn("pi-1")
		_ = dev.conn.SetDeadline(time.Time{})
		began := time.Now()
		if err := b.Publish("pi-1", wire.ChannelDesired, make([]byte, 100<<10)); err != nil {
			t.Fatal(err)
		}
		go func() {
			for some := make([]byte, 100); ; time.Sleep(time.Second) {
				if _, err := dev.conn.Read(some); err != nil {
					return
				}
			}
		}()
		for b.Online("pi-1") && time.Since(began) < time.Hour {
			time.Sleep(5 * time.Second)
			_, _ = dev.conn.Write(encode(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq},
				ProtocolVersion: 4}))
		}
		if took := time.Since(began); took < 100*time.Second || took > 2*time.Minute {
			t.Errorf("disconnected after %s, want about %s", took, writeTimeout+100*time.Second)
		}
		time.Sleep(2 * time.Second) // until the reader has noticed the end
	})
}

// The same holds for sockets, where the kernel buffers unread data. A dead connection with pending
// data is closed after at most twice the timeout.
func TestADeadConnectionIsClosedInTime(t *testing.T) {
	for _, secure := range []bool{false, true} {
		name := "plain"
		if secure {
			name = "TLS"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca, d, l := newAuthority(t), &recorder{}, linetest.Listen(t)
			cfg := Config{Handler: d, DevListen: l}
			if secure {
				cfg.Listen, cfg.DevListen, cfg.TLS = l, nil, ca.server()
			}
			b := start(t, cfg)
			over := linetest.New(t, l.Addr().String(), 1<<20, 1<<20)
			conn, err := linetest.Dial(context.Background(), over.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if secure {
				conn = tls.Client(conn, ca.client(ca.device("pi-1")))
			}
			dev, code := connect(t, conn, connectPacket("pi-1", nil))
			if code != 0 {
				t.Fatalf("refused with %d", code)
			}
			dev.subscribeOwn("pi-1")
			go func() { // the device sends packets and pings; only the direction to the device is dead
				buf := make([]byte, 4<<10)
				for {
					_ = conn.SetReadDeadline(time.Time{})
					if _, err := conn.Read(buf); err != nil {
						return
					}
				}
			}()
			ping := encode(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}, ProtocolVersion: 4})
			over.Down.Set(20_000 / 8)
			if err := b.Publish("pi-1", wire.ChannelDesired, make([]byte, 200<<10)); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				time.Sleep(time.Second)
				_, _ = conn.Write(ping)
			}
			if !b.Online("pi-1") {
				t.Fatal("the slow connection was closed as dead")
			}
			over.Down.Set(0)
			began := time.Now()
			for b.Online("pi-1") && time.Since(began) < time.Minute {
				time.Sleep(50 * time.Millisecond)
				if time.Since(began).Milliseconds()%1000 < 50 {
					_, _ = conn.Write(ping)
				}
			}
			if took := time.Since(began); took < writeTimeout/2 || took > 2*writeTimeout {
				t.Errorf("the dead connection was closed after %s, want about %s", took, writeTimeout)
			}
		})
	}
}
