package idle

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/panics"
)

// A poller waits for events of its connections, in one goroutine that runs as long as the process.
type poller struct {
	epoll int
	err   error
	began time.Time

	mu sync.Mutex
	// last is the number of the newest connection. Numbers identify connections, because a file
	// descriptor may be reused while events of its closed file are pending.
	last  uint64
	conns map[uint64]*Conn
}

// pollers has one poller per two processors. Each poller wakes for its own connections, so fewer
// pollers wake less often.
var pollers = sync.OnceValue(func() []*poller {
	all := make([]*poller, max(1, min(4, runtime.GOMAXPROCS(0)/2)))
	for i := range all {
		p := &poller{began: time.Now(), conns: map[uint64]*Conn{}}
		if p.epoll, p.err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); p.err == nil {
			go p.run()
		}
		all[i] = p
	}
	return all
})

func pollerOf(fd int) *poller {
	all := pollers()
	return all[fd%len(all)]
}

func (p *poller) add(c *Conn) error {
	if p.err != nil {
		return p.err
	}
	c.at = p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	c.number = p.last
	p.conns[c.number] = c
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(c.number),
		Pad: int32(c.number >> 32)}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, c.fd, &event); err != nil {
		delete(p.conns, c.number)
		return fmt.Errorf("wait for a connection: %w", err)
	}
	return nil
}

// remove removes a connection. The kernel stops watching its file by itself when the file is closed.
func (p *poller) remove(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c.number)
}

// run never returns. If a Waiter panics, run goes on with the other connections.
func (p *poller) run() {
	defer panics.Catch("mqtt") // a panic of once itself; once catches those of Waiters
	r := round{events: make([]unix.EpollEvent, 512), scratch: make([]byte, 4<<10)}
	for {
		p.once(&r)
	}
}

type round struct {
	events         []unix.EpollEvent
	scratch        []byte
	handled, count int       // events handled, and in total
	woke, swept    time.Time // times of the last wake-up and the last sweep
	busy           bool      // events arrive at least every second tick
}

// sweepEvery is the interval of checking the deadlines of idle connections.
const sweepEvery = time.Second

func (p *poller) once(r *round) {
	defer panics.Catch("mqtt")
	for ; r.handled < r.count; r.handled++ {
		e := r.events[r.handled]
		p.mu.Lock()
		c := p.conns[uint64(uint32(e.Fd))|uint64(uint32(e.Pad))<<32]
		p.mu.Unlock()
		if c == nil {
			continue
		}
		if s := c.handleEvents(e.Events); s != nil {
			r.handled++ // counted first, so that a Waiter that panics is not called again
			s.Wake(r.scratch)
			r.handled--
		}
	}
	if now := time.Now(); now.Sub(r.swept) >= sweepEvery {
		r.swept = now
		p.sweep(now)
	}
	// A sleep costs one more wake-up, which pays off only if more events arrive meanwhile.
	if rest := tick - time.Since(r.woke); rest > 0 && r.busy && r.count < len(r.events) {
		time.Sleep(rest)
	}
	n, err := unix.EpollWait(p.epoll, r.events, 0)
	if n == 0 { // a blocking call costs more, because the scheduler has to hand over the processor
		n, err = unix.EpollWait(p.epoll, r.events, p.waitMillis())
	}
	now := time.Now()
	r.busy = n > 1 || now.Sub(r.woke) < tick/2
	r.handled, r.count, r.woke = 0, max(n, 0), now
	if err != nil && err != unix.EINTR {
		slog.Error("wait for connections; trying again", "err", err)
		time.Sleep(sweepEvery)
	}
}

// waitMillis returns how many milliseconds to wait for events; -1 (forever) without idle
// connections.
func (p *poller) waitMillis() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == 0 {
		return -1
	}
	return int(sweepEvery / time.Millisecond)
}

// sweep expires idle connections whose deadline has passed.
func (p *poller) sweep(now time.Time) {
	var late []Waiter
	p.mu.Lock()
	for _, c := range p.conns {
		if s := c.overdue(int64(now.Sub(p.began))); s != nil {
			late = append(late, s)
		}
	}
	p.mu.Unlock()
	for _, s := range late {
		s.Expire()
	}
}
