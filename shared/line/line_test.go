package line

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/line/linetest"
)

const slow = 20_000 / 8 // bytes per second of a 20 kbit/s line

// ends returns the two ends of a slow connection. Data written to the first end waits in a small
// queue.
func ends(t *testing.T, rate int64) (client, server net.Conn, l *linetest.Line) {
	t.Helper()
	there := linetest.Listen(t)
	defer there.Close()
	l = linetest.New(t, there.Addr().String(), rate, rate)
	client, err := linetest.Dial(context.Background(), l.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if server, err = there.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server, l
}

// The kernel reports space only when a third of its queue is free. That takes longer than the
// patience, while the peer acknowledges data.
func TestAWriteOverASlowLineContinuesWhileDataMoves(t *testing.T) {
	t.Parallel()
	client, server, _ := ends(t, 4*slow)
	if err := client.(*net.TCPConn).SetWriteBuffer(48 << 10); err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("0123456789abcdef"), 8000)
	got := make(chan []byte, 1)
	go func() {
		all := make([]byte, len(sent))
		_, _ = io.ReadFull(server, all)
		got <- all
	}()
	began := time.Now()
	n, err := New(client, 3*time.Second/2).Write(sent)
	if n != len(sent) || err != nil {
		t.Fatalf("after %s: %d bytes of %d: %v", time.Since(began), n, len(sent), err)
	}
	if !bytes.Equal(<-got, sent) {
		t.Error("the other end received other data")
	}
}

func TestAWriteToAStoppedPeerFails(t *testing.T) {
	const patience = time.Second
	t.Parallel()
	client, _, l := ends(t, slow)
	l.Up.Set(0)
	began := time.Now()
	n, err := New(client, patience).Write(make([]byte, 1<<20))
	if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took < patience ||
		took > 2*patience+time.Second {
		t.Errorf("the write ended after %s: %v; want a failure after the patience of %s", took, err, patience)
	}
	if n == 0 || !strings.Contains(err.Error(), "nothing was taken for") ||
		!strings.Contains(err.Error(), "bytes wait") {
		t.Errorf("wrote %d bytes; the error is %q", n, err)
	}
}

func TestAWriteFailsWhenTheLineDies(t *testing.T) {
	const patience = 2 * time.Second
	t.Parallel()
	client, server, l := ends(t, slow)
	go func() { _, _ = io.Copy(io.Discard, server) }()
	time.AfterFunc(3*time.Second, func() { l.Up.Set(0) })
	began := time.Now()
	_, err := New(client, patience).Write(make([]byte, 1<<20))
	if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took < 3*time.Second ||
		took > 3*time.Second+5*patience {
		t.Errorf("after %s: %v, want a timeout after 3 s", took, err)
	}
}

// A write to a peer that acknowledges one byte at a time fails at the deadline of the whole packet.
func TestTheCallersDeadlineHoldsWhileDataMoves(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Conn, time.Time)
	}{
		{"set before the write", func(c *Conn, at time.Time) { _ = c.SetWriteDeadline(at) }},
		{"set during the write", func(c *Conn, at time.Time) {
			time.AfterFunc(200*time.Millisecond, func() { _ = c.SetWriteDeadline(at) })
		}},
		{"both deadlines set during the write", func(c *Conn, at time.Time) {
			time.AfterFunc(200*time.Millisecond, func() { _ = c.SetDeadline(at) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				defer b.Close()
				go func() {
					for one := make([]byte, 1); ; time.Sleep(100 * time.Millisecond) {
						if _, err := b.Read(one); err != nil {
							return
						}
					}
				}()
				conn := New(a, time.Second)
				began := time.Now()
				c.set(conn, began.Add(5*time.Second))
				_, err := conn.Write(make([]byte, 1<<20))
				if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != 5*time.Second {
					t.Errorf("after %s: %v, want a timeout after 5 s", took, err)
				}
				b.Close()
				time.Sleep(time.Second)
			})
		})
	}
}

func TestAReadContinuesWhileDataArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		conn := New(a, time.Second)
		var silence atomic.Int64
		silence.Store(int64(3 * time.Second))
		conn.Listen(func() time.Duration { return time.Duration(silence.Load()) })
		go func() {
			for range 10 {
				time.Sleep(2 * time.Second)
				_, _ = b.Write([]byte{1})
			}
		}()
		began := time.Now()
		if n, err := io.ReadFull(conn, make([]byte, 10)); n != 10 {
			t.Fatalf("read %d bytes of 10: %v", n, err)
		}
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("the reads took %s, want 20s", took)
		}
		// At Pace, ten bytes take ten thousandths of a second.
		if got := conn.Received(); got < 9*time.Millisecond || got > 10*time.Millisecond {
			t.Errorf("Received is %s, want 9ms to 10ms", got)
		}
		began = time.Now()
		// the line turns out to be slower
		time.AfterFunc(2*time.Second, func() { silence.Store(int64(5 * time.Second)) })
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) ||
			time.Since(began) != 5*time.Second {
			t.Errorf("the read ended after %s of silence: %v", time.Since(began), err)
		}
		for _, during := range []bool{false, true} {
			began = time.Now()
			if during {
				time.AfterFunc(time.Second/2, func() { _ = conn.SetReadDeadline(began.Add(time.Second)) })
			} else {
				_ = conn.SetReadDeadline(began.Add(time.Second))
			}
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) ||
				time.Since(began) != time.Second {
				t.Errorf("the read with the caller's deadline ended after %s: %v", time.Since(began), err)
			}
			_ = conn.SetReadDeadline(time.Time{})
		}
		began = time.Now() // without the deadline the limit of silence still applies
		time.AfterFunc(time.Second, func() { _ = conn.SetReadDeadline(time.Time{}) })
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) ||
			time.Since(began) != 5*time.Second {
			t.Errorf("the read ended after %s of silence: %v", time.Since(began), err)
		}
	})
}

// A noted connection accepts all data and records its write deadlines.
type noted struct {
	net.Conn
	set      int
	deadline time.Time
}

func (n *noted) Write(p []byte) (int, error) { return len(p), nil }
func (n *noted) SetWriteDeadline(until time.Time) error {
	n.set, n.deadline = n.set+1, until
	return nil
}

// A deadline that stays set wakes the process when it passes. For an answer to a device, that costs
// more than the answer.
func TestAWriteResetsItsDeadline(t *testing.T) {
	n := &noted{}
	c := New(n, time.Second)
	_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if n.set != 2 || !n.deadline.IsZero() {
		t.Errorf("%d deadlines were set, the last is %v; want 2, the last zero", n.set, n.deadline)
	}
}

// A full connection has no space in its queue until the queue is empty.
type full struct {
	*net.TCPConn
	until atomic.Pointer[time.Time]
}

func (f *full) SetWriteDeadline(t time.Time) error { f.until.Store(&t); return nil }
func (f *full) Write(p []byte) (int, error) {
	for New(f.TCPConn, 0).queued() > 0 {
		if time.Sleep(10 * time.Millisecond); time.Now().After(*f.until.Load()) {
			return 0, os.ErrDeadlineExceeded
		}
	}
	return len(p), nil
}

// The queue has no space for many times the patience, while the peer acknowledges earlier data.
func TestAnAcknowledgementIsProgressWithAFullQueue(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the queue's length is unknown on this system")
	}
	t.Parallel()
	for _, c := range []struct {
		name  string
		fails bool
	}{{"until the queue is empty", false}, {"until the line dies", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client, server, l := ends(t, 4*slow)
			go func() { _, _ = io.Copy(io.Discard, server) }()
			_ = client.(*net.TCPConn).SetWriteBuffer(64 << 10)
			_ = client.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			waits, _ := client.Write(make([]byte, 50<<10))
			_ = client.SetWriteDeadline(time.Time{})
			if c.fails {
				time.AfterFunc(2*time.Second, func() { l.Up.Set(0) })
			}
			began := time.Now()
			n, err := New(&full{TCPConn: client.(*net.TCPConn)}, time.Second).Write([]byte("x"))
			took := time.Since(began)
			switch {
			case took < 2*time.Second:
				t.Errorf("with %d queued bytes the write ended after only %s: %v", waits, took, err)
			case c.fails && (n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || took > time.Minute):
				t.Errorf("after %s: wrote %d, %v; want a failure", took, n, err)
			case !c.fails && (n != 1 || err != nil):
				t.Errorf("after %s: wrote %d, %v", took, n, err)
			}
		})
	}
}
