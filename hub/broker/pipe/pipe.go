// Package pipe is an in-memory network for simulations: a listener for the broker and a dialler for
// each device, whose link can be cut, frozen and healed.
//
// It works inside a testing/synctest bubble, where TCP does not. It never opens a socket and knows
// nothing of MQTT. The broker listens on it in tests.
package pipe

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Net is a net.Listener with a dialler. Create it inside the bubble that uses it.
type Net struct {
	backlog chan net.Conn
	closed  chan struct{}
	once    sync.Once

	mu    sync.Mutex
	state map[string]state
	links map[string][]*link
}

// A state is what the network does to a device's packets.
type state int

const (
	up     state = iota
	cut          // connections break, and new ones are refused
	frozen       // packets are lost without an error
)

// New returns a network without connections.
func New() *Net {
	return &Net{
		backlog: make(chan net.Conn),
		closed:  make(chan struct{}),
		state:   map[string]state{},
		links:   map[string][]*link{},
	}
}

// Accept waits for the next connection.
func (n *Net) Accept() (net.Conn, error) {
	select {
	case c := <-n.backlog:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close stops the listener. Connections stay open.
func (n *Net) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

// Addr returns the address of the listener, of network "pipe".
func (n *Net) Addr() net.Addr { return addr("hub") }

// Dial connects a device. On a cut link it fails at once. On a frozen link it waits for the end of
// the context, as on a real network.
func (n *Net) Dial(ctx context.Context, device string) (net.Conn, error) {
	n.mu.Lock()
	now := n.state[device]
	n.mu.Unlock()
	switch now {
	case cut:
		return nil, fmt.Errorf("dial hub from %s: the link is cut", device)
	case frozen:
		<-ctx.Done()
		return nil, fmt.Errorf("dial hub from %s: %w", device, ctx.Err())
	}
	a, b := net.Pipe()
	l := &link{}
	l.ends = [2]*end{{Conn: a, link: l, local: addr(device), remote: addr("hub")},
		{Conn: b, link: l, local: addr("hub"), remote: addr(device)}}
	select {
	case n.backlog <- l.ends[1]:
	case <-n.closed:
		return nil, fmt.Errorf("dial hub from %s: %w", device, net.ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("dial hub from %s: %w", device, ctx.Err())
	}
	n.mu.Lock()
	n.links[device] = append(n.links[device], l)
	n.mu.Unlock()
	return l.ends[0], nil
}

// Cut breaks the device's connections, so that both ends get an error, and refuses new ones.
func (n *Net) Cut(device string) { n.set(device, cut) }

// Freeze drops all packets of the device without an error at either end, like a half-open
// connection.
func (n *Net) Freeze(device string) { n.set(device, frozen) }

// Heal lets the device connect again. Frozen connections break, because they have lost bytes.
func (n *Net) Heal(device string) { n.set(device, up) }

func (n *Net) set(device string, to state) {
	n.mu.Lock()
	from := n.state[device]
	n.state[device] = to
	links := n.links[device]
	if to != frozen && (to == cut || from == frozen) {
		delete(n.links, device)
	}
	n.mu.Unlock()
	for _, l := range links {
		switch {
		case to == frozen:
			l.frozen.Store(true)
		case to == cut || from == frozen:
			l.sever()
		}
	}
}

// A link is one connection with both ends.
type link struct {
	frozen atomic.Bool
	ends   [2]*end
}

func (l *link) sever() {
	l.frozen.Store(false)
	for _, e := range l.ends {
		_ = e.Conn.Close()
	}
}

// An end is a net.Conn over a link.
type end struct {
	net.Conn
	link          *link
	closed        atomic.Bool
	local, remote addr
}

// Write sends, or drops the bytes on a frozen link.
func (e *end) Write(p []byte) (int, error) {
	if e.closed.Load() {
		return 0, net.ErrClosed
	}
	if e.link.frozen.Load() {
		return len(p), nil
	}
	return e.Conn.Write(p)
}

// Read receives.
func (e *end) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if err != nil && e.closed.Load() {
		return n, net.ErrClosed
	}
	return n, err
}

// Close closes this end. On a frozen link the other end is not notified.
func (e *end) Close() error {
	e.closed.Store(true)
	if e.link.frozen.Load() {
		return e.Conn.SetDeadline(time.Unix(1, 0))
	}
	return e.Conn.Close()
}

// SetDeadline does nothing on a closed end, because Close uses a deadline to wake the readers of a
// frozen link. The same holds for SetReadDeadline and SetWriteDeadline.
func (e *end) SetDeadline(t time.Time) error {
	if e.closed.Load() {
		return net.ErrClosed
	}
	return e.Conn.SetDeadline(t)
}

func (e *end) SetReadDeadline(t time.Time) error {
	if e.closed.Load() {
		return net.ErrClosed
	}
	return e.Conn.SetReadDeadline(t)
}

func (e *end) SetWriteDeadline(t time.Time) error {
	if e.closed.Load() {
		return net.ErrClosed
	}
	return e.Conn.SetWriteDeadline(t)
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.remote }

type addr string

func (a addr) Network() string { return "pipe" }
func (a addr) String() string  { return string(a) }
