// Package loopback gives tests and measuring tools free ports on this machine for the programs that
// they start. Those programs do not use it.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
)

// The ports are below those of outgoing connections (32768 and up on Linux). Otherwise a client
// that dials a stopped program's port could connect to itself, or another program could get the
// port.
const first, count = 20_000, 12_000

var (
	mu       sync.Mutex
	next     = os.Getpid() % count
	reserved []net.Listener // each listener reserves a port until this process ends
)

// Address returns 127.0.0.1 with a free port. No other caller, in any process, gets the port while
// this process runs. So parallel tests do not collide, and a restarted program finds its port free.
func Address() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	for range count {
		port := first + next
		next = (next + 1) % count
		// An abstract socket name disappears with the process.
		taken, err := net.Listen("unix", fmt.Sprintf("@flotilla-port-%d", port))
		if err != nil {
			continue
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			_ = taken.Close()
			continue
		}
		reserved = append(reserved, taken)
		return addr, l.Close()
	}
	return "", errors.New("no port between 20000 and 31999 is free on 127.0.0.1")
}
