package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"flotilla.dev/shared/wire"
)

const (
	ackEvery   = 16               // chunks
	patience   = 15 * time.Second // for the first chunk, and between chunks of an answer that does not follow
	maxWaiting = 8 << 20          // bytes of chunks that wait for a slow reader; devices send 2 MiB ahead
	nodeHeld   = 16 << 20         // and of all the answers of one node
	allHeld    = 64 << 20         // and of all nodes
)

// A question is a request to a device and what it answers. One goroutine takes the
// chunks; inputs may come from several.
type question struct {
	client   *Client
	node, id string
	what     string // such as "exec"
	input    input
	held     int // bytes that nobody has taken yet; the client's mutex guards it

	mu      sync.Mutex
	waiting []wire.Reply // chunks that nobody has taken yet
	bytes   int          // of their data
	arrived uint64       // chunks that came
	taken   uint64       // chunks that were taken
	acked   uint64       // chunks of which the device knows that
	again   bool         // the device has missed our acknowledgement
	ended   bool         // the last chunk was taken
	err     error        // why no more will come
	news    chan struct{}
	over    chan struct{} // closed with err
}

// ask puts a question to a node, and waits until the device begins to answer.
func (c *Client) ask(ctx context.Context, node string, r wire.Request) (*question, error) {
	if err := r.Valid(); err != nil {
		return nil, err
	}
	if node == "" {
		return nil, fmt.Errorf("%s: %w: the pod is on no node yet", r.Type, ErrOffline)
	}
	q := &question{client: c, node: node, id: strings.ToLower(ulid.Make().String()), what: r.Type,
		news: make(chan struct{}, 1), over: make(chan struct{})}
	q.input.begin(q)
	c.mu.Lock()
	if c.open == nil {
		c.open = map[string]*question{}
	}
	c.open[q.id] = q
	c.mu.Unlock()
	if err := c.Broker.Request(node, q.id, r); err != nil {
		q.forget()
		return nil, q.wrap(errors.Join(ErrOffline, err))
	}
	if err := q.await(ctx, patience); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// close ends a question, also on the device, unless that has ended it.
func (q *question) close() {
	q.mu.Lock()
	ended := q.ended
	q.mu.Unlock()
	q.fail(io.ErrClosedPipe)
	q.forget()
	q.mu.Lock()
	q.drop()
	q.mu.Unlock()
	if !ended {
		q.client.cancel(q.node, q.id)
	}
}

func (q *question) forget() {
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	delete(q.client.open, q.id)
}

// cancel tells a device that nobody waits for an answer. Should that get lost, the
// next chunk of the answer is replied to with another cancel.
func (c *Client) cancel(node, id string) {
	_ = c.Broker.Request(node, id+"c", wire.Request{Type: wire.RequestCancel, Of: id})
}

// drop lets go of what nobody takes any more.
func (q *question) drop() {
	q.client.release(q, q.bytes)
	q.waiting, q.bytes = nil, 0
}

// cut ends a question of which too much waits, with all that does.
func (q *question) cut() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(fmt.Errorf("too much of what this device or others have answered waits to be read, and most of this: %w",
		ErrLost))
	q.drop()
}

// fail ends a question for a reason. The first one counts.
func (q *question) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(err)
}

func (q *question) failLocked(err error) {
	if q.err == nil {
		q.err = err
		close(q.over)
		q.input.stop()
	}
}

func (q *question) wrap(err error) error { return fmt.Errorf("%s of node %s: %w", q.what, q.node, err) }

// hear takes a chunk in. It never waits: a device that sends more than its window
// loses the question.
func (q *question) hear(r wire.Reply) {
	if full := q.keep(r); full != nil {
		full.cut()
	}
}

// keep keeps a chunk until it is taken; full is the question of which too much waits now.
func (q *question) keep(r wire.Reply) (full *question) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return nil
	}
	if !q.input.acked(r.Ack) {
		q.failLocked(fmt.Errorf("the device acknowledges input %d, which was not sent: %w", r.Ack, ErrLost))
		return nil
	}
	switch {
	case r.Seq < q.arrived:
		q.again = true
	case r.Seq > q.arrived:
		q.failLocked(fmt.Errorf("chunk %d came where %d was expected, so something was lost: %w", r.Seq, q.arrived, ErrLost))
	case len(q.waiting) >= 2*wire.ReplyWindow || q.bytes+len(r.Data) > maxWaiting:
		q.failLocked(fmt.Errorf("the device sends more than it may: %w", ErrLost))
	default:
		full = q.client.hold(q, len(r.Data))
		q.waiting = append(q.waiting, r)
		q.bytes += len(r.Data)
		q.arrived++
	}
	signal(q.news)
	return full
}

// next takes the next chunk. Taking it says that the one before has been dealt
// with, and so makes room for more. An answer that has broken off is taken to its
// last chunk before next says so.
func (q *question) next(ctx context.Context, most time.Duration) (wire.Reply, error) {
	q.acknowledge()
	if err := q.await(ctx, most); err != nil {
		return wire.Reply{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 { // closed or cut in this moment
		if q.err == nil || errors.Is(q.err, io.ErrClosedPipe) {
			return wire.Reply{}, io.ErrClosedPipe
		}
		return wire.Reply{}, q.wrap(q.err)
	}
	r := q.waiting[0]
	q.waiting[0] = wire.Reply{}
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	q.bytes -= len(r.Data)
	q.client.release(q, len(r.Data))
	q.taken++
	q.ended = r.EOF
	return r, r.Err(q.what)
}

// await waits until there is a chunk to take.
func (q *question) await(ctx context.Context, most time.Duration) error {
	var late <-chan time.Time
	if most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		late = timer.C
	}
	for {
		q.mu.Lock()
		here, err, again := len(q.waiting) > 0, q.err, q.again
		q.mu.Unlock()
		switch {
		case here:
			return nil
		case errors.Is(err, io.ErrClosedPipe):
			return err
		case err != nil:
			return q.wrap(err)
		case again:
			q.acknowledge()
		}
		select {
		case <-q.news:
		case <-q.over:
		case <-late:
			return q.wrap(fmt.Errorf("no answer for %s: %w", most, ErrLost))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// acknowledge tells the device how far the reader is, every now and then. One that
// cannot be told now is told with the next chunk, or when it repeats itself.
func (q *question) acknowledge() {
	q.mu.Lock()
	taken, due := q.taken, q.taken > 0 && (q.again || q.taken-q.acked >= ackEvery)
	q.again = false
	q.mu.Unlock()
	if due && q.client.Broker.Request(q.node, q.id+"a",
		wire.Request{Type: wire.RequestAck, Of: q.id, Seq: taken - 1}) == nil {
		q.mu.Lock()
		q.acked = taken
		q.mu.Unlock()
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
