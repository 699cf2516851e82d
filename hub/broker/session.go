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

// A session is one node's connection from an accepted CONNECT to its end. What is
// not atomic belongs to the goroutine that reads the connection.
type session struct {
	peer      Peer
	conn      *conn
	lease     string // topic of its leases
	will      *wire.Presence
	watching  *watching // not nil: an observer's, and no node's
	farewell  []byte    // not nil: all that there is to tell; the session is not its node's
	keepAlive uint16    // seconds
	rate      bucket

	broker  *Broker
	whose   net.Conn // of the broker's books
	ip      netip.Addr
	claimed bool // it is its node's

	established atomic.Bool    // CONNACK is sent
	listening   [2]atomic.Bool // to filters

	gone chan struct{} // the broker's, under its lock; not nil: is closed when all that the session told has been told
}

// base is what the node's own topics begin with.
func (s *session) base() string { return strings.TrimSuffix(s.lease, string(wire.ChannelLease)) }

// filters are the node's own two subscriptions.
func (s *session) filters() [2]string { return wire.Filters(s.broker.cfg.Prefix, s.peer.Node) }

func (s *session) listen(filter string, on bool) {
	for i, f := range s.filters() {
		if f == filter {
			s.listening[i].Store(on)
		}
	}
}

func (s *session) listens(c wire.Channel) bool {
	if c == wire.ChannelDesired {
		return s.listening[0].Load()
	}
	return s.listening[1].Load()
}

// claim makes s the session of its node. The incumbent, if there is one, is
// closed, and everything that it has to tell (its will too) is told before claim
// returns, so that no late will can follow the new session.
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
		if old.gone == nil {
			old.gone = make(chan struct{})
		}
		gone := old.gone
		b.mu.Unlock()
		if old.conn.sock != nil {
			old.conn.sock.Poke() // what it has said in its last moment counts, such as DISCONNECT
		}
		_ = old.conn.Close()
		select {
		case <-gone:
		case <-deadline.C:
			return errors.New("its earlier session is still busy")
		}
	}
}

// release ends the session of its node.
func (b *Broker) release(s *session) {
	if s.established.Load() {
		b.cfg.Handler.Disconnected(s.peer)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, s.peer.Node)
	if s.gone != nil {
		close(s.gone)
	}
}

// A bucket is a token bucket of one goroutine: who takes more than is there waits.
type bucket struct {
	perSecond float64
	tokens    float64
	at        time.Time
}

func newBucket(perSecond float64) bucket {
	return bucket{perSecond: perSecond, tokens: 4 * perSecond, at: time.Now()}
}

// fill adds what has come since the last look; four seconds' worth is the most.
func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*b.perSecond, 4*b.perSecond)
	b.at = now
}

// has says whether so much can be taken now without waiting.
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
