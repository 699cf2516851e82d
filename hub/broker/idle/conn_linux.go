package idle

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/panics"
)

// A Conn is a TCP connection that can be idle. One goroutine at a time may read, and one may write.
// Close and the deadlines are safe for concurrent use.
type Conn struct {
	fd            int
	at            *poller
	number        uint64 // identifies the connection in the poller
	local, remote netip.AddrPort

	fdLock sync.RWMutex // read-locked during each system call, so that fd stays valid
	closed bool

	mu          sync.Mutex
	read, write half
	peerClosed  bool   // the other end has closed or failed: the next read asks the kernel
	waiter      Waiter // not nil: the connection is idle
	expires     int64  // deadline while idle, since the poller's start

	impatient bool         // reads return ErrNothing instead of waiting
	spills    bool         // writes append to spilled instead of waiting
	spilled   []byte       // bytes for which the socket had no space
	received  atomic.Int64 // total bytes read
}

// A half is one direction of a connection.
type half struct {
	ready bool          // the kernel may have data, or space
	wake  chan struct{} // closed when ready or the deadline changes; nil: no goroutine waits
	until time.Time     // deadline; zero: no deadline
}

// New takes a connection over from Go's poller. If that fails it returns c unchanged.
func New(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	fd := -1
	if err := raw.Control(func(old uintptr) {
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil || fd < 0 {
		return c
	}
	q := &Conn{fd: fd, local: addrPort(tcp.LocalAddr()), remote: addrPort(tcp.RemoteAddr())}
	q.read.ready, q.write.ready = true, true
	if err := pollerOf(fd).add(q); err != nil {
		_ = unix.Close(fd)
		return c
	}
	_ = tcp.Close() // the duplicated descriptor stays open
	return q
}

// begin locks fd for a system call. It returns false if the connection is closed.
func (c *Conn) begin() bool {
	c.fdLock.RLock()
	if c.closed {
		c.fdLock.RUnlock()
		return false
	}
	return true
}

// Read waits for data unless Impatient is set.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		may, peerClosed := c.tryReady(&c.read)
		if !may {
			if c.impatient {
				return 0, ErrNothing
			}
			if err := c.wait(&c.read); err != nil {
				return 0, c.failed("read", err)
			}
			continue
		}
		if !c.impatient && c.expired(&c.read) {
			c.again(&c.read)
			return 0, c.failed("read", os.ErrDeadlineExceeded)
		}
		if !c.begin() {
			return 0, c.failed("read", net.ErrClosed)
		}
		n, err := ignoringEINTR(unix.Read, c.fd, p)
		c.fdLock.RUnlock()
		switch {
		case n > 0:
			c.received.Add(int64(n))
			if n == len(p) {
				c.again(&c.read)
			}
			return n, nil
		case err == nil && len(p) > 0:
			c.again(&c.read) // so that the next read returns the end of the stream
			return 0, io.EOF
		case err == unix.EAGAIN:
			if peerClosed { // the other end had closed before, so do not wait
				return 0, c.failed("read", net.ErrClosed)
			}
		default:
			c.again(&c.read)
			return 0, c.failed("read", os.NewSyscallError("read", err))
		}
	}
}

// Write writes all of p. With Spill it keeps the bytes for which the socket has no space.
func (c *Conn) Write(p []byte) (done int, err error) {
	for done < len(p) {
		if len(c.spilled) > 0 { // so that bytes stay in order
			c.spilled = append(c.spilled, p[done:]...)
			return len(p), nil
		}
		if may, _ := c.tryReady(&c.write); !may {
			if c.spills {
				c.spilled = append(c.spilled, p[done:]...)
				return len(p), nil
			}
			if err := c.wait(&c.write); err != nil {
				return done, c.failed("write", err)
			}
			continue
		}
		if !c.spills && c.expired(&c.write) {
			c.again(&c.write)
			return done, c.failed("write", os.ErrDeadlineExceeded)
		}
		if !c.begin() {
			return done, c.failed("write", net.ErrClosed)
		}
		n, err := ignoringEINTR(unix.Write, c.fd, p[done:])
		c.fdLock.RUnlock()
		if n > 0 {
			done += n
			c.again(&c.write)
		} else if err != unix.EAGAIN && err != nil {
			c.again(&c.write)
			return done, c.failed("write", os.NewSyscallError("write", err))
		}
	}
	return done, nil
}

// tryReady reports whether a system call may succeed, and clears ready before that call.
func (c *Conn) tryReady(h *half) (may, peerClosed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	may = c.isReady(h)
	h.ready = false
	return may, c.peerClosed
}

// isReady reports whether the kernel may have data or space. After the other end has closed, a read
// always returns, but a write may wait.
func (c *Conn) isReady(h *half) bool { return h.ready || c.peerClosed && h == &c.read }

// expired reports whether a direction's deadline has passed.
func (c *Conn) expired(h *half) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !h.until.IsZero() && !time.Now().Before(h.until)
}

func (c *Conn) again(h *half) {
	c.mu.Lock()
	h.ready = true
	c.mu.Unlock()
}

// wait waits until a direction is ready, its deadline passes, or the connection is closed.
func (c *Conn) wait(h *half) error {
	for {
		c.fdLock.RLock()
		closed := c.closed
		c.fdLock.RUnlock()
		c.mu.Lock()
		left := time.Until(h.until)
		switch {
		case closed:
			c.mu.Unlock()
			return net.ErrClosed
		case c.isReady(h):
			c.mu.Unlock()
			return nil
		case !h.until.IsZero() && left <= 0:
			c.mu.Unlock()
			return os.ErrDeadlineExceeded
		}
		wake, bounded := make(chan struct{}), !h.until.IsZero()
		h.wake = wake
		c.mu.Unlock()
		if !bounded {
			<-wake
			continue
		}
		late := time.NewTimer(left)
		select {
		case <-wake:
		case <-late.C:
		}
		late.Stop()
	}
}

// signal wakes the waiting goroutine.
func (h *half) signal() {
	if h.wake != nil {
		close(h.wake)
		h.wake = nil
	}
}

// Impatient sets whether reads return ErrNothing instead of waiting. Only the reader calls it.
func (c *Conn) Impatient(on bool) { c.impatient = on }

// Spill sets whether writes keep the rest instead of waiting. Turning it off returns the rest,
// which the caller has to write first. Only the writer calls it.
func (c *Conn) Spill(on bool) (kept []byte) {
	kept, c.spilled, c.spills = c.spilled, nil, on
	return kept
}

// Received returns how many bytes have been read.
func (c *Conn) Received() int64 { return c.received.Load() }

// SetIdle hands the connection to the poller. The poller calls the Waiter when data arrives, at the
// deadline, or when the connection is closed. SetIdle returns false, and does nothing, if data may
// have arrived already. Only the reader calls it.
func (c *Conn) SetIdle(by time.Time, s Waiter) bool {
	c.fdLock.RLock()
	defer c.fdLock.RUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.read.ready || c.peerClosed {
		return false
	}
	c.waiter, c.expires = s, int64(by.Sub(c.at.began))
	return true
}

// Idle reports whether the connection is idle.
func (c *Conn) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiter != nil
}

// Poke calls an idle connection's Waiter at once if data may have arrived, because the next tick
// may be too late. The Waiter runs on the caller's goroutine.
func (c *Conn) Poke() {
	c.mu.Lock()
	s := c.endIdle()
	c.read.ready = true
	c.mu.Unlock()
	if s != nil {
		s.Wake(make([]byte, 512))
	}
}

// endIdle ends the idle state and returns the Waiter.
func (c *Conn) endIdle() Waiter {
	s := c.waiter
	c.waiter = nil
	return s
}

// handleEvents handles the kernel's events and returns the Waiter to wake.
func (c *Conn) handleEvents(events uint32) Waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if events&(unix.EPOLLHUP|unix.EPOLLRDHUP|unix.EPOLLERR) != 0 {
		c.peerClosed = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.write.ready = true
		c.write.signal()
	}
	if events&unix.EPOLLIN == 0 && !c.peerClosed {
		return nil
	}
	c.read.ready = true
	c.read.signal()
	return c.endIdle()
}

// overdue returns the Waiter of an idle connection whose deadline has passed.
func (c *Conn) overdue(now int64) Waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiter == nil || now < c.expires {
		return nil
	}
	c.read.ready = true // the Waiter tries one more read
	return c.endIdle()
}

// ExpireAt expires an idle connection whose deadline is before now, and reports whether it has. It
// is for tests, because deadlines are long.
func (c *Conn) ExpireAt(now time.Time) bool {
	s := c.overdue(int64(now.Sub(c.at.began)))
	if s != nil {
		s.Expire()
	}
	return s != nil
}

// Close closes the connection, and wakes its reader, writer and Waiter.
func (c *Conn) Close() error {
	c.fdLock.Lock()
	if c.closed {
		c.fdLock.Unlock()
		return c.failed("close", net.ErrClosed)
	}
	c.closed = true
	c.at.remove(c)
	err := unix.Close(c.fd)
	c.fdLock.Unlock()
	c.mu.Lock()
	c.peerClosed, c.write.ready = true, true
	c.read.signal()
	c.write.signal()
	s := c.endIdle()
	c.mu.Unlock()
	if s != nil {
		go func() {
			defer panics.Catch("mqtt")
			s.Wake(make([]byte, 64))
		}()
	}
	return err
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline limits waiting reads. An idle connection has the deadline of SetIdle.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(&c.read, t) }

// SetWriteDeadline limits waiting writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(&c.write, t) }

func (c *Conn) set(h *half, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.until = t
	h.signal()
	return nil
}

func (c *Conn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.local) }
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }
