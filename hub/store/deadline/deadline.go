// Package deadline ends a read or write when the peer of a connection stops answering.
//
// It knows no protocol. Package store uses it for the connections to PostgreSQL, because a frozen
// server, or a network that drops packets, must not block a hub.
package deadline

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// ErrExceeded is not a timeout (net.Error), so that pgx closes the connection.
var ErrExceeded = errors.New("the server does not answer")

// A Conn ends each read and write after Timeout. A deadline that the caller sets takes precedence.
type Conn struct {
	net.Conn
	Timeout time.Duration

	mu      sync.Mutex
	userSet bool
}

// SetDeadline sets the deadline of reads and writes.
func (c *Conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.userSet = !t.IsZero()
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline sets the deadline of reads.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.userSet = !t.IsZero()
	return c.Conn.SetReadDeadline(t)
}

// arm sets the deadline of the next read or write, and reports whether it has set one.
func (c *Conn) arm(set func(time.Time) error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.userSet && set(time.Now().Add(c.Timeout)) == nil
}

func (c *Conn) Read(b []byte) (int, error) {
	armed := c.arm(c.Conn.SetReadDeadline)
	n, err := c.Conn.Read(b)
	return n, c.explain(armed, err)
}

func (c *Conn) Write(b []byte) (int, error) {
	armed := c.arm(c.Conn.SetWriteDeadline)
	n, err := c.Conn.Write(b)
	return n, c.explain(armed, err)
}

func (c *Conn) explain(armed bool, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if armed && !c.userSet && errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrExceeded
	}
	return err
}
