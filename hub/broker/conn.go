package broker

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/broker/idle"
	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// Limits of an outbox.
const (
	oneWrite    = 16 << 10     // bytes up to which a message is one write, header and payload
	maxRecord   = 16<<10 + 512 // bytes of a record of TLS
	maxRequests = 256          // requests that wait for the network
	maxWaiting  = 64 << 10     // bytes of acknowledgements that wait for the network
)

// observed is the channel of what goes to an observer.
const observed wire.Channel = "observed"

// A message waits to be published to a node at QoS 0.
type message struct {
	channel wire.Channel
	topic   string
	payload []byte
	kind    string   // of a request
	more    [][]byte // parts after the first one
}

// A conn is a device's connection once CONNECT has been judged. It gives back the bytes that were
// read for that, sets the deadlines, and shares the way out between acknowledgements and the
// messages of the hub. Nobody who has something to send to a device that does not read waits for
// it: the hub's messages wait in the outbox.
//
// A slow line is not a dead one: whoever takes nothing for 5 s, or sends nothing for one
// and a half times the keep-alive, is cut, however small the packet; whoever takes or
// sends something has for a whole packet as much time more as it takes at 1 KiB/s. So a
// packet that comes slowly is life, as MQTT has it only for one that is complete.
type conn struct {
	net.Conn             // encrypted, where it is
	raw       *line.Conn // what is below
	stats     *counters
	observers *observers    // of what goes to a device
	idle      time.Duration // without a byte from the device, then it is cut
	until     time.Time     // for the packet that is being read; zero: none is
	sock      *idle.Conn    // not nil: the connection below can be parked
	eager     bool          // the next read does not wait
	seen      []byte        // read by greet, behind the CONNECT

	closed atomic.Bool

	mu       sync.Mutex
	busy     bool // somebody writes
	replies  []byte
	requests []message
	waiting  int // bytes of them
	desired  *message
}

// newConn gives a connection the ends that it has from now on.
func newConn(c net.Conn, raw *line.Conn, seen []byte, keepAlive time.Duration) *conn {
	_ = raw.SetDeadline(time.Time{}) // that of CONNECT
	raw.Listen(func() time.Duration { return keepAlive })
	sock, _ := raw.Conn.(*idle.Conn)
	return &conn{Conn: c, raw: raw, seen: seen, idle: keepAlive, sock: sock}
}

// Read first gives back what greet has read.
func (c *conn) Read(p []byte) (int, error) {
	eager := c.eager
	c.eager = false // with the beginning of a packet its rest is waited for
	if len(c.seen) > 0 {
		n := copy(p, c.seen)
		if c.seen = c.seen[n:]; len(c.seen) == 0 {
			c.seen = nil
		}
		return n, nil
	}
	if eager && c.sock != nil {
		return c.readAvailable(p)
	}
	until := c.until
	if until.IsZero() {
		until = time.Now().Add(c.idle + line.Takes(maxRecord))
	}
	_ = c.raw.SetReadDeadline(until)
	return c.Conn.Read(p)
}

// readAvailable reads what is there, and waits for nothing: then it says idle.ErrNothing.
func (c *conn) readAvailable(p []byte) (int, error) {
	c.sock.Impatient(true)
	c.raw.Straight(true)
	defer c.sock.Impatient(false)
	defer c.raw.Straight(false)
	return c.Conn.Read(p)
}

// expect bounds the reading of a packet of so many bytes, all of it; 0: it has come. As
// long as none is known, TLS may be waiting for the rest of a record.
func (c *conn) expect(size int) {
	if c.until = (time.Time{}); size > 0 {
		c.until = time.Now().Add(c.idle + line.Takes(size))
	}
}

// Close cuts the connection without a farewell that could block.
func (c *conn) Close() error {
	c.closed.Store(true)
	return c.raw.Close()
}

// Write takes one whole packet, an acknowledgement. If nobody writes, it writes at once;
// otherwise the packet goes out before the next message of the hub.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.busy {
		defer c.mu.Unlock()
		if len(c.replies)+len(p) > maxWaiting {
			_ = c.Close()
			return 0, net.ErrClosed
		}
		c.replies = append(c.replies, p...)
		return len(p), nil
	}
	c.busy = true
	c.mu.Unlock()
	if err := c.put(p); err != nil {
		return 0, err // busy stays: the connection is closed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.empty() {
		c.busy = false
	} else {
		go c.drain()
	}
	return len(p), nil
}

// tryLockWriter makes who must not wait the one who writes; false: somebody else does, or waits to.
// Until release nothing that is written waits, not even what TLS itself has to say.
func (c *conn) tryLockWriter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		return false
	}
	c.busy = true
	c.sock.Spill(true)
	return true
}

// unlockWriter gives back what tryLockWriter took. What there was no room for goes out first.
func (c *conn) unlockWriter() {
	rest := c.sock.Spill(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(rest) > 0:
		go c.flush(rest)
	case c.empty():
		c.busy = false
	default:
		go c.drain()
	}
}

// flush writes what there was no room for, as it goes to the network, and then the outbox.
func (c *conn) flush(rest []byte) {
	defer panics.CatchThen("mqtt", func(error) { _ = c.raw.Close() })
	_ = c.raw.SetWriteDeadline(time.Now().Add(writeTimeout + line.Takes(len(rest))))
	if _, err := c.raw.Write(rest); err != nil {
		_ = c.Close()
		return
	}
	c.drain()
}

// send puts a message of the hub into the outbox, and says whether there was room.
func (c *conn) send(m message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed.Load():
		return false
	case m.channel == wire.ChannelDesired:
		if c.desired != nil {
			c.stats.superseded.Add(1)
		}
		c.desired = &m
	case len(c.requests) >= maxRequests, m.channel == observed && c.waiting+len(m.payload) > maxObserved:
		return false
	default:
		c.waiting += len(m.payload)
		c.requests = append(c.requests, m)
	}
	if !c.busy {
		c.busy = true
		go c.drain()
	}
	return true
}

func (c *conn) empty() bool { return len(c.replies) == 0 && len(c.requests) == 0 && c.desired == nil }

// drain writes until the outbox is empty: acknowledgements, then requests, then
// the desired state, which can be large.
func (c *conn) drain() {
	defer panics.CatchThen("mqtt", func(error) { _ = c.raw.Close() })
	for {
		c.mu.Lock()
		var out [][]byte
		var shown message
		switch {
		case len(c.replies) > 0:
			out, c.replies = [][]byte{c.replies}, nil
		case len(c.requests) > 0:
			m := c.requests[0]
			out, c.waiting = publishPacket(m), c.waiting-len(m.payload)
			if m.channel == wire.ChannelRequest {
				c.stats.heard[requests].Add(1)
				shown = m
			}
			if c.requests = c.requests[1:]; len(c.requests) == 0 {
				c.requests = nil
			}
		case c.desired != nil:
			out, shown = publishPacket(*c.desired), *c.desired
			if next := c.desired; len(next.more) > 0 { // something else may go out before the next part
				c.desired = &message{channel: next.channel, topic: next.topic, payload: next.more[0], more: next.more[1:]}
			} else {
				c.desired = nil
			}
			c.stats.heard[desireds].Add(1)
		default:
			c.busy = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if shown.topic != "" && c.observers.any() {
			c.observers.withhold(shown.topic, shown.kind, len(shown.payload))
		}
		for _, p := range out {
			if c.put(p) != nil {
				return
			}
		}
	}
}

// put writes a packet. After an error the stream is broken in the middle of it, so the
// connection is closed.
func (c *conn) put(p []byte) error {
	_ = c.raw.SetWriteDeadline(time.Now().Add(writeTimeout + line.Takes(len(p))))
	if _, err := c.Conn.Write(p); err != nil {
		_ = c.Close()
		return err
	}
	return nil
}
