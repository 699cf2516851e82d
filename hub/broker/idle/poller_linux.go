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

// A poller waits for what comes on its connections, in one goroutine that lives as long as
// the process.
type poller struct {
	epoll int
	err   error
	began time.Time

	mu sync.Mutex
	// of the numbers that connections have: a file's number is another's soon, while events of the former are on their way
	last  uint64
	conns map[uint64]*Conn
}

// pollers are one for two processors: each wakes for what comes on its own connections, so
// fewer wake more rarely.
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

// remove forgets a connection; the kernel does when its file is closed.
func (p *poller) remove(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c.number)
}

// run waits for ever. After a mistake of a Sleeper the others go on.
func (p *poller) run() {
	defer panics.Catch("mqtt") // of once's own: those it tells of are caught there
	r := round{events: make([]unix.EpollEvent, 512), scratch: make([]byte, 4<<10)}
	for {
		p.once(&r)
	}
}

type round struct {
	events      []unix.EpollEvent
	scratch     []byte
	told, count int       // of events
	woke, swept time.Time // last
	busy        bool      // more came, or sooner, than in every second tick
}

// looks is how often is looked for parked connections on which nothing came in time.
const looks = time.Second

func (p *poller) once(r *round) {
	defer panics.Catch("mqtt")
	for ; r.told < r.count; r.told++ {
		e := r.events[r.told]
		p.mu.Lock()
		c := p.conns[uint64(uint32(e.Fd))|uint64(uint32(e.Pad))<<32]
		p.mu.Unlock()
		if c == nil {
			continue
		}
		if s := c.happened(e.Events); s != nil {
			r.told++ // whatever becomes of it
			s.Wake(r.scratch)
			r.told--
		}
	}
	if now := time.Now(); now.Sub(r.swept) >= looks {
		r.swept = now
		p.sweep(now)
	}
	// To sleep is to be woken once more, which pays only where more comes meanwhile.
	if rest := tick - time.Since(r.woke); rest > 0 && r.busy && r.count < len(r.events) {
		time.Sleep(rest)
	}
	n, err := unix.EpollWait(p.epoll, r.events, 0)
	if n == 0 { // a call that waits is dearer: the scheduler has to find another use for its processor
		n, err = unix.EpollWait(p.epoll, r.events, p.patience())
	}
	now := time.Now()
	r.busy = n > 1 || now.Sub(r.woke) < tick/2
	r.told, r.count, r.woke = 0, max(n, 0), now
	if err != nil && err != unix.EINTR {
		slog.Error("wait for connections; trying again", "err", err)
		time.Sleep(looks)
	}
}

// patience is how long, in milliseconds, the kernel is waited for: as long as there is
// nothing to look for, without end.
func (p *poller) patience() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == 0 {
		return -1
	}
	return int(looks / time.Millisecond)
}

// sweep tells of those on which nothing came in time.
func (p *poller) sweep(now time.Time) {
	var late []Sleeper
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
