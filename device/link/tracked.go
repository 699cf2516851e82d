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

// tracked is a kind of message that is sent again until it is acknowledged.
type tracked struct {
	due   bool
	token paho.Token // in flight
	size  int        // bytes of it
	sent  time.Time
	until ackDeadline
	after time.Time // no other one before
}

// ackDeadline is when something that was sent counts as lost: at a moment, and as much later
// as the hub has sent something meanwhile. Its acknowledgement comes behind that, which on
// a slow line can be a desired state of a minute.
type ackDeadline struct {
	at       time.Time
	received time.Duration // until then
}

// ends is when a patience ends, as far as is known now.
func (s *session) ends(p ackDeadline) time.Time { return p.at.Add(s.received() - p.received) }

func (s *session) received() time.Duration {
	if s.raw == nil {
		return 0
	}
	return s.raw.Received()
}

// acked returns a channel that is ready when the one in flight is.
func (t *tracked) acked() <-chan struct{} {
	if t.token == nil {
		return nil
	}
	return t.token.Done()
}

// settle looks what has become of the messages in flight.
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
				s.unacked, s.l.deaf, s.l.acked = 0, 0, true
				s.l.unheard.Store(false)
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
		if now.Before(s.ends(t.until)) {
			continue
		}
		t.token, t.due = nil, true
		s.l.unheard.Store(s.external)
		if t == &s.pods {
			s.list = podList{}
		}
		if s.unacked++; s.unacked >= s.maxUnacked() {
			s.l.deaf++
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

// publish sends at QoS 1 and notes it as in flight. What cannot be sent at all is
// logged and not tried again before it changes: it would be no smaller.
func (s *session) publish(t *tracked, c wire.Channel, v any) {
	payload, err := json.Marshal(v)
	switch {
	case err != nil:
	case c == wire.ChannelStatus:
		payload, err = wire.Pack(payload)
	case len(payload) > wire.MaxFromDevice:
		err = fmt.Errorf("it has %d bytes, the hub reads at most %d", len(payload), wire.MaxFromDevice)
	}
	if err != nil {
		s.l.log.Error("send to the hub", "node", s.l.cfg.Node, "channel", c, "err", err)
		return
	}
	s.track(t, c, payload)
}

// track sends a payload and notes it as in flight. It has the longer to get through, the
// more bytes it and those before it have.
func (s *session) track(t *tracked, c wire.Channel, payload []byte) {
	l := s.l
	var acked *hubAck // before it is sent: the answer may be faster
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

// lostAt is when something of so many bytes that goes out now counts as lost.
func (s *session) lostAt(bytes int) ackDeadline {
	after := ackTimeout
	if s.external { // the hub may be what is away, and asks for what it lacks when it is back
		after <<= min(s.unacked/2, maxDeaf)
	}
	return ackDeadline{time.Now().Add(after + line.Takes(s.inFlight()+bytes)), s.received()}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// inFlight is how many bytes are on the line and not acknowledged.
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
