package link

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

// MaxChunk is the most bytes that one chunk of a reply carries.
const MaxChunk = 128 << 10

// probeAfter is how long a full window waits before its newest chunk is sent
// again: the hub's last acknowledgement may be what was lost.
const probeAfter = 5 * time.Second

// addressed is a chunk on its way to the session.
type addressed struct {
	id      string
	payload []byte
}

// A Stream sends the chunks that answer one request, numbered from 0, at most 64
// ahead of what the hub has acknowledged. It belongs to the connection on which the
// request came and fails with ErrOffline when that ends: the one who asked is gone.
// One goroutine sends.
type Stream struct {
	l       *Link
	id      string
	session *session
	next    uint64 // number of the next chunk
	last    []byte // the newest chunk, as it was sent

	mu    sync.Mutex
	gone  uint64        // chunks acknowledged
	moved chan struct{} // an acknowledgement came
}

// Stream begins the answer to a request.
func (l *Link) Stream(id string) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Stream{l: l, id: id, session: l.session, moved: make(chan struct{}, 1)}
	l.streams[id] = s
	return s
}

// Send sends data, in as many chunks as it takes. It waits while 64 chunks are not
// acknowledged.
func (s *Stream) Send(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), MaxChunk)
		if err := s.send(ctx, wire.Reply{Data: data[:n]}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// End ends the answer; text says what went wrong, and is empty if nothing did.
func (s *Stream) End(ctx context.Context, text string) error {
	defer func() {
		s.l.mu.Lock()
		defer s.l.mu.Unlock()
		if s.l.streams[s.id] == s {
			delete(s.l.streams, s.id)
		}
	}()
	return s.send(ctx, wire.Reply{EOF: true, Error: text})
}

func (s *Stream) send(ctx context.Context, r wire.Reply) error {
	for s.ahead() >= wire.ReplyWindow {
		probe := time.NewTimer(probeAfter)
		select {
		case <-s.moved:
		case <-probe.C:
			if err := s.hand(ctx, s.last); err != nil {
				return err
			}
		case <-s.over():
			return s.fail(ErrOffline)
		case <-ctx.Done():
			return s.fail(ctx.Err())
		}
		probe.Stop()
	}
	r.Seq = s.next
	payload, err := json.Marshal(r)
	if err != nil {
		return s.fail(err)
	}
	if err := s.hand(ctx, payload); err != nil {
		return err
	}
	s.next, s.last = s.next+1, payload
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
	case <-s.over():
		return s.fail(ErrOffline)
	case <-ctx.Done():
		return s.fail(ctx.Err())
	}
}

func (s *Stream) fail(err error) error { return fmt.Errorf("answer request %s: %w", s.id, err) }

// over is closed when the session is.
func (s *Stream) over() <-chan struct{} {
	if s.session == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return s.session.done
}

// ahead is how many chunks are not acknowledged.
func (s *Stream) ahead() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next - min(s.next, s.gone) // whatever the hub says it has
}

// acked notes that the hub has every chunk up to seq.
func (s *Stream) acked(seq uint64) {
	s.mu.Lock()
	s.gone = max(s.gone, seq+1)
	s.mu.Unlock()
	signal(s.moved)
}

// sendReply publishes a chunk. Its acknowledgement by MQTT is not waited for: the
// hub's own, with the window, is what counts.
func (s *session) sendReply(r addressed) {
	s.client.Publish(wire.ReplyTopic(s.l.cfg.Prefix, s.l.cfg.Node, r.id), 1, false, r.payload)
}
