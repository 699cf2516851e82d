package link

import (
	"context"
	"fmt"
	"time"

	"flotilla.dev/shared/wire"
)

// inputs are the received inputs that Input has not returned yet, bounded by the hub's window.
// Stream.mu guards them.
type inputs struct {
	waiting      []wire.Request
	received     uint64 // number of the last received input
	returned     uint64 // number of the last input returned by Input
	processed    uint64 // number of the last input that the caller has processed
	acknowledged uint64 // number of the last input acknowledged to the hub
	repeat       bool   // the hub repeated an input, so an acknowledgement was lost
	broken       error  // why no more inputs follow
	came         chan struct{}
}

// arrivedInput queues an input. It runs on paho's reader and must not block.
func (s *Stream) arrivedInput(r wire.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != nil:
	case r.Seq <= s.received:
		s.repeat = true
	case r.Seq > s.received+1:
		s.broken = fmt.Errorf(
			"input %d came after %d: the inputs between were lost on the way from the hub",
			r.Seq,
			s.received,
		)
	case len(s.waiting) >= wire.InputWindow:
		s.broken = fmt.Errorf("the hub has sent more than %d inputs ahead", wire.InputWindow)
	default:
		s.received = r.Seq
		s.waiting = append(s.waiting, r)
	}
	signal(s.came)
}

// Input waits for the hub's next input: stdin, resize or close-stdin. Calling it also acknowledges
// the previous input, so that the hub may send more. After an error no more inputs follow.
func (s *Stream) Input(ctx context.Context) (wire.Request, error) {
	s.mu.Lock()
	s.processed = s.returned
	s.mu.Unlock()
	var due <-chan time.Time
	for {
		s.mu.Lock()
		err := s.broken
		owed := s.processed - s.acknowledged
		if err == nil && len(s.waiting) > 0 && owed < wire.InputWindow/2 {
			r := s.waiting[0]
			s.waiting[0] = wire.Request{}
			if s.waiting = s.waiting[1:]; len(s.waiting) == 0 {
				s.waiting = nil
			}
			s.returned = r.Seq
			s.mu.Unlock()
			return r, nil
		}
		repeat := s.repeat
		s.mu.Unlock()
		switch {
		case err != nil:
			return wire.Request{}, s.fail(err)
		case owed >= wire.InputWindow/2 && s.acknowledgeAlone(ctx):
			continue
		case due == nil && (owed > 0 || repeat):
			due = time.After(ackDelay)
		}
		select {
		case <-s.came:
		case <-due:
			due = nil
			s.acknowledgeAlone(ctx)
		case <-s.Gone():
			return wire.Request{}, s.fail(ErrOffline)
		case <-ctx.Done():
			return wire.Request{}, s.fail(ctx.Err())
		}
	}
}

// acknowledgeAlone sends an acknowledgement in a chunk without data. If a chunk with data is being
// sent, it returns false, because that chunk carries the acknowledgement.
func (s *Stream) acknowledgeAlone(ctx context.Context) bool {
	select {
	case s.order <- struct{}{}:
		defer func() { <-s.order }()
	default:
		return false
	}
	s.mu.Lock()
	due := s.processed > s.acknowledged || s.repeat
	s.mu.Unlock()
	if !due {
		return true
	}
	return !s.full() && s.send(ctx, wire.Reply{}) == nil
}

// acknowledge returns the acknowledgement to put into a chunk.
func (s *Stream) acknowledge() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acknowledged, s.repeat = s.processed, false
	return s.processed
}
