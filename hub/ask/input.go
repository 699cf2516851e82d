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
	quick     = time.Second            // a device that takes its input in this time may have more of it under way
	probeMin  = 5 * time.Second        // without an acknowledgement the newest input is sent again; doubles
	probeMax  = 30 * time.Second       //
	tryAgain  = 100 * time.Millisecond // when there is no room on the way to the device
	firstRoom = 2                      // inputs under way, until it is known how quick the device is
)

// An input is what goes to a device for a question under way: at most so many
// chunks ahead of what the device has taken, few where it or its line is slow, so
// that nothing else waits behind them for long. A device refuses input with a gap;
// that the newest was lost shows when it is sent again.
type input struct {
	q     *question
	order chan struct{} // held by the one who sends
	room  chan struct{}

	mu     sync.Mutex
	sent   uint64
	taken  uint64
	limit  uint64 // 1 to wire.InputWindow
	times  [wire.InputWindow]time.Time
	newest wire.Request
	probe  *time.Timer
	wait   time.Duration // until the next probe
	ended  bool
}

func (i *input) begin(q *question) {
	i.q, i.limit = q, firstRoom
	i.order, i.room = make(chan struct{}, 1), make(chan struct{}, 1)
}

// acked notes that the device has taken the inputs up to seq, and says whether so
// many were sent.
func (i *input) acked(seq uint64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if seq <= i.taken {
		return true
	}
	if seq > i.sent {
		return false
	}
	if time.Since(i.times[seq%wire.InputWindow]) < quick {
		i.limit = min(i.limit+1, wire.InputWindow)
	} else {
		i.limit = max(i.limit/2, 1)
	}
	i.taken = seq
	i.watch(probeMin)
	signal(i.room)
	return true
}

// watch sees to it that the newest input is sent again while it is not taken.
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

// put sends an input when there is room for it.
func (i *input) put(ctx context.Context, r wire.Request) error {
	q := i.q
	select {
	case i.order <- struct{}{}:
		defer func() { <-i.order }()
	case <-q.over:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
	for ctx.Err() != nil || !i.number(&r) {
		select {
		case <-i.room:
		case <-q.over:
			return io.ErrClosedPipe
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for q.client.Broker.Request(q.node, q.id, r) != nil {
		select {
		case <-time.After(tryAgain):
		case <-q.over: // also when the link is lost
			return io.ErrClosedPipe
		case <-ctx.Done():
			q.fail(ErrLost) // what was numbered is missing now
			return ctx.Err()
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watch(probeMin)
	return nil
}

// number gives an input its number if there is room for it.
func (i *input) number(r *wire.Request) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended || i.sent-i.taken >= i.limit {
		return false
	}
	i.sent++
	r.Seq = i.sent
	i.times[r.Seq%wire.InputWindow], i.newest = time.Now(), *r
	return true
}

// feed sends what r gives, and its end. A reader that fails ends the question: the
// command must not take that for the end of its input.
func (i *input) feed(ctx context.Context, r io.Reader) {
	defer panics.CatchThen("input", i.q.fail)
	buf := make([]byte, wire.MaxInput)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			data := append([]byte(nil), buf[:n]...) // it may have to be sent again
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
