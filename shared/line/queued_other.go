//go:build !linux

package line

// queued returns -1, unknown: on this system written bytes count.
func (c *Conn) queued() int { return -1 }
