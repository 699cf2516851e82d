package listen

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"
)

// An endless client always has data to read.
type endless struct {
	net.Conn
	reads *atomic.Int64
}

func (c endless) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return len(p), nil
}

// However many clients send without pause, other goroutines run after one read of each client, not
// after 10 ms of each.
func TestBusyClientsAreReadInTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const clients, turns = 50, 20
	var reads atomic.Int64
	var over atomic.Bool
	defer over.Store(true)
	for range clients {
		c := &Conn{Conn: endless{reads: &reads}}
		c.authenticated.Store(true)
		go func() {
			for b := make([]byte, 1); !over.Load(); {
				_, _ = c.Read(b)
			}
		}()
	}
	for range turns {
		runtime.Gosched()
	}
	// The runtime preempts sometimes, so a few more reads are allowed.
	if n := reads.Load(); n < clients || n > 10*turns*clients {
		t.Errorf("%d reads of %d clients while another goroutine ran %d times, want about %d", n, clients, turns,
			turns*clients)
	}
}
