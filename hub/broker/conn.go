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
	oneWrite    = 16 << 10     // bytes up to which header and payload are one write
	maxRecord   = 16<<10 + 512 // bytes of a TLS record
	maxRequests = 256          // requests that wait to be sent
	maxWaiting  = 64 << 10     // bytes of acknowledgements that wait to be sent
)

// observed is the channel of messages to an observer.
const observed wire.Channel = "observed"

// A message waits to be published to a node at QoS 0.
type message struct {
	channel wire.Channel
	topic   string
	payload []byte
	kind    string   // kind of a request
	more    [][]byte // parts after the first one
}

// A conn is a device's connection after CONNECT. It returns the bytes that were read ahead, sets
// deadlines, and serializes acknowledgements and the hub's messages. Senders never wait for a
// device that does not read: the hub's messages wait in the outbox.
//
// A device that reads nothing for 5 s, or sends nothing for one and a half times the keep-alive, is
// disconnected. As long as bytes arrive, a packet gets additional time, at 1 KiB/s. So a slow
// packet keeps the session alive, although MQTT counts only complete packets.
type conn struct {
	net.Conn                  // the TLS connection, if any
	raw            *line.Conn // the connection below TLS
	stats          *counters
	observers      *observers    // get copies of the hub's messages
	maxSilence     time.Duration // the longest time without a byte from the device
	packetDeadline time.Time     // deadline of the packet that is being read; zero: no deadline
	sock           *idle.Conn    // nil: the connection cannot become idle
	impatient      bool          // the next read does not wait
	readAhead      []byte        // bytes read by greet after the CONNECT

	closed atomic.Bool

	mu       sync.Mutex
	busy     bool // a goroutine is writing
	replies  []byte
	requests []message
	waiting  int // total bytes of requests
	desired  *message
}

// newConn returns the connection with its deadlines after CONNECT.
func newConn(c net.Conn, raw *line.Conn, seen []byte, keepAlive time.Duration) *conn {
	_ = raw.SetDeadline(time.Time{}) // clear the deadline of CONNECT
	raw.Listen(func() time.Duration { return keepAlive })
	sock, _ := raw.Conn.(*idle.Conn)
	return &conn{Conn: c, raw: raw, readAhead: seen, maxSilence: keepAlive, sock: sock}
}

// Read first returns what greet has read ahead.
func (c *conn) Read(p []byte) (int, error) {
	eager := c.impatient
	c.impatient = false // the rest of a packet may take time, so wait
	if len(c.readAhead) > 0 {
		n := copy(p, c.readAhead)
		if c.readAhead = c.readAhead[n:]; len(c.readAhead) == 0 {
			c.readAhead = nil
		}
		return n, nil
	}
	if eager && c.sock != nil {
		return c.readAvailable(p)
	}
	until := c.packetDeadline
	if until.IsZero() {
		until = time.Now().Add(c.maxSilence + line.Takes(maxRecord))
	}
	_ = c.raw.SetReadDeadline(until)
	return c.Conn.Read(p)
}

// readAvailable reads what has arrived without waiting, or returns idle.ErrNothing.
func (c *conn) readAvailable(p []byte) (int, error) {
	c.sock.Impatient(true)
	c.raw.Straight(true)
	defer c.sock.Impatient(false)
	defer c.raw.Straight(false)
	return c.Conn.Read(p)
}

// setPacketDeadline sets the deadline of a packet of size bytes; 0: the packet is complete. While
// the size is unknown, TLS may be waiting for the rest of a record.
func (c *conn) setPacketDeadline(size int) {
	if c.packetDeadline = (time.Time{}); size > 0 {
		c.packetDeadline = time.Now().Add(c.maxSilence + line.Takes(size))
	}
}

// Close closes the connection without a blocking TLS alert.
func (c *conn) Close() error {
	c.closed.Store(true)
	return c.raw.Close()
}

// Write writes an acknowledgement, which is one whole packet. While another goroutine writes, the
// packet waits, and is sent before the hub's next message.
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
		return 0, err // busy stays set, because the connection is closed
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

// tryLockWriter makes the caller the writer without waiting. It returns false if there is a writer.
// Until unlockWriter no write blocks, not even a write of TLS.
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

// unlockWriter undoes tryLockWriter. It first writes the bytes for which the socket had no space.
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

// flush writes encrypted bytes for which the socket had no space, then the outbox.
func (c *conn) flush(rest []byte) {
	defer panics.CatchThen("mqtt", func(error) { _ = c.raw.Close() })
	_ = c.raw.SetWriteDeadline(time.Now().Add(writeTimeout + line.Takes(len(rest))))
	if _, err := c.raw.Write(rest); err != nil {
		_ = c.Close()
		return
	}
	c.drain()
}

// send adds a message to the outbox, and reports whether there was space.
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

// drain writes until the outbox is empty: acknowledgements, then requests, then the desired state,
// which can be large.
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
				c.stats.received[requests].Add(1)
				shown = m
			}
			if c.requests = c.requests[1:]; len(c.requests) == 0 {
				c.requests = nil
			}
		case c.desired != nil:
			out, shown = publishPacket(*c.desired), *c.desired
			if next := c.desired; len(next.more) > 0 { // other messages may be sent before the next part
				c.desired = &message{channel: next.channel, topic: next.topic, payload: next.more[0], more: next.more[1:]}
			} else {
				c.desired = nil
			}
			c.stats.received[desireds].Add(1)
		default:
			c.busy = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if shown.topic != "" && c.observers.active() {
			c.observers.withhold(shown.topic, shown.kind, len(shown.payload))
		}
		for _, p := range out {
			if c.put(p) != nil {
				return
			}
		}
	}
}

// put writes a packet. After an error the stream ends within a packet, so put closes the
// connection.
func (c *conn) put(p []byte) error {
	_ = c.raw.SetWriteDeadline(time.Now().Add(writeTimeout + line.Takes(len(p))))
	if _, err := c.Conn.Write(p); err != nil {
		_ = c.Close()
		return err
	}
	return nil
}
