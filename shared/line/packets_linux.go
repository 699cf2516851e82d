package line

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// packets bounds what this end sends, and what it lets the other end send. A kernel that does not
// do it has connections still.
func packets(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, Packet) })
}
