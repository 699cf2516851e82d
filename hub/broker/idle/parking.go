// Package idle holds many TCP connections on which little comes, such as those of
// devices that renew a lease every ten seconds.
//
// With Go's own poller each of them costs a goroutine with its stack, and each packet wakes two
// threads of the process: on a quiet machine that is most of what a lease costs. Here a connection
// can be parked: it has no goroutine, and what comes on it is told to its Sleeper by the one
// goroutine that waits for all of them. Where much comes, that one wakes at most once in a tick, so
// that a thousand packets a second are a hundred wake-ups; where little comes, with each. What is
// not parked behaves as any net.Conn, but that it may hear of what comes a tick later. Where there
// is no epoll, connections stay as they are and cannot be parked.
//
// The package knows no protocol. Its neighbour is hub/broker, which decides when a
// connection may be parked, and which packets are small enough to be answered there.
package idle

import (
	"time"
)

// tick is the time between two wake-ups where much comes.
const tick = 10 * time.Millisecond

// ErrNothing is what a read of a connection that was told not to wait says when nothing
// is there. To TLS it is a passing error: it goes on where it was.
var ErrNothing error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "nothing has come" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

// A Sleeper is told what becomes of a parked connection; with that it is parked no more.
// It is called on the goroutine that serves all connections: it must not wait.
type Sleeper interface {
	// Wake says that something has come, or that the connection was closed. scratch is
	// the caller's, for reading.
	Wake(scratch []byte)
	// Expire says that nothing came in time.
	Expire()
}
