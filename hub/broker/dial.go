package broker

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/line"
)

// brokerSilence is how long a broker may say nothing: paho looks every quarter of the
// keep-alive, so a ping goes out 12.5 s after the last byte came, and has 5 s to come back.
const brokerSilence = minKeepAlive*time.Second + minKeepAlive*time.Second/4 + 5*time.Second

// A brokerConn is the hub's connection to somebody else's broker, with ends that know a slow
// line from a dead one: 5 s in which nothing of what is written is taken, and brokerSilence
// without a byte, longer by what was written meanwhile takes at 1 KiB/s. paho has one time for
// each packet, whatever its size, so that a large one would never get over a slow line.
type brokerConn struct {
	net.Conn              // encrypted, where it is
	raw      *line.Conn   // what is below
	sent     atomic.Int64 // bytes since one has come
	broken   atomic.Pointer[error]
}

func newBrokerConn(c net.Conn, raw *line.Conn) *brokerConn {
	b := &brokerConn{Conn: c, raw: raw}
	raw.Listen(func() time.Duration { return brokerSilence + line.Takes(int(b.sent.Load())) })
	return b
}

func (c *brokerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.sent.Store(0)
	}
	var timeout net.Error
	switch why := c.broken.Load(); {
	case err == nil:
	case why != nil: // the error of a closed connection paho would take for its own doing
		err = *why
	case errors.As(err, &timeout) && timeout.Timeout():
		err = errors.New("no answer from the broker")
	}
	return n, err
}

// Write writes one packet. After a failure the stream is broken inside it: paho, which does not
// act on every one, hears of it from the reader.
func (c *brokerConn) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	_ = c.raw.SetWriteDeadline(time.Now().Add(writeTimeout + line.Takes(len(p))))
	n, err := c.Conn.Write(p)
	if err != nil {
		why := fmt.Errorf("write to the broker: %w", err)
		c.broken.CompareAndSwap(nil, &why)
		_ = c.raw.Close()
	}
	return n, err
}

// Close cuts the connection without a farewell that could block.
func (c *brokerConn) Close() error { return c.raw.Close() }

// SetDeadline is paho's, around CONNECT.
func (c *brokerConn) SetDeadline(t time.Time) error { return c.raw.SetReadDeadline(t) }

// SetWriteDeadline is paho's around each packet, whatever its size; ours knows that.
func (c *brokerConn) SetWriteDeadline(time.Time) error { return nil }
