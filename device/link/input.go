package link

import (
	"context"
	"fmt"
	"time"

	"flotilla.dev/shared/wire"
)

// inputs are the received inputs of a stream that the caller has not taken, bounded by the hub's
// window. Stream.mu guards them.
type inputs struct {
	waiting []wire.Request
	heard   uint64 // number of the last received input
	given   uint64 // of the last one returned by Input
	taken   uint64 // of the last one that the caller has processed
	told    uint64 // of the last one acknowledged to the hub
	repeat  bool   // the hub repeated one: an acknowledgement was lost
	broken  error  // why there are no more
	came    chan struct{}
}

// arrivedInput stores an input. It runs on paho's reader and must not block.
func (s *Stream) arrivedInput(r wire.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != nil:
	case r.Seq <= s.heard:
		s.repeat = true
	case r.Seq > s.heard+1:
		s.broken = fmt.Errorf("input %d came after %d: what lies between was lost on the way from the hub", r.Seq, s.heard)
	case len(s.waiting) >= wire.InputWindow:
		s.broken = fmt.Errorf("the hub has sent more than %d inputs ahead", wire.InputWindow)
	default:
		s.heard = r.Seq
		s.waiting = append(s.waiting, r)
	}
	signal(s.came)
}

// Input waits for the hub's next input: stdin, resize or close-stdin. The call also means that the
// previous input is processed, which makes room for more. After an error there are no more inputs.
func (s *Stream) Input(ctx context.Context) (wire.Request, error) {
	s.mu.Lock()
	s.taken = s.given
	s.mu.Unlock()
	var due <-chan time.Time
	for {
		s.mu.Lock()
		err := s.broken
		owed := s.taken - s.told
		if err == nil && len(s.waiting) > 0 && owed < wire.InputWindow/2 {
			r := s.waiting[0]
			s.waiting[0] = wire.Request{}
			if s.waiting = s.waiting[1:]; len(s.waiting) == 0 {
				s.waiting = nil
			}
			s.given = r.Seq
			s.mu.Unlock()
			return r, nil
		}
		repeat := s.repeat
		s.mu.Unlock()
		switch {
		case err != nil:
			return wire.Request{}, s.fail(err)
		case owed >= wire.InputWindow/2 && s.sayTaken(ctx):
			continue
		case due == nil && (owed > 0 || repeat):
			due = time.After(ackDelay)
		}
		select {
		case <-s.came:
		case <-due:
			due = nil
			s.sayTaken(ctx)
		case <-s.Gone():
			return wire.Request{}, s.fail(ErrOffline)
		case <-ctx.Done():
			return wire.Request{}, s.fail(ctx.Err())
		}
	}
}

// sayTaken sends an acknowledgement in a chunk without data, unless a chunk with data is being
// sent, which carries it too.
func (s *Stream) sayTaken(ctx context.Context) bool {
	select {
	case s.order <- struct{}{}:
		defer func() { <-s.order }()
	default:
		return false
	}
	s.mu.Lock()
	due := s.taken > s.told || s.repeat
	s.mu.Unlock()
	if !due {
		return true
	}
	return !s.full() && s.send(ctx, wire.Reply{}) == nil
}

// acknowledge returns the acknowledgement for a chunk.
func (s *Stream) acknowledge() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.repeat = s.taken, false
	return s.taken
}
