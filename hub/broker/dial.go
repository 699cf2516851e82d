package broker

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/line"
)

// brokerSilence is how long a broker may be silent. paho checks every quarter of the keep-alive, so
// it sends a ping at the latest 12.5 s after the last byte. The broker has 5 s to respond.
const brokerSilence = minKeepAlive*time.Second + minKeepAlive*time.Second/4 + 5*time.Second

// A brokerConn is the connection to an external broker, with timeouts that tolerate a slow network:
// 5 s without progress of a write, and brokerSilence without a byte, plus the time for written
// bytes at 1 KiB/s. paho's fixed timeout per packet would end a large packet on a slow network.
type brokerConn struct {
	net.Conn              // the TLS connection, if any
	raw      *line.Conn   // the connection below TLS
	sent     atomic.Int64 // bytes sent since the last received byte
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
	case why != nil: // paho ignores the error of a closed connection
		err = *why
	case errors.As(err, &timeout) && timeout.Timeout():
		err = errors.New("no response from the broker")
	}
	return n, err
}

// Write writes one packet. After an error the stream ends within a packet. Because paho does not
// handle every write error, the reader returns it.
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

// Close closes the connection without a blocking TLS alert.
func (c *brokerConn) Close() error { return c.raw.Close() }

// SetDeadline is called by paho around CONNECT.
func (c *brokerConn) SetDeadline(t time.Time) error { return c.raw.SetReadDeadline(t) }

// SetWriteDeadline is called by paho for each packet; Write has its own timeout.
func (c *brokerConn) SetWriteDeadline(time.Time) error { return nil }
