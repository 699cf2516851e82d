package broker

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/wire"
)

// A session is a node's connection from an accepted CONNECT to its end. A field that is not atomic
// belongs to the goroutine that reads the connection.
type session struct {
	peer      Peer
	conn      *conn
	lease     string // topic of the node's leases
	will      *wire.Presence
	observer  *observerState // not nil: an observer's session
	dismissal []byte         // not nil: the dismissal notice; the device's enrolment has ended
	keepAlive uint16         // seconds
	rate      bucket

	broker  *Broker
	key     net.Conn // key in the broker's counts
	ip      netip.Addr
	claimed bool // the session is the node's

	established atomic.Bool    // CONNACK was sent
	subscribed  [2]atomic.Bool // subscribed filters

	closed chan struct{} // guarded by the broker's lock; closed after all of the session's Handler calls have returned
}

// base is the common prefix of the node's topics.
func (s *session) base() string { return strings.TrimSuffix(s.lease, string(wire.ChannelLease)) }

// filters are the node's own two subscriptions.
func (s *session) filters() [2]string { return wire.Filters(s.broker.cfg.Prefix, s.peer.Node) }

func (s *session) listen(filter string, on bool) {
	for i, f := range s.filters() {
		if f == filter {
			s.subscribed[i].Store(on)
		}
	}
}

func (s *session) listens(c wire.Channel) bool {
	if c == wire.ChannelDesired {
		return s.subscribed[0].Load()
	}
	return s.subscribed[1].Load()
}

// claim makes s the session of its node. It closes the previous session, and returns after the
// Handler has returned from that session's last call. So no late will can follow the new session.
func (b *Broker) claim(s *session) error {
	deadline := time.NewTimer(closeTimeout)
	defer deadline.Stop()
	for {
		b.mu.Lock()
		old := b.sessions[s.peer.Node]
		if old == nil {
			b.sessions[s.peer.Node] = s
			b.mu.Unlock()
			return nil
		}
		if old.closed == nil {
			old.closed = make(chan struct{})
		}
		gone := old.closed
		b.mu.Unlock()
		if old.conn.sock != nil {
			old.conn.sock.Poke() // handles the last packets of the old session, such as DISCONNECT
		}
		_ = old.conn.Close()
		select {
		case <-gone:
		case <-deadline.C:
			return errors.New("its previous session is still busy")
		}
	}
}

// release removes the session from its node.
func (b *Broker) release(s *session) {
	if s.established.Load() {
		b.cfg.Handler.Disconnected(s.peer)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, s.peer.Node)
	if s.closed != nil {
		close(s.closed)
	}
}

// A bucket is the token bucket of one goroutine. The goroutine waits while the bucket is empty.
type bucket struct {
	perSecond float64
	tokens    float64
	at        time.Time
}

func newBucket(perSecond float64) bucket {
	return bucket{perSecond: perSecond, tokens: 4 * perSecond, at: time.Now()}
}

// fill adds tokens for the time since the last call, up to four seconds' worth.
func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*b.perSecond, 4*b.perSecond)
	b.at = now
}

// has reports whether n tokens can be taken without waiting.
func (b *bucket) has(n float64) bool {
	b.fill(time.Now())
	return b.tokens >= n
}

func (b *bucket) take(n float64) {
	b.fill(time.Now())
	b.tokens -= n
	if b.tokens < 0 {
		time.Sleep(time.Duration(-b.tokens / b.perSecond * float64(time.Second)))
	}
}
