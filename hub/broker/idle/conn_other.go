//go:build !linux

package idle

import (
	"net"
	"time"
)

// A Conn is what there is none of here: nothing is parked.
type Conn struct{ net.Conn }

// New returns the connection as it is.
func New(c net.Conn) net.Conn { return c }

func (c *Conn) Impatient(bool)               {}
func (c *Conn) Spill(bool) (kept []byte)     { return nil }
func (c *Conn) Received() int64              { return 0 }
func (c *Conn) Park(time.Time, Sleeper) bool { return false }
func (c *Conn) Parked() bool                 { return false }
func (c *Conn) Poke()                        {}
