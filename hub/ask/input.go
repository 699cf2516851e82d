package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/wire"
)

const (
	growBelow   = time.Second            // the window grows if an acknowledgement takes less than this
	probeMin    = 5 * time.Second        // first wait before a repeat of the newest input; doubles each time
	probeMax    = 30 * time.Second       // longest wait
	retryAfter  = 100 * time.Millisecond // retry when the broker's outbox is full
	firstWindow = 2                      // initial window
)

// An input is the input of an open request. Its window limits the unacknowledged chunks. It is
// small for a slow device or network, so that other messages do not wait for input. A device
// refuses input after a gap; the sender repeats the newest chunk to find out whether one was lost.
type input struct {
	q     *request
	order chan struct{} // the sender's lock
	room  chan struct{}

	mu     sync.Mutex
	sent   uint64
	taken  uint64
	window uint64 // chunks in the window, 1 to wire.InputWindow
	times  [wire.InputWindow]time.Time
	newest wire.Request
	probe  *time.Timer
	wait   time.Duration // time until the next probe
	ended  bool
}

func (i *input) begin(q *request) {
	i.q, i.window = q, firstWindow
	i.order, i.room = make(chan struct{}, 1), make(chan struct{}, 1)
}

// acked handles an acknowledgement of all input up to seq. It returns false if seq was not sent
// yet.
func (i *input) acked(seq uint64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if seq <= i.taken {
		return true
	}
	if seq > i.sent {
		return false
	}
	if time.Since(i.times[seq%wire.InputWindow]) < growBelow {
		i.window = min(i.window+1, wire.InputWindow)
	} else {
		i.window = max(i.window/2, 1)
	}
	i.taken = seq
	i.watch(probeMin)
	signal(i.room)
	return true
}

// watch repeats the newest input until it is acknowledged.
func (i *input) watch(wait time.Duration) {
	if i.probe != nil {
		i.probe.Stop()
		i.probe = nil
	}
	if i.wait = wait; i.ended || i.taken == i.sent {
		return
	}
	i.probe = time.AfterFunc(wait, func() {
		defer panics.Catch("input")
		i.mu.Lock()
		newest, due := i.newest, !i.ended && i.taken < i.sent
		if due {
			i.watch(min(2*i.wait, probeMax))
		}
		i.mu.Unlock()
		if due {
			_ = i.q.client.Broker.Request(i.q.node, i.q.id, newest)
		}
	})
}

func (i *input) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended, i.newest = true, wire.Request{}
	i.watch(probeMin)
}

// put sends an input as soon as the window has room.
func (i *input) put(ctx context.Context, r wire.Request) error {
	q := i.q
	select {
	case i.order <- struct{}{}:
		defer func() { <-i.order }()
	case <-q.done:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
	for ctx.Err() != nil || !i.number(&r) {
		select {
		case <-i.room:
		case <-q.done:
			return io.ErrClosedPipe
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for q.client.Broker.Request(q.node, q.id, r) != nil {
		select {
		case <-time.After(retryAfter):
		case <-q.done: // the request has ended or the link is lost
			return io.ErrClosedPipe
		case <-ctx.Done():
			q.fail(ErrLost) // the chunk has a number but was not sent
			return ctx.Err()
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watch(probeMin)
	return nil
}

// number assigns the next number if the window has room.
func (i *input) number(r *wire.Request) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended || i.sent-i.taken >= i.window {
		return false
	}
	i.sent++
	r.Seq = i.sent
	i.times[r.Seq%wire.InputWindow], i.newest = time.Now(), *r
	return true
}

// feed sends the bytes of r, and then their end. An error of r ends the request, because the
// command must not take the error for the end of its input.
func (i *input) feed(ctx context.Context, r io.Reader) {
	defer panics.CatchThen("input", i.q.fail)
	buf := make([]byte, wire.MaxInput)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			data := append([]byte(nil), buf[:n]...) // a copy, since the chunk may be sent again
			if i.put(ctx, wire.Request{Type: wire.RequestStdin, Data: data}) != nil {
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = i.put(ctx, wire.Request{Type: wire.RequestCloseStdin})
			return
		case err != nil:
			i.q.fail(fmt.Errorf("read the input: %w", err))
			return
		}
	}
}
