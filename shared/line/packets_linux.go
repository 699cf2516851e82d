package line

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// packets limits the packets that this end sends and accepts. If the kernel refuses, the connection
// still works.
func packets(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, Packet) })
}
