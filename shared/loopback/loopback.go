// Package loopback gives tests and measuring tools addresses on this machine for the
// programs that they start. It is in none of those programs.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
)

// The ports are below those that the kernel gives to outgoing connections (32768 and up on
// Linux): while a program is down, one that dials its port again and again could otherwise
// meet itself, or somebody else the port.
const first, count = 20_000, 12_000

var (
	mu   sync.Mutex
	next = os.Getpid() % count
	kept []net.Listener // each says which port is taken, until this process ends
)

// Address returns 127.0.0.1 with a port that nothing listens on, and that no other caller gets
// as long as this process lives, in whatever process that caller is: many tests run at a time,
// and a program that is killed and started again finds its port free.
func Address() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	for range count {
		port := first + next
		next = (next + 1) % count
		// A name in the kernel, which is gone with the process however that ends.
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
		kept = append(kept, taken)
		return addr, l.Close()
	}
	return "", errors.New("no port between 20000 and 31999 is free on 127.0.0.1")
}
