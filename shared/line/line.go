// Package line tells a slow line from a dead one.
//
// A Conn sits below TLS, on what accept or dial returned. What it goes by is bytes, not
// packets and not TLS records: a write lives as long as the other end takes something,
// a read as long as something comes. What the kernel has taken says little: on a line of
// 20 kbit/s its queue is full for seconds before there is room for the next piece, and
// the peer acknowledges all the while. So on Linux the queue is asked (SIOCOUTQ: bytes
// that the peer has not acknowledged). Elsewhere, and where there is no such queue,
// progress is what was written.
//
// It knows no protocol. How long a whole packet may take is the business of those above,
// who say it with a deadline, as on any connection. An idle Conn has no goroutine and no
// timer.
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

// Pace is the slowest line that is taken for one, in bytes a second. By it those above
// bound a whole packet: who takes, or sends, one byte now and then would stay for ever.
const Pace = 1 << 10

// Takes is how long so many bytes take on the slowest line.
func Takes(bytes int) time.Duration { return time.Duration(bytes) * time.Second / Pace }

// A Conn is a connection whose writes and reads end when nothing moves. Make it with New.
type Conn struct {
	net.Conn
	patience time.Duration // of a write
	received atomic.Int64  // nanoseconds in which something was coming
	straight bool          // the reader's

	mu          sync.Mutex
	silence     func() time.Duration
	read, write half
}

// A half is one direction. The deadline of the connection below is the earlier one of
// those that those above have set and the moment at which we look again.
type half struct {
	busy        bool
	look, until time.Time // zero: none
}

// New wraps a connection. A write to it ends with os.ErrDeadlineExceeded when for so long
// nothing of it, or of what was written before it, got anywhere.
func New(c net.Conn, patience time.Duration) *Conn { return &Conn{Conn: c, patience: patience} }

// Listen gives reads an end, too: a read for which nothing comes for so long ends with
// os.ErrDeadlineExceeded. It is asked before each read, and again when that has passed.
// Before Listen, reads have the deadline that is set, or none.
func (c *Conn) Listen(silence func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silence = silence
}

// Received is for how long something has been coming, all in all: the time that reads
// have waited, but no more than what came takes on the slowest line.
func (c *Conn) Received() time.Duration { return time.Duration(c.received.Load()) }

// looks is how often a write that waits looks whether the queue has shrunk, in its patience.
const looks = 8

// Write writes all of p, or says why it could not.
func (c *Conn) Write(p []byte) (done int, err error) {
	defer c.end(&c.write, c.Conn.SetWriteDeadline) // what is left behind would wake the process for nothing
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

// Straight lets reads through to the connection below as they are: whoever reads has an
// eye on silence in another way. It is the reader's to say.
func (c *Conn) Straight(on bool) { c.straight = on }

// Read reads what there is, at least a byte.
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
	defer c.end(&c.read, func(time.Time) error { return nil }) // the next read sets it
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

// begin goes on in one direction until it is time to look.
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

// over says whether the deadline of those above has passed.
func (c *Conn) over(h *half, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !h.until.IsZero() && !now.Before(h.until)
}

// SetWriteDeadline is as net.Conn's: for a write that is going on as well.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.write.until = t; !c.write.busy {
		return nil // the next write sets it
	}
	return c.Conn.SetWriteDeadline(earlier(c.write.look, t))
}

// SetReadDeadline is as net.Conn's: for a read that is going on as well.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.until = t; c.silence != nil && !c.read.busy {
		return nil // the next read sets it
	}
	return c.Conn.SetReadDeadline(earlier(c.read.look, t))
}

// SetDeadline sets both.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// earlier is the earlier of two deadlines; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
