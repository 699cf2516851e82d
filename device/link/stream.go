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
	// MaxChunk is the most bytes of a reply chunk.
	MaxChunk = 32 << 10

	probeAfter = 5 * time.Second       // after this pause a full window sends its newest chunk again, since the hub's
	probeMost  = time.Minute           // acknowledgement may be lost; the pause doubles up to probeMost
	ackDelay   = 50 * time.Millisecond // an acknowledgement of input waits this long for output that can carry it
)

// An addressed is a chunk with the id of its request, on its way to the session.
type addressed struct {
	id      string
	payload []byte
}

// A Stream sends the reply chunks of one request and returns the request's inputs. Chunks are
// numbered from 0, at most 64 ahead of the hub's acknowledgement. When the connection of the
// request ends, the stream fails with ErrOffline, since the requester is gone.
type Stream struct {
	l       *Link
	id      string
	session *session
	order   chan struct{} // semaphore: one Send at a time
	next    uint64        // number of the next chunk
	last    []byte        // payload of the newest chunk

	mu    sync.Mutex
	gone  uint64        // number of acknowledged chunks
	moved chan struct{} // signals an acknowledgement
	inputs
}

// Stream begins the reply to a request.
func (l *Link) Stream(id string) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Stream{l: l, id: id, session: l.session, order: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
	s.came = make(chan struct{}, 1)
	l.streams[id] = s
	return s
}

// Gone returns a channel that is closed when the requester can no longer be reached.
func (s *Stream) Gone() <-chan struct{} {
	if s.session == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return s.session.done
}

// Send sends data in as many chunks as needed; the last chunk has r's other fields. Send waits
// while 64 chunks are unacknowledged. With r.EOF the stream ends even if the call fails. The link
// fills in the numbers.
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

// hand passes a chunk to the session.
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

// full reports whether the window is full.
func (s *Stream) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next-min(s.next, s.gone) >= wire.ReplyWindow // a faulty hub may acknowledge more than was sent
}

// acked records that the hub has every chunk up to number seq.
func (s *Stream) acked(seq uint64) {
	s.mu.Lock()
	s.gone = max(s.gone, seq+1)
	s.mu.Unlock()
	signal(s.moved)
}
