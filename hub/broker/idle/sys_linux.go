package idle

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// addrPort returns a TCP address in its smallest form.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, _ := a.(*net.TCPAddr)
	return tcp.AddrPort()
}

// SyscallConn is for socket options only, not for reading or writing.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return control{c}, nil }

type control struct{ c *Conn }

func (r control) Control(f func(fd uintptr)) error {
	if !r.c.begin() {
		return net.ErrClosed
	}
	defer r.c.fdLock.RUnlock()
	f(uintptr(r.c.fd))
	return nil
}

func (control) Read(func(uintptr) bool) error  { return errors.ErrUnsupported }
func (control) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

func (c *Conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

func ignoringEINTR(do func(int, []byte) (int, error), fd int, p []byte) (n int, err error) {
	for {
		if n, err = do(fd, p); err != unix.EINTR {
			return n, err
		}
	}
}
