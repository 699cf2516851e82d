package link

import (
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/wire"
)

const (
	fastAck     = time.Second // a chunk acknowledged within this time allows one more chunk in flight
	maxUnderWay = 4           // most chunks in flight
	heldFor     = 100 * time.Millisecond
)

// answers are the reply chunks in flight: one on a slow line, up to four on others, so that a lease
// waits behind at most 100 kB. They include only chunks of this connection; each Stream limits the
// chunks that the hub has not acknowledged.
type answers struct {
	underWay []underWay
	room     int        // limit of chunks in flight, at least 1
	held     *addressed // a chunk that paho did not accept; sent before all others
}

type underWay struct {
	token paho.Token
	size  int // bytes
	since time.Time
	until ackDeadline
}

// more returns the channel of waiting chunks, nil at the limit.
func (s *session) more() <-chan addressed {
	if s.answers.held != nil || len(s.answers.underWay) >= max(s.answers.room, 1) {
		return nil
	}
	return s.l.replies
}

// answered returns the acknowledgement of the nth chunk in flight.
func (s *session) answered(n int) <-chan struct{} {
	if n >= len(s.answers.underWay) {
		return nil
	}
	return s.answers.underWay[n].token.Done()
}

// settleAnswers removes acknowledged and lost chunks. The hub acknowledges in order (MQTT-4.6.0-2),
// so a chunk before an acknowledged one is settled or lost. A lost chunk is not sent again, because
// the hub has already noticed the gap.
func (s *session) settleAnswers(now time.Time) {
	a := &s.answers
	settled := 0
	for i, u := range a.underWay {
		select {
		case <-u.token.Done():
			if a.room++; now.Sub(u.since) >= fastAck {
				a.room = max(a.room/2, 1)
			}
			a.room = min(a.room, maxUnderWay)
			settled = i + 1
		default:
		}
	}
	for ; settled < len(a.underWay) && !now.Before(s.deadline(a.underWay[settled].until)); settled++ {
		a.room = 1
	}
	if a.underWay = a.underWay[settled:]; len(a.underWay) == 0 {
		a.underWay = nil
	}
}

// sendReply publishes a chunk. If paho does not accept the chunk because earlier writes take too
// long, the chunk is sent later, before all others: a reply must have no gap.
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
