package link

import (
	"fmt"
	"time"

	"flotilla.dev/shared/wire"
)

// A hubAck is a message that the hub itself acknowledges. It stands where paho's token of a
// PUBACK stands for a hub without a broker before it.
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

// expect notes that a payload is to be acknowledged. One of each kind is in flight.
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

// isForUs tells whether what the hub asks of the node is meant for this device. A broker lets in
// whoever has a certificate of the node's name: a clone hears all that is sent to the node, as does
// a device that was replaced, and both would run, reboot and answer what is the other's. The hub
// acknowledges the statuses of the one that it takes for the node; until then a desired state
// waits, and a request is not this device's.
func (l *Link) isForUs() bool { return l.known.Load() }

// Unheard says whether the device is connected to a broker whose hub does not acknowledge
// what it says: the hub may be away, or may have other addresses now.
func (l *Link) Unheard() bool { return l.unheard.Load() }

// unacked is how many messages in a row the hub has not acknowledged, as the end of a session.
type unacked int

func (n unacked) Error() string {
	return fmt.Sprintf("the hub has acknowledged none of the last %d messages", int(n))
}

// maxDeaf bounds how often the patience with a hub doubles, to 96 messages, and how long each is
// waited for, to 5 minutes.
const maxDeaf = 5

// maxUnacked is how many messages in a row the hub may leave unacknowledged before the
// connection counts as broken. Behind a broker the hub may be what is away, and another
// connection would not help: a fleet that reconnected every half minute would cost the broker
// more than it finds out.
func (s *session) maxUnacked() int {
	if !s.external {
		return maxUnacked
	}
	return maxUnacked << min(s.l.deaf, maxDeaf)
}
