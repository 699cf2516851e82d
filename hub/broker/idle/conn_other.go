//go:build !linux

package idle

import (
	"net"
	"time"
)

// A Conn is a plain connection. Without epoll it cannot be idle.
type Conn struct{ net.Conn }

// New returns the connection unchanged.
func New(c net.Conn) net.Conn { return c }

func (c *Conn) Impatient(bool)                 {}
func (c *Conn) Spill(bool) (kept []byte)       { return nil }
func (c *Conn) Received() int64                { return 0 }
func (c *Conn) SetIdle(time.Time, Waiter) bool { return false }
func (c *Conn) Idle() bool                     { return false }
func (c *Conn) Poke()                          {}
