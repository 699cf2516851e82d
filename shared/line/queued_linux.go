package line

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// queued returns the number of unacknowledged bytes, or -1 if it is unknown.
func (c *Conn) queued() int {
	n := -1
	if s, ok := c.Conn.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				if q, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
					n = q
				}
			})
		}
	}
	return n
}
