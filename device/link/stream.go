package link

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

const (
	// MaxChunk is the most bytes that one chunk of a reply carries.
	MaxChunk = 32 << 10

	probeAfter = 5 * time.Second       // a full window waits so long before its newest chunk is sent again: the
	probeMost  = time.Minute           // hub's last acknowledgement may be what was lost; doubles up to this
	ackDelay   = 50 * time.Millisecond // output that comes so soon carries the acknowledgement of input
)

// addressed is a chunk on its way to the session.
type addressed struct {
	id      string
	payload []byte
}

// A Stream sends the chunks that answer one request, numbered from 0, at most 64
// ahead of what the hub has acknowledged, and gives out the inputs that come for it.
// It belongs to the connection on which the request came and fails with ErrOffline
// when that ends: the one who asked is gone.
type Stream struct {
	l       *Link
	id      string
	session *session
	order   chan struct{} // held by the one who sends
	next    uint64        // number of the next chunk
	last    []byte        // the newest chunk, as it was sent

	mu    sync.Mutex
	gone  uint64        // chunks acknowledged
	moved chan struct{} // an acknowledgement came
	inputs
}

// Stream begins the answer to a request.
func (l *Link) Stream(id string) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Stream{l: l, id: id, session: l.session, order: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
	s.came = make(chan struct{}, 1)
	l.streams[id] = s
	return s
}

// Gone is closed when the one who asked can no longer be reached.
func (s *Stream) Gone() <-chan struct{} {
	if s.session == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return s.session.done
}

// Send sends a chunk, or as many as its data takes; the last has what r says beside.
// It waits while 64 chunks are not acknowledged. One with EOF ends the stream, even
// if it fails. The link fills in the numbers.
func (s *Stream) Send(ctx context.Context, r wire.Reply) error {
	select {
	case s.order <- struct{}{}:
		defer func() { <-s.order }()
	case <-s.Gone():
		return s.fail(ErrOffline)
	case <-ctx.Done():
		return s.fail(ctx.Err())
	}
	if r.EOF {
		defer s.forget()
	}
	if len(r.Error) > wire.MaxMessage {
		r.Error = clip(r.Error, wire.MaxMessage)
	}
	for ; len(r.Data) > MaxChunk; r.Data = r.Data[MaxChunk:] {
		if err := s.send(ctx, wire.Reply{Data: r.Data[:MaxChunk], Stderr: r.Stderr}); err != nil {
			return err
		}
	}
	return s.send(ctx, r)
}

func (s *Stream) forget() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.streams[s.id] == s {
		delete(s.l.streams, s.id)
	}
}

func (s *Stream) send(ctx context.Context, r wire.Reply) error {
	for wait := probeAfter; s.full(); wait = min(2*wait, probeMost) {
		probe := time.NewTimer(wait)
		select {
		case <-s.moved:
			wait = probeAfter / 2
		case <-probe.C:
			if err := s.hand(ctx, s.last); err != nil {
				return err
			}
		case <-s.Gone():
			return s.fail(ErrOffline)
		case <-ctx.Done():
			return s.fail(ctx.Err())
		}
		probe.Stop()
	}
	r.Seq, r.Ack = s.next, s.acknowledge()
	if s.session != nil && s.session.external {
		r.Boot = s.l.Boot()
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return s.fail(err)
	}
	if err := s.hand(ctx, payload); err != nil {
		return err
	}
	s.last = payload
	s.mu.Lock()
	s.next++
	s.mu.Unlock()
	return nil
}

// hand gives a chunk to the session.
func (s *Stream) hand(ctx context.Context, payload []byte) error {
	if s.session == nil {
		return s.fail(ErrOffline)
	}
	select {
	case s.l.replies <- addressed{s.id, payload}:
		return nil
	case <-s.Gone():
		return s.fail(ErrOffline)
	case <-ctx.Done():
		return s.fail(ctx.Err())
	}
}

func (s *Stream) fail(err error) error { return fmt.Errorf("answer request %s: %w", s.id, err) }

// full says whether as many chunks as may be are not acknowledged.
func (s *Stream) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next-min(s.next, s.gone) >= wire.ReplyWindow // whatever the hub says it has
}

// acked notes that the hub has every chunk up to seq.
func (s *Stream) acked(seq uint64) {
	s.mu.Lock()
	s.gone = max(s.gone, seq+1)
	s.mu.Unlock()
	signal(s.moved)
}
