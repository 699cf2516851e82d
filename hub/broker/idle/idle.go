// Package idle keeps many TCP connections without goroutines while they are idle, for example
// connections of devices that renew a lease every ten seconds.
//
// With Go's poller each connection costs a goroutine with its stack, and each packet wakes two
// threads. Here one goroutine per two processors waits for all idle connections and calls their
// Waiters. Under load it wakes once per tick, so that a thousand packets a second are a hundred
// wake-ups. A connection that is not idle behaves like any net.Conn. Without epoll no connection
// can be idle. The package knows no protocol; hub/broker decides when a connection is idle.
package idle

import (
	"time"
)

// tick is the time between two wake-ups under load.
const tick = 10 * time.Millisecond

// ErrNothing is the result of an impatient read without data. TLS treats it as temporary, so later
// reads work.
var ErrNothing error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "no data available" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

// A Waiter is called when an idle connection needs attention, which ends the idle state. It runs on
// the poller's goroutine and must not block.
type Waiter interface {
	// Wake is called when data has arrived or the connection was closed. scratch is a read buffer
	// that is valid during the call.
	Wake(scratch []byte)
	// Expire is called at the deadline.
	Expire()
}
