// Package linetest simulates a slow line: a TCP proxy on loopback with a rate for each direction.
// Its buffers are small, so that delayed data waits in the sender's queue, as on a real line. Only
// tests call it.
package linetest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Buffer is the size of the socket buffers of a line and of Listen. The kernel doubles it.
const Buffer = 4 << 10

// segment is the size that TCP acknowledges at a time on a radio line. The segments of loopback are
// larger than the buffers, so windows would open in jumps of seconds.
const segment = 536

// A Line forwards connections to Addr in both directions.
type Line struct {
	Addr     string
	Up, Down Way
	Dials    atomic.Int64 // number of connections

	l  net.Listener
	wg sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]bool
}

// A Way is one direction of a line.
type Way struct {
	rate   atomic.Int64 // bytes per second; 0: stopped
	Passed atomic.Int64 // number of forwarded bytes
}

// Set changes the rate in bytes per second. 0 stops the direction.
func (w *Way) Set(rate int64) { w.rate.Store(rate) }

// New creates a line to a TCP address. The test's cleanup closes it.
func New(t testing.TB, to string, up, down int64) *Line {
	t.Helper()
	l := &Line{open: map[net.Conn]bool{}, l: Listen(t)}
	l.Addr = l.l.Addr().String()
	l.Up.Set(up)
	l.Down.Set(down)
	l.wg.Go(func() {
		for {
			c, err := l.l.Accept()
			if err != nil {
				return
			}
			l.Dials.Add(1)
			l.wg.Go(func() { l.carry(c, to) })
		}
	})
	t.Cleanup(func() {
		l.l.Close()
		l.mu.Lock()
		for c := range l.open {
			c.Close()
		}
		l.open = nil
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

// Listen listens on loopback. Accepted connections have small buffers.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{Control: small}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Dial dials with small buffers.
func Dial(ctx context.Context, to string) (net.Conn, error) {
	return (&net.Dialer{Control: small}).DialContext(ctx, "tcp", to)
}

func small(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) // the kernel uses its minimum, 2,304
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, Buffer)
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, segment)
	})
}

func (l *Line) carry(from net.Conn, to string) {
	defer from.Close()
	there, err := Dial(context.Background(), to)
	if err != nil {
		return
	}
	defer there.Close()
	l.mu.Lock()
	if l.open == nil {
		l.mu.Unlock()
		return
	}
	l.open[from], l.open[there] = true, true
	l.mu.Unlock()
	ended := make(chan struct{}, 2)
	end := func() {
		from.Close()
		there.Close()
		ended <- struct{}{} // ends the other direction
	}
	var both sync.WaitGroup
	both.Go(func() { defer end(); l.Up.pass(there, from, ended) })
	both.Go(func() { defer end(); l.Down.pass(from, there, ended) })
	both.Wait()
	l.mu.Lock()
	delete(l.open, from)
	delete(l.open, there)
	l.mu.Unlock()
}

// pass copies at the rate, in pieces of a twentieth of a second. When it ends, it ends the other
// direction.
func (w *Way) pass(to, from net.Conn, ended <-chan struct{}) {
	const tick = 50 * time.Millisecond
	buf := make([]byte, 64<<10)
	for {
		rate := w.rate.Load()
		if rate == 0 {
			select {
			case <-ended:
				return
			case <-time.After(tick):
			}
			continue
		}
		n, err := from.Read(buf[:min(max(rate/20, 1), int64(len(buf)))])
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
			w.Passed.Add(int64(n))
			time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
		}
		if err != nil {
			return
		}
	}
}
