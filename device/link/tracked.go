package link

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// A tracked is a kind of message that is repeated until it is acknowledged.
type tracked struct {
	due   bool
	token paho.Token // token of the message in flight
	size  int        // bytes of the message in flight
	sent  time.Time
	until ackDeadline
	after time.Time // earliest time of the next message
}

// An ackDeadline is the time at which a message counts as lost. It moves by the time that the hub
// spends sending other data, because the acknowledgement comes behind that data: on a slow line a
// desired state takes a minute.
type ackDeadline struct {
	at       time.Time
	received time.Duration // total receiving time when the deadline was set
}

// deadline returns the deadline, moved by the receiving time since it was set.
func (s *session) deadline(p ackDeadline) time.Time { return p.at.Add(s.received() - p.received) }

func (s *session) received() time.Duration {
	if s.raw == nil {
		return 0
	}
	return s.raw.Received()
}

// acked returns a channel that is ready when the message in flight is acknowledged.
func (t *tracked) acked() <-chan struct{} {
	if t.token == nil {
		return nil
	}
	return t.token.Done()
}

// settle completes acknowledged messages and marks lost ones to be sent again.
func (s *session) settle(now time.Time) error {
	for _, t := range []*tracked{&s.status, &s.pods, &s.event} {
		if t.token == nil {
			continue
		}
		select {
		case <-t.token.Done():
			err := t.token.Error()
			t.token = nil
			if err == nil {
				s.unacked, s.l.silentSessions, s.l.acked = 0, 0, true
				s.l.unheard.Store(false)
				s.l.heard.Store(true)
			}
			switch {
			case t == &s.pods:
				s.podsAcked(err)
			case err != nil:
				t.due = true
			case t == &s.event:
				s.dropEvent()
			case t == &s.status:
				s.rtt = max(math.Round(now.Sub(t.sent).Seconds()*1000), 1) / 1000
			}
			continue
		default:
		}
		if now.Before(s.deadline(t.until)) {
			continue
		}
		t.token, t.due = nil, true
		s.l.unheard.Store(s.external)
		if t == &s.pods {
			s.list = podList{}
		}
		if s.unacked++; s.unacked >= s.maxUnacked() {
			s.l.silentSessions++
			return unacked(s.unacked)
		}
	}
	s.settleAnswers(now)
	if s.lease != nil {
		select {
		case <-s.lease.Done():
			s.leased(s.lease.Error(), now)
			s.lease = nil
		default:
		}
	}
	return nil
}

// publish sends a message at QoS 1. A message that cannot be encoded or is too large is logged, and
// not sent again before it changes.
func (s *session) publish(t *tracked, c wire.Channel, v any) {
	payload, err := json.Marshal(v)
	switch {
	case err != nil:
	case c == wire.ChannelStatus:
		payload, err = wire.Pack(payload)
	case len(payload) > wire.MaxFromDevice:
		err = fmt.Errorf("the message has %d bytes, the hub reads at most %d", len(payload), wire.MaxFromDevice)
	}
	if err != nil {
		s.l.log.Error("cannot send a message to the hub", "node", s.l.cfg.Node, "channel", c, "err", err)
		return
	}
	s.track(t, c, payload)
}

// track sends a payload and records it as in flight. Its deadline grows with its bytes and with the
// bytes already in flight.
func (s *session) track(t *tracked, c wire.Channel, payload []byte) {
	l := s.l
	var acked *hubAck // registered first: the acknowledgement may be fast
	if s.external && c != wire.ChannelPresence {
		acked = l.expect(c, payload)
	}
	t.token = s.client.Publish(wire.Topic(l.cfg.Prefix, l.cfg.Node, c), 1, false, payload)
	if acked != nil {
		t.token = acked
	}
	t.size, t.sent = len(payload), time.Now()
	t.until = s.lostAt(0)
}

// lostAt returns the ack deadline of a message of this size that is sent now.
func (s *session) lostAt(bytes int) ackDeadline {
	after := ackTimeout
	if s.external { // the hub may be down: when it is back, it requests missing messages
		after <<= min(s.unacked/2, maxDoublings)
	}
	return ackDeadline{time.Now().Add(after + line.Takes(s.inFlight()+bytes)), s.received()}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// inFlight returns the bytes without an acknowledgement.
func (s *session) inFlight() (bytes int) {
	for _, t := range []*tracked{&s.status, &s.pods, &s.event} {
		if t.token != nil {
			bytes += t.size
		}
	}
	for _, u := range s.answers.underWay {
		bytes += u.size
	}
	return bytes
}
