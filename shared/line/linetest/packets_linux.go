package linetest

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Sends returns the largest payload, in bytes, of a packet of a TCP connection.
func Sends(t testing.TB, c net.Conn) (size int) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if e := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return int(info.Snd_mss)
}
