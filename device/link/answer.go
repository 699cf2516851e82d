package link

import (
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/wire"
)

const (
	quickly     = time.Second // a line on which a chunk is acknowledged in this time may carry more of them at once
	maxUnderWay = 4           // chunks of replies on the line at once
	heldFor     = 100 * time.Millisecond
)

// answers are the chunks of replies on their way to the hub: few, so that a lease
// never waits behind more than some 100 kB of them, and one at a time where the
// line is slow. That the hub has them is for the window of each stream to know.
type answers struct {
	underWay []underWay
	room     int        // how many there may be, from 1
	held     *addressed // could not be handed to paho; goes before all others
}

type underWay struct {
	token paho.Token
	size  int // bytes
	since time.Time
	until ackDeadline
}

// more is where the next chunk comes from, nil while there is no room for it.
func (s *session) more() <-chan addressed {
	if s.answers.held != nil || len(s.answers.underWay) >= max(s.answers.room, 1) {
		return nil
	}
	return s.l.replies
}

// answered is ready when the nth chunk on the line is acknowledged.
func (s *session) answered(n int) <-chan struct{} {
	if n >= len(s.answers.underWay) {
		return nil
	}
	return s.answers.underWay[n].token.Done()
}

// settleAnswers looks which chunks have arrived, and makes room. The hub
// acknowledges in order (MQTT-4.6.0-2): with a chunk, those before it are settled
// too, and one of them that was not acknowledged is lost. To send it again would
// be of no use: the hub has seen the gap.
func (s *session) settleAnswers(now time.Time) {
	a := &s.answers
	settled := 0
	for i, u := range a.underWay {
		select {
		case <-u.token.Done():
			if a.room++; now.Sub(u.since) >= quickly {
				a.room = max(a.room/2, 1)
			}
			a.room = min(a.room, maxUnderWay)
			settled = i + 1
		default:
		}
	}
	for ; settled < len(a.underWay) && !now.Before(s.ends(a.underWay[settled].until)); settled++ {
		a.room = 1
	}
	if a.underWay = a.underWay[settled:]; len(a.underWay) == 0 {
		a.underWay = nil
	}
}

// sendReply publishes a chunk. One that paho does not take, because what came
// before takes too long to write, is tried again: none may be left out.
func (s *session) sendReply(r addressed) {
	token := s.client.Publish(wire.ReplyTopic(s.l.cfg.Prefix, s.l.cfg.Node, r.id), 1, false, r.payload)
	select {
	case <-token.Done():
		if token.Error() != nil {
			s.answers.held = &r
			return
		}
	default:
	}
	s.answers.held = nil
	s.answers.underWay = append(s.answers.underWay, underWay{token, len(r.payload), time.Now(), s.lostAt(len(r.payload))})
}
