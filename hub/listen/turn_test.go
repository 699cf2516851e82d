package listen

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"
)

// An endless client always has something to be read.
type endless struct {
	net.Conn
	reads *atomic.Int64
}

func (c endless) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return len(p), nil
}

// However many clients send without end, whoever has something else to do has a turn after each
// has been read once, and not after each has been read for 10 ms.
func TestWhoeverSendsWithoutEndIsReadInTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const clients, turns = 50, 20
	var reads atomic.Int64
	var over atomic.Bool
	defer over.Store(true)
	for range clients {
		c := &Conn{Conn: endless{reads: &reads}}
		c.known.Store(true)
		go func() {
			for b := make([]byte, 1); !over.Load(); {
				_, _ = c.Read(b)
			}
		}()
	}
	for range turns {
		runtime.Gosched()
	}
	// A few more are read where the runtime looks after itself in between.
	if n := reads.Load(); n < clients || n > 10*turns*clients {
		t.Errorf("%d reads of %d clients while another had %d turns, want some %d", n, clients, turns, turns*clients)
	}
}
