// Package line distinguishes a slow connection from a dead one.
//
// A Conn wraps a TCP connection, below TLS, and counts bytes: a write continues while the peer
// accepts data, a read while data arrives. That the kernel has accepted bytes proves little: at 20
// kbit/s its queue is full for seconds while the peer acknowledges. So on Linux the Conn reads the
// queue's length (SIOCOUTQ: unacknowledged bytes); elsewhere written bytes count. It knows no
// protocol: callers limit a whole packet by a deadline, as on any connection. An idle Conn has no
// goroutine and no timer. Hub and devices use it.
package line

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Pace is the rate, in bytes per second, of the slowest accepted connection. Callers limit the time
// of a whole packet by it, because a peer could otherwise keep a connection open with one byte at a
// time.
const Pace = 1 << 10

// Takes returns the time that a number of bytes needs at Pace.
func Takes(bytes int) time.Duration { return time.Duration(bytes) * time.Second / Pace }

// A Conn is a connection whose writes and reads fail if no data moves. New creates it.
type Conn struct {
	net.Conn
	patience time.Duration // longest time of a write without progress
	received atomic.Int64  // nanoseconds in which data arrived
	straight bool          // only the reader uses it

	mu          sync.Mutex
	silence     func() time.Duration
	read, write half
}

// A half is one direction. The deadline of the wrapped connection is the earlier of the caller's
// deadline and the next check.
type half struct {
	busy        bool
	look, until time.Time // next check and caller's deadline; zero: none
}

// New wraps a connection. A write fails with os.ErrDeadlineExceeded if the peer acknowledges no
// data, of this or an earlier write, for patience.
func New(c net.Conn, patience time.Duration) *Conn { return &Conn{Conn: c, patience: patience} }

// Listen limits reads too: a read fails with os.ErrDeadlineExceeded if no data arrives for
// silence(), which is called before each read and again when that time has passed. Without Listen
// only the deadline limits reads.
func (c *Conn) Listen(silence func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silence = silence
}

// Received returns the total time in which data arrived. A read counts with the time that it
// waited, but at most with the time that its data takes at Pace.
func (c *Conn) Received() time.Duration { return time.Duration(c.received.Load()) }

// looks is the number of checks of the queue within the patience of a waiting write.
const looks = 8

// Write writes all of p or fails.
func (c *Conn) Write(p []byte) (done int, err error) {
	defer c.end(&c.write, c.Conn.SetWriteDeadline) // a deadline that stays set would wake the process
	now := time.Now()
	moved, before := now, -1
	for {
		if err := c.begin(&c.write, earlier(now.Add(c.patience/looks), moved.Add(c.patience)),
			c.Conn.SetWriteDeadline); err != nil {
			return done, err
		}
		n, err := c.Conn.Write(p[done:])
		if done += n; err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return done, err
		}
		if now = time.Now(); c.over(&c.write, now) {
			return done, err
		}
		queued := c.queued()
		if n > 0 || queued < before {
			moved = now
		}
		before = queued
		if waited := now.Sub(moved); waited >= c.patience {
			return done, fmt.Errorf("write to %s: nothing was taken for %s, and %d bytes wait: %w", c.RemoteAddr(),
				waited.Round(time.Millisecond), len(p)-done+max(queued, 0), os.ErrDeadlineExceeded)
		}
	}
}

// Straight passes reads through without a limit, for a reader that detects silence itself. Only the
// reader calls it.
func (c *Conn) Straight(on bool) { c.straight = on }

// Read reads at least one byte.
func (c *Conn) Read(p []byte) (n int, err error) {
	if c.straight {
		return c.Conn.Read(p)
	}
	began := time.Now()
	defer func() {
		if n > 0 {
			c.received.Add(int64(min(time.Since(began), Takes(n))))
		}
	}()
	c.mu.Lock()
	silence := c.silence
	c.mu.Unlock()
	if silence == nil {
		return c.Conn.Read(p)
	}
	defer c.end(&c.read, func(time.Time) error { return nil }) // the next read sets a new deadline
	for {
		if err := c.begin(&c.read, began.Add(silence()), c.Conn.SetReadDeadline); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if now := time.Now(); c.over(&c.read, now) || !now.Before(began.Add(silence())) {
			return 0, err
		}
	}
}

// begin waits in one direction until the next check.
func (c *Conn) begin(h *half, look time.Time, set func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.busy, h.look = true, look
	return set(earlier(look, h.until))
}

func (c *Conn) end(h *half, set func(time.Time) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.busy, h.look = false, time.Time{}
	_ = set(time.Time{})
}

// over reports whether the caller's deadline has passed.
func (c *Conn) over(h *half, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !h.until.IsZero() && !now.Before(h.until)
}

// SetWriteDeadline works as in net.Conn, also during a write.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.write.until = t; !c.write.busy {
		return nil // the next write sets the deadline
	}
	return c.Conn.SetWriteDeadline(earlier(c.write.look, t))
}

// SetReadDeadline works as in net.Conn, also during a read.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.until = t; c.silence != nil && !c.read.busy {
		return nil // the next read sets the deadline
	}
	return c.Conn.SetReadDeadline(earlier(c.read.look, t))
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// earlier returns the earlier of two deadlines; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
