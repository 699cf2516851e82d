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

// A Conn is a TCP connection that can be parked. Reads are one goroutine's at a time, and
// so are writes; Close and deadlines are anybody's.
type Conn struct {
	fd            int
	at            *poller
	number        uint64 // there
	local, remote netip.AddrPort

	life   sync.RWMutex // held for reading around each call of the kernel, so that fd is ours
	closed bool

	mu          sync.Mutex
	read, write half
	hung        bool    // the other end has said that nothing more comes, or worse: the kernel has to be asked
	sleeper     Sleeper // not nil: parked
	expires     int64   // when that is parked too long, since the poller's start

	impatient bool         // the reader does not wait
	spills    bool         // the writer does not wait: what there is no room for is kept
	spilled   []byte       // that
	received  atomic.Int64 // bytes, all in all
}

// A half is one direction.
type half struct {
	ready bool          // the kernel may have something, or room
	wake  chan struct{} // closed when that changes, or a deadline; nil: nobody waits
	until time.Time     // zero: none
}

// New takes a connection over from Go's poller. Where that fails it is returned as it was.
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
	_ = tcp.Close() // the file lives on as ours
	return q
}

// begin guards a call of the kernel.
func (c *Conn) begin() bool {
	c.life.RLock()
	if c.closed {
		c.life.RUnlock()
		return false
	}
	return true
}

// Read reads what there is, and waits for it unless it was told not to.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		may, hung := c.take(&c.read)
		if !may {
			if c.impatient {
				return 0, ErrNothing
			}
			if err := c.wait(&c.read); err != nil {
				return 0, c.failed("read", err)
			}
			continue
		}
		if !c.impatient && c.late(&c.read) {
			c.again(&c.read)
			return 0, c.failed("read", os.ErrDeadlineExceeded)
		}
		if !c.begin() {
			return 0, c.failed("read", net.ErrClosed)
		}
		n, err := ignoringEINTR(unix.Read, c.fd, p)
		c.life.RUnlock()
		switch {
		case n > 0:
			c.received.Add(int64(n))
			if n == len(p) {
				c.again(&c.read)
			}
			return n, nil
		case err == nil && len(p) > 0:
			c.again(&c.read) // the end stays the end
			return 0, io.EOF
		case err == unix.EAGAIN:
			if hung { // before it was asked: there is nothing to wait for
				return 0, c.failed("read", net.ErrClosed)
			}
		default:
			c.again(&c.read)
			return 0, c.failed("read", os.NewSyscallError("read", err))
		}
	}
}

// Write writes all of p; with Spill, what there is no room for is kept.
func (c *Conn) Write(p []byte) (done int, err error) {
	for done < len(p) {
		if len(c.spilled) > 0 { // in order
			c.spilled = append(c.spilled, p[done:]...)
			return len(p), nil
		}
		if may, _ := c.take(&c.write); !may {
			if c.spills {
				c.spilled = append(c.spilled, p[done:]...)
				return len(p), nil
			}
			if err := c.wait(&c.write); err != nil {
				return done, c.failed("write", err)
			}
			continue
		}
		if !c.spills && c.late(&c.write) {
			c.again(&c.write)
			return done, c.failed("write", os.ErrDeadlineExceeded)
		}
		if !c.begin() {
			return done, c.failed("write", net.ErrClosed)
		}
		n, err := ignoringEINTR(unix.Write, c.fd, p[done:])
		c.life.RUnlock()
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

// take says whether it is worth asking the kernel, and notes that it is asked.
func (c *Conn) take(h *half) (may, hung bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	may = c.may(h)
	h.ready = false
	return may, c.hung
}

// may says whether the kernel may have something, or room. Where nothing more comes, it
// says so itself; there may be no room all the same.
func (c *Conn) may(h *half) bool { return h.ready || c.hung && h == &c.read }

// late says whether a direction's deadline has passed.
func (c *Conn) late(h *half) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !h.until.IsZero() && !time.Now().Before(h.until)
}

func (c *Conn) again(h *half) {
	c.mu.Lock()
	h.ready = true
	c.mu.Unlock()
}

// wait waits until a direction is ready, its deadline has passed, or the connection is closed.
func (c *Conn) wait(h *half) error {
	for {
		c.life.RLock()
		closed := c.closed
		c.life.RUnlock()
		c.mu.Lock()
		left := time.Until(h.until)
		switch {
		case closed:
			c.mu.Unlock()
			return net.ErrClosed
		case c.may(h):
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

// signal wakes whoever waits.
func (h *half) signal() {
	if h.wake != nil {
		close(h.wake)
		h.wake = nil
	}
}

// Impatient says whether reads wait. It is the reader's to say.
func (c *Conn) Impatient(on bool) { c.impatient = on }

// Spill says that writes do not wait: what there is no room for is kept, and returned
// when they may wait again. It is the writer's to say, and to write first.
func (c *Conn) Spill(on bool) (kept []byte) {
	kept, c.spilled, c.spills = c.spilled, nil, on
	return kept
}

// Received is how many bytes have been read.
func (c *Conn) Received() int64 { return c.received.Load() }

// Park gives a connection to the goroutine that waits for all: its Sleeper is told when
// something comes, when nothing came by then, or when it is closed. It returns false, and
// nothing is parked, if something may have come already. It is the reader's to say.
func (c *Conn) Park(by time.Time, s Sleeper) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.read.ready || c.hung {
		return false
	}
	c.sleeper, c.expires = s, int64(by.Sub(c.at.began))
	return true
}

// Parked says whether the connection is parked now.
func (c *Conn) Parked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sleeper != nil
}

// Poke tells a parked connection's Sleeper at once of what may have come, on the caller's
// goroutine: the next tick may be too late.
func (c *Conn) Poke() {
	c.mu.Lock()
	s := c.unpark()
	c.read.ready = true
	c.mu.Unlock()
	if s != nil {
		s.Wake(make([]byte, 512))
	}
}

// unpark returns who is told.
func (c *Conn) unpark() Sleeper {
	s := c.sleeper
	c.sleeper = nil
	return s
}

// happened is what the kernel tells.
func (c *Conn) happened(events uint32) Sleeper {
	c.mu.Lock()
	defer c.mu.Unlock()
	if events&(unix.EPOLLHUP|unix.EPOLLRDHUP|unix.EPOLLERR) != 0 {
		c.hung = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.write.ready = true
		c.write.signal()
	}
	if events&unix.EPOLLIN == 0 && !c.hung {
		return nil
	}
	c.read.ready = true
	c.read.signal()
	return c.unpark()
}

// overdue returns who is told that nothing came in time, if it is so.
func (c *Conn) overdue(now int64) Sleeper {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sleeper == nil || now < c.expires {
		return nil
	}
	c.read.ready = true // whoever is told may look once more
	return c.unpark()
}

// ExpireAt does to a parked connection what happens where at that moment nothing has come
// in time, and says whether it was. It is for tests: that time is long.
func (c *Conn) ExpireAt(now time.Time) bool {
	s := c.overdue(int64(now.Sub(c.at.began)))
	if s != nil {
		s.Expire()
	}
	return s != nil
}

// Close closes the connection. Whoever reads, writes or is told of it hears of it.
func (c *Conn) Close() error {
	c.life.Lock()
	if c.closed {
		c.life.Unlock()
		return c.failed("close", net.ErrClosed)
	}
	c.closed = true
	c.at.remove(c)
	err := unix.Close(c.fd)
	c.life.Unlock()
	c.mu.Lock()
	c.hung, c.write.ready = true, true
	c.read.signal()
	c.write.signal()
	s := c.unpark()
	c.mu.Unlock()
	if s != nil {
		go func() {
			defer panics.Catch("mqtt")
			s.Wake(make([]byte, 64))
		}()
	}
	return err
}

// SetDeadline is as net.Conn's, and so are those below.
func (c *Conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline bounds reads that wait; a parked connection has its own bound.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(&c.read, t) }

// SetWriteDeadline bounds writes that wait.
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
