package link

import (
	"fmt"
	"time"

	"flotilla.dev/shared/wire"
)

// A hubAck is the hub's own acknowledgement of a message. Behind a broker it replaces the PUBACK
// token.
type hubAck struct {
	of   string
	done chan struct{}
}

func (a *hubAck) Done() <-chan struct{} { return a.done }
func (a *hubAck) Error() error          { return nil }
func (a *hubAck) Wait() bool            { <-a.done; return true }
func (a *hubAck) WaitTimeout(d time.Duration) bool {
	select {
	case <-a.done:
		return true
	case <-time.After(d):
		return false
	}
}

// expect registers a payload that the hub will acknowledge. It replaces an older one of the same
// kind.
func (l *Link) expect(c wire.Channel, payload []byte) *hubAck {
	a := &hubAck{wire.AckOf(payload), make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acks == nil {
		l.acks = map[wire.Channel]*hubAck{}
	}
	l.acks[c] = a
	return a
}

func (l *Link) ackedByHub(of string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, a := range l.acks {
		if a.of == of {
			close(a.done)
			delete(l.acks, c)
			if c == wire.ChannelStatus {
				l.known.Store(true)
				signal(l.deliver)
			}
		}
	}
}

// isForUs reports whether the hub's requests to the node are meant for this device. A broker admits
// every device with a certificate for the node's name, so a clone or a replaced device receives
// them too. The hub acknowledges only the statuses of its own device. Until the first
// acknowledgement a desired state waits and requests are dropped.
func (l *Link) isForUs() bool { return l.known.Load() }

// Unheard reports whether the device is connected to a broker but the hub does not acknowledge its
// messages: the hub may be down or have other addresses.
func (l *Link) Unheard() bool { return l.unheard.Load() }

// unacked is the error that ends a session: that many consecutive messages were not acknowledged.
type unacked int

func (n unacked) Error() string {
	return fmt.Sprintf("the hub has acknowledged none of the last %d messages", int(n))
}

// maxDoublings limits the doubling in maxUnacked: up to 96 messages, each with a timeout of up to 5
// minutes.
const maxDoublings = 5

// maxUnacked returns the number of unacknowledged messages after which the connection counts as
// broken. Behind a broker the limit doubles with each such session: the hub may be down, and a
// fleet that reconnects every half minute would only load the broker.
func (s *session) maxUnacked() int {
	if !s.external {
		return maxUnacked
	}
	return maxUnacked << min(s.l.silentSessions, maxDoublings)
}
