package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

func TestAReplyStopsAtSixtyFourChunksUntilTheHubAcknowledges(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		s := l.Stream("r1")
		done := make(chan error, 1)
		go func() {
			for range 100 {
				if err := s.Send(context.Background(), wire.Reply{Data: []byte("x")}); err != nil {
					done <- err
					return
				}
			}
			done <- s.Send(context.Background(), wire.Reply{EOF: true})
		}()
		time.Sleep(time.Second)
		count := func() int { return with(h, func(h *hub) int { return len(h.replies) }) }
		if count() != 64 {
			t.Fatalf("%d chunks without acknowledgement, want 64", count())
		}
		h.request("a1", wire.Request{Type: wire.RequestAck, Of: "other", Seq: 63})
		time.Sleep(time.Second)
		if count() != 64 {
			t.Fatal("an acknowledgement of another reply opened the window")
		}
		h.request("a2", wire.Request{Type: wire.RequestAck, Of: "r1", Seq: 9})
		time.Sleep(time.Second)
		if count() != 74 {
			t.Fatalf("%d chunks after ten were acknowledged, want 74", count())
		}
		// The hub misses the next chunk, so the device repeats the newest one.
		time.Sleep(probeAfter)
		if last := with(h, func(h *hub) wire.Reply { return h.replies[len(h.replies)-1] }); count() < 75 || last.Seq != 73 {
			t.Fatalf("the newest chunk was not repeated: %d chunks, the last is %d", count(), last.Seq)
		}
		h.request("a3", wire.Request{Type: wire.RequestAck, Of: "r1", Seq: 1 << 63}) // a number above the last chunk sent
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if last := with(h, func(h *hub) wire.Reply { return h.replies[len(h.replies)-1] }); !last.EOF || last.Seq != 100 {
			t.Errorf("the last chunk is %+v, want number 100 with EOF", last)
		}
	})
}

func TestLargeDataIsSplitIntoChunks(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		s := l.Stream("r1")
		if err := s.Send(context.Background(), wire.Reply{Data: data}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := with(h, func(h *hub) (b []byte) {
			for _, r := range h.replies {
				b = append(b, r.Data...)
			}
			return b
		})
		if !bytes.Equal(got, data) {
			t.Errorf("the received data differ: %d bytes of %d", len(got), len(data))
		}
	})
}

func TestAReplyEndsWithItsConnection(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		s := l.Stream("r1")
		done := make(chan error, 1)
		go func() {
			for {
				if err := s.Send(context.Background(), wire.Reply{Data: []byte("x")}); err != nil {
					done <- err
					return
				}
			}
		}()
		time.Sleep(time.Second)
		h.mu.Lock()
		h.conn.Close()
		h.mu.Unlock()
		if err := <-done; !errors.Is(err, ErrOffline) {
			t.Errorf("got %v, want ErrOffline", err)
		}
		if err := s.Send(context.Background(), wire.Reply{EOF: true}); !errors.Is(err, ErrOffline) {
			t.Errorf("after the end of the connection: got %v, want ErrOffline", err)
		}
	})
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	good := func() Config {
		a := &agent{}
		return Config{Node: "pi-1", Boot: "b1", Server: "mqtts://hub:8883", TLS: &tls.Config{}, Source: a, Sink: a}
	}
	if _, err := New(good()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		mod        func(*Config)
	}{
		{"a node name in upper case", "DNS-1123", func(c *Config) { c.Node = "PI" }},
		{"no boot", "boot is missing", func(c *Config) { c.Boot = "" }},
		{"an invalid machine id", "16 lower case hex", func(c *Config) { c.Machine = "x" }},
		{"no address", "must be like mqtts://", func(c *Config) { c.Server = "hub" }},
		{"HTTP", `scheme "https" is not known`, func(c *Config) { c.Server = "https://hub" }},
		{"no certificate", "join the fleet first", func(c *Config) { c.TLS = nil }},
		{"no encryption over the network", "use mqtts://192.0.2.1:1883", func(c *Config) { c.Server = "mqtt://192.0.2.1:1883" }},
		{"a prefix with a wildcard", "prefix", func(c *Config) { c.Prefix = "#" }},
		{"no Source", "no Source", func(c *Config) { c.Source = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := good()
			c.mod(&cfg)
			if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error about %s", err, c.want)
			}
		})
	}
	loopback := good()
	loopback.Server, loopback.TLS = "mqtt://[::1]:1883", nil
	if _, err := New(loopback); err != nil {
		t.Error(err)
	}
}

// paho writes its pings concurrently; a ping inside a large packet would break the connection.
func TestPacketsAreNotInterleaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := &slowLine{}
		raw := line.New(under, writeTimeout)
		c := newConn(raw, raw, new(atomic.Int64))
		large := bytes.Repeat([]byte("a"), 5*atOnce)
		go func() { _, _ = c.Write(large) }()
		time.Sleep(2500 * time.Millisecond)
		_, _ = c.Write([]byte("b"))
		if want := string(large) + "b"; string(under.got) != want {
			t.Errorf("the small packet is at byte %d of %d, want it at the end", bytes.IndexByte(under.got, 'b'), len(under.got))
		}
	})
}

// A slowLine carries 4 KiB per second.
type slowLine struct {
	net.Conn
	mu  sync.Mutex
	got []byte
}

const atOnce = 4 << 10

func (s *slowLine) SetReadDeadline(time.Time) error  { return nil }
func (s *slowLine) SetWriteDeadline(time.Time) error { return nil }
func (s *slowLine) Write(p []byte) (int, error) {
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(p), atOnce)
	if s.got = append(s.got, p[:n]...); n < len(p) {
		return n, os.ErrDeadlineExceeded
	}
	return n, nil
}
