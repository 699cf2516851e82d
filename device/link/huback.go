package link

import (
	"fmt"
	"time"

	"flotilla.dev/shared/wire"
)

// A hubAck is a message that the hub itself acknowledges. Behind a broker it takes the place of the
// PUBACK token.
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

// expect registers a payload that the hub will acknowledge. One of each kind is in flight.
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

// isForUs reports whether the hub's requests to the node are for this device. A broker lets in
// every device with a certificate of the node's name, so a clone or a replaced device receives them
// too. The hub acknowledges only the statuses of its own device; until then a desired state waits
// and requests are dropped.
func (l *Link) isForUs() bool { return l.known.Load() }

// Unheard reports whether the device is connected to a broker whose hub does not acknowledge its
// messages: the hub may be down or have other addresses.
func (l *Link) Unheard() bool { return l.unheard.Load() }

// unacked is the number of messages in a row that the hub has not acknowledged; it ends a session.
type unacked int

func (n unacked) Error() string {
	return fmt.Sprintf("the hub has acknowledged none of the last %d messages", int(n))
}

// maxDoublings bounds how often the limit doubles: up to 96 messages, each with up to 5 minutes.
const maxDoublings = 5

// maxUnacked is the number of unacknowledged messages after which the connection counts as broken.
// Behind a broker the hub may be down, and a fleet that reconnects every half minute would only
// load the broker; so the limit doubles with each such session.
func (s *session) maxUnacked() int {
	if !s.external {
		return maxUnacked
	}
	return maxUnacked << min(s.l.silentSessions, maxDoublings)
}
