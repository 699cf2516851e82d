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

// Limits limit what HTTPS clients can hold. A zero value means the default.
type Limits struct {
	Connections int     // open connections; default by Files
	Address     int     // open connections of one address, loopback excepted; default three quarters of Connections
	Rate        float64 // new ones per second and address, loopback excepted; default 200, with a burst of ten seconds
	// AskRate is how many unauthenticated requests one address may send per second, loopback
	// excepted; default 50, with a burst of forty seconds.
	AskRate  float64
	User     int // connections of one user that newcomers do not displace; default a quarter of Connections
	Requests int // concurrent requests of one user, over all connections; default UserRequests
}

// UserRequests is the default limit of one user's concurrent requests.
const UserRequests = 1000

const (
	// settled is how long newcomers cannot displace a new unauthenticated connection.
	settled = 3 * time.Second
	// reading is how long a client may take to read 16 KiB, which is one TLS record.
	reading = 30 * time.Second
	// pausing replaces reading on an upgraded connection, because users pause their terminals.
	pausing = 15 * time.Minute
	// anonymousRate is how many bytes per second are read from an unauthenticated connection, after
	// a burst. It is enough to log in, to join and to request a page. The limit exists because
	// frames and headers cost more to read than to send.
	anonymousRate  = 64 << 10
	anonymousBurst = 64 << 10
)

// A Listener accepts connections, and knows which of them are authenticated. When all places are
// taken, a newcomer displaces the oldest unauthenticated connection. Until that is possible, the
// newcomer waits in the kernel's queue. So early or idle connections cannot keep others out.
type Listener struct {
	net.Listener
	limits    Limits
	addresses Addresses
	freed     chan struct{} // signals a free place
	closing   chan struct{}
	once      sync.Once

	mu        sync.Mutex
	open      int
	anonymous list.List // elements are *Conn, oldest first
	users     map[string]*user
}

// A user counts what one authenticated user holds.
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
	if limits.AskRate <= 0 {
		limits.AskRate = 50
	}
	if limits.User <= 0 {
		limits.User = max(limits.Connections/4, 1)
	}
	if limits.Requests <= 0 {
		limits.Requests = UserRequests
	}
	return &Listener{
		Listener: l, limits: limits, addresses: Addresses{Most: limits.Address, Rate: limits.Rate,
			Burst: int(10 * limits.Rate), AskRate: limits.AskRate, AskBurst: int(40 * limits.AskRate)},
		freed: make(chan struct{}, 1), closing: make(chan struct{}), users: map[string]*user{},
	}
}

// Accept returns the next connection that gets a place.
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
		if !l.waitForPlace(c) {
			l.addresses.Leave(c.ip)
			_ = raw.Close()
			return nil, net.ErrClosed
		}
		return c, nil
	}
}

// Close also ends a waiting Accept.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closing) })
	return l.Listener.Close()
}

// enter counts a connection for its address. If the address has too many connections, enter closes
// its oldest unauthenticated one.
func (l *Listener) enter(c *Conn) bool {
	if l.addresses.Enter(c.ip) == nil {
		return true
	}
	if _, cut := l.displace(func(other *Conn) bool { return other.ip == c.ip }); !cut {
		return false
	}
	return l.addresses.Enter(c.ip) == nil
}

// waitForPlace waits for a place; false means that the listener was closed.
func (l *Listener) waitForPlace(c *Conn) bool {
	for !l.takePlace(c) {
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

func (l *Listener) takePlace(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limits.Connections {
		return false
	}
	l.open++
	c.element = l.anonymous.PushBack(c)
	return true
}

// displace closes the oldest unauthenticated connection that matches. If that is not allowed yet,
// it returns how long to wait.
func (l *Listener) displace(wanted func(*Conn) bool) (wait time.Duration, cut bool) {
	l.mu.Lock()
	var oldest *Conn
	for e := l.anonymous.Front(); e != nil && oldest == nil; e = e.Next() {
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

// remove removes a closed connection from all counts.
func (l *Listener) remove(c *Conn) {
	l.mu.Lock()
	l.open--
	if c.element != nil {
		l.anonymous.Remove(c.element)
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

// release takes a connection off its user's count; l.mu is held.
func (l *Listener) release(c *Conn) {
	if u := l.users[c.user]; c.user != "" {
		u.connections--
		l.forget(c.user, u)
		c.user = ""
	}
}

// countAnonymous counts an unauthenticated request; l.mu is held. After maxAnonymousRow in a row,
// for example after a right has ended, the connection counts as unauthenticated again.
func (l *Listener) countAnonymous(c *Conn) {
	if c.anonymousRow++; c.user != "" && c.anonymousRow >= maxAnonymousRow {
		l.release(c)
		c.authenticated.Store(false)
		c.element = l.anonymous.PushBack(c)
	}
}

// forget removes a user that holds nothing.
func (l *Listener) forget(name string, u *user) {
	if u.connections == 0 && u.requests == 0 {
		delete(l.users, name)
	}
}

// userOf returns the counts of a user; l.mu is held.
func (l *Listener) userOf(name string) *user {
	u := l.users[name]
	if u == nil {
		u = &user{}
		l.users[name] = u
	}
	return u
}

// A Conn is a connection that has a place. It is closed if the client does not read in time.
type Conn struct {
	net.Conn
	l                 *Listener
	ip                netip.Addr
	since             time.Time
	once              sync.Once
	patience          atomic.Int64 // time that the client has to read 16 KiB, as a time.Duration
	requests          atomic.Int64 // running requests
	anonymousRequests atomic.Int64 // unauthenticated requests since the connection was opened
	authenticated     atomic.Bool  // a request on the connection was authenticated

	// Only the reader uses these fields.
	read   float64 // bytes while unauthenticated, reduced over time by anonymousRate
	readAt time.Time

	// These fields are guarded by l.mu.
	element      *list.Element // place in Listener.anonymous; nil: authenticated, or closed
	user         string        // the user for whom the connection counts; "": none
	anonymousRow int           // unauthenticated requests in a row

	mu       sync.Mutex
	deadline time.Time // set by the server
}

// Read limits an unauthenticated client to anonymousRate bytes per second; further bytes wait in
// the kernel. An authenticated reader yields after each read. Otherwise a client that sends without
// pause would keep its goroutine running for 10 ms at a time, ahead of the goroutines that handle
// leases.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.authenticated.Load() {
		runtime.Gosched()
	} else {
		time.Sleep(c.delay(n, time.Now()))
	}
	return n, err
}

// delay returns how long to wait after an unauthenticated client has sent so many more bytes.
func (c *Conn) delay(bytes int, now time.Time) time.Duration {
	if !c.readAt.IsZero() {
		c.read = max(c.read-now.Sub(c.readAt).Seconds()*anonymousRate, 0)
	}
	c.read, c.readAt = c.read+float64(bytes), now
	return time.Duration(max(c.read-anonymousBurst, 0) / anonymousRate * float64(time.Second))
}

// Write gives the client the time c.patience to read p.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	err := c.Conn.SetWriteDeadline(c.writeDeadline())
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// writeDeadline returns the deadline of a write that begins now.
func (c *Conn) writeDeadline() time.Time {
	t := time.Now().Add(time.Duration(c.patience.Load()))
	if !c.deadline.IsZero() && c.deadline.Before(t) {
		return c.deadline
	}
	return t
}

// SetWriteDeadline sets a deadline beside that of c.patience.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.Conn.SetWriteDeadline(c.writeDeadline())
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetReadDeadline(t)
}

// Close closes the connection and frees its place.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.l.remove(c) })
	return err
}
