package listen

import (
	"container/list"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Limits bound what HTTPS clients hold open. A zero is the default.
type Limits struct {
	Connections int     // at once; default by Files
	Address     int     // of one address at once, loopback excepted; default three quarters of them
	Rate        float64 // new ones of an address per second, loopback excepted; default 200, with a burst of ten seconds
	// requests per second of strangers at one address, loopback excepted; default 50, with a burst of forty seconds
	Asks     float64
	User     int // connections of one user that keep their place; default a quarter of all
	Requests int // of one user at once, over all connections; default UserRequests
}

// UserRequests is how many requests one user has under way at once.
const UserRequests = 1000

const (
	// settled is how long somebody unknown has to say who they are, or what they want,
	// before a newcomer may take their place.
	settled = 3 * time.Second
	// reading is how long a client may take to take the next 16 KiB, which is what
	// TLS writes at once.
	reading = 30 * time.Second
	// pausing is the same on a connection that was upgraded: people pause their terminals.
	pausing = 15 * time.Minute
	// strangersBytes a second, after a burst, is what is read on a connection on which nobody
	// has shown who they are: enough to log in, to join and to ask for a page. Frames and
	// headers cost more to read than to send.
	strangersBytes = 64 << 10
	strangersBurst = 64 << 10
)

// A Listener accepts connections, and knows which of them are of users. When there is
// room for no more, the oldest one of a stranger gives way, and newcomers wait in the
// kernel's queue until there is one that may: nobody is refused because others
// came before, and who does nothing keeps no place.
type Listener struct {
	net.Listener
	limits    Limits
	addresses Addresses
	freed     chan struct{} // a place was left
	closing   chan struct{}
	once      sync.Once

	mu        sync.Mutex
	open      int
	strangers list.List // of *Conn, oldest first
	users     map[string]*user
}

// A user is somebody who has shown who they are.
type user struct{ connections, requests int }

// New returns a listener that takes connections from l.
func New(l net.Listener, limits Limits) *Listener {
	if limits.Connections <= 0 {
		limits.Connections, _ = Files()
	}
	if limits.Address <= 0 {
		limits.Address = max(3*limits.Connections/4, 1)
	}
	if limits.Rate <= 0 {
		limits.Rate = 200
	}
	if limits.Asks <= 0 {
		limits.Asks = 50
	}
	if limits.User <= 0 {
		limits.User = max(limits.Connections/4, 1)
	}
	if limits.Requests <= 0 {
		limits.Requests = UserRequests
	}
	return &Listener{
		Listener: l, limits: limits, addresses: Addresses{Most: limits.Address, Rate: limits.Rate,
			Burst: int(10 * limits.Rate), Asks: limits.Asks, Asked: int(40 * limits.Asks)},
		freed: make(chan struct{}, 1), closing: make(chan struct{}), users: map[string]*user{},
	}
}

// Accept returns the next connection for which there is a place.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: raw, l: l, ip: IP(raw), since: time.Now()}
		c.patience.Store(int64(reading))
		if !l.enter(c) {
			_ = raw.Close()
			continue
		}
		if !l.place(c) {
			l.addresses.Leave(c.ip)
			_ = raw.Close()
			return nil, net.ErrClosed
		}
		return c, nil
	}
}

// Close ends a waiting Accept, too.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closing) })
	return l.Listener.Close()
}

// enter counts a connection for its address; where that has too many, its own oldest
// stranger gives way.
func (l *Listener) enter(c *Conn) bool {
	if l.addresses.Enter(c.ip) == nil {
		return true
	}
	if _, cut := l.displace(func(other *Conn) bool { return other.ip == c.ip }); !cut {
		return false
	}
	return l.addresses.Enter(c.ip) == nil
}

// place waits until there is room for a connection; false: the listener was closed.
func (l *Listener) place(c *Conn) bool {
	for !l.take(c) {
		wait, cut := l.displace(func(*Conn) bool { return true })
		if cut {
			continue
		}
		late := time.NewTimer(wait)
		select {
		case <-l.freed:
		case <-late.C:
		case <-l.closing:
			late.Stop()
			return false
		}
		late.Stop()
	}
	return true
}

func (l *Listener) take(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limits.Connections {
		return false
	}
	l.open++
	c.element = l.strangers.PushBack(c)
	return true
}

// displace cuts the oldest stranger's connection that is wanted, or says how long
// until it may be.
func (l *Listener) displace(wanted func(*Conn) bool) (wait time.Duration, cut bool) {
	l.mu.Lock()
	var oldest *Conn
	for e := l.strangers.Front(); e != nil && oldest == nil; e = e.Next() {
		if c := e.Value.(*Conn); wanted(c) {
			oldest = c
		}
	}
	l.mu.Unlock()
	if oldest == nil {
		return settled, false
	}
	if wait := time.Until(oldest.since.Add(settled)); wait > 0 {
		return wait, false
	}
	_ = oldest.Close()
	return 0, true
}

// left takes a connection out of the books.
func (l *Listener) left(c *Conn) {
	l.mu.Lock()
	l.open--
	if c.element != nil {
		l.strangers.Remove(c.element)
		c.element = nil
	}
	l.release(c)
	l.mu.Unlock()
	l.addresses.Leave(c.ip)
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// release gives back the place that a connection has of its user's; l.mu is held.
func (l *Listener) release(c *Conn) {
	if u := l.users[c.user]; c.user != "" {
		u.connections--
		l.forget(c.user, u)
		c.user = ""
	}
}

// unknown counts a request whose sender did not show who they are; l.mu is held. Where nobody does
// any more, as one whose right has ended, the connection is a stranger's again.
func (l *Listener) unknown(c *Conn) {
	if c.unknown++; c.user != "" && c.unknown >= strangersAsks {
		l.release(c)
		c.known.Store(false)
		c.element = l.strangers.PushBack(c)
	}
}

// forget forgets a user who holds nothing.
func (l *Listener) forget(name string, u *user) {
	if u.connections == 0 && u.requests == 0 {
		delete(l.users, name)
	}
}

// userOf is the account of a user; l.mu is held.
func (l *Listener) userOf(name string) *user {
	u := l.users[name]
	if u == nil {
		u = &user{}
		l.users[name] = u
	}
	return u
}

// A Conn is a connection that has its place. Who does not take what is written to it
// in time is cut.
type Conn struct {
	net.Conn
	l        *Listener
	ip       netip.Addr
	since    time.Time
	once     sync.Once
	patience atomic.Int64 // time.Duration
	requests atomic.Int64 // under way
	asked    atomic.Int64 // those of strangers, ever
	known    atomic.Bool  // somebody on it has shown who they are

	// of the reader
	read   float64 // bytes of a stranger that are not forgiven yet
	readAt time.Time

	// under l.mu
	element *list.Element // among the strangers; nil: a user's, or closed
	user    string        // whose place it is; "": a stranger's
	unknown int           // requests since the last whose sender had shown who they are

	mu       sync.Mutex
	deadline time.Time // for writing, of whoever uses the connection
}

// Read reads no more of a stranger than strangersBytes a second: the rest waits in the kernel.
// After each read it is everybody else's turn: who sends without end always has something to be
// read, and would be looked after for 10 ms at a time, as many times as there are connections,
// before a lease is.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.known.Load() {
		runtime.Gosched()
	} else {
		time.Sleep(c.owes(n, time.Now()))
	}
	return n, err
}

// owes is how long a stranger who has sent so many bytes more has to wait.
func (c *Conn) owes(bytes int, now time.Time) time.Duration {
	if !c.readAt.IsZero() {
		c.read = max(c.read-now.Sub(c.readAt).Seconds()*strangersBytes, 0)
	}
	c.read, c.readAt = c.read+float64(bytes), now
	return time.Duration(max(c.read-strangersBurst, 0) / strangersBytes * float64(time.Second))
}

// Write gives the client the connection's patience to take p.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	err := c.Conn.SetWriteDeadline(c.until())
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// until is when a write that begins now must have ended.
func (c *Conn) until() time.Time {
	t := time.Now().Add(time.Duration(c.patience.Load()))
	if !c.deadline.IsZero() && c.deadline.Before(t) {
		return c.deadline
	}
	return t
}

// SetWriteDeadline sets one beside the connection's patience.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.Conn.SetWriteDeadline(c.until())
}

// SetDeadline is for both directions.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetReadDeadline(t)
}

// Close gives the place back.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.l.left(c) })
	return err
}
