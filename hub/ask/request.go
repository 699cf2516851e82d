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
	ackEvery      = 16               // chunks between two acknowledgements
	chunkTimeout  = 15 * time.Second // wait for the first chunk, and for the next one unless the response follows a log
	maxWaiting    = 8 << 20          // unread bytes of one response; devices send 2 MiB ahead
	maxNodeUnread = 16 << 20         // unread bytes of a node
	maxUnread     = 64 << 20         // unread bytes of all nodes
)

// A request is a request to a device, with its response. One goroutine reads the chunks; several
// may send input.
type request struct {
	client   *Client
	node, id string
	what     string // such as "exec"
	input    input
	unread   int // unread bytes; guarded by the client's mutex

	mu      sync.Mutex
	waiting []wire.Reply // unread chunks
	bytes   int          // bytes of waiting
	arrived uint64       // received chunks
	taken   uint64       // read chunks
	acked   uint64       // chunks that were acknowledged to the device
	again   bool         // the device missed an acknowledgement: send it again
	ended   bool         // the last chunk was read
	err     error        // reason why no more chunks follow
	news    chan struct{}
	done    chan struct{} // closed when err is set
}

// ask sends a request to a node, and waits for the start of the response.
func (c *Client) ask(ctx context.Context, node string, r wire.Request) (*request, error) {
	if err := r.Valid(); err != nil {
		return nil, err
	}
	if node == "" {
		return nil, fmt.Errorf("%s: %w: the pod has no node yet", r.Type, ErrOffline)
	}
	q := &request{client: c, node: node, id: strings.ToLower(ulid.Make().String()), what: r.Type,
		news: make(chan struct{}, 1), done: make(chan struct{})}
	q.input.begin(q)
	c.mu.Lock()
	if c.open == nil {
		c.open = map[string]*request{}
	}
	c.open[q.id] = q
	c.mu.Unlock()
	if err := c.Broker.Request(node, q.id, r); err != nil {
		q.forget()
		return nil, q.wrap(errors.Join(ErrOffline, err))
	}
	if err := q.await(ctx, chunkTimeout); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// close ends a request. It cancels the response unless the device has ended it.
func (q *request) close() {
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

func (q *request) forget() {
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	delete(q.client.open, q.id)
}

// cancel tells a device to stop a response. If the cancel is lost, the next chunk causes another.
func (c *Client) cancel(node, id string) {
	_ = c.Broker.Request(node, id+"c", wire.Request{Type: wire.RequestCancel, Of: id})
}

// drop discards unread chunks.
func (q *request) drop() {
	q.client.release(q, q.bytes)
	q.waiting, q.bytes = nil, 0
}

// overflow ends a request with too many unread bytes, and discards them.
func (q *request) overflow() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(fmt.Errorf("responses have too many unread bytes, most of them of this response: %w",
		ErrLost))
	q.drop()
}

// fail ends a request with an error. Only the first error is stored.
func (q *request) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(err)
}

func (q *request) failLocked(err error) {
	if q.err == nil {
		q.err = err
		close(q.done)
		q.input.stop()
	}
}

func (q *request) wrap(err error) error { return fmt.Errorf("%s of node %s: %w", q.what, q.node, err) }

// receive handles a received chunk without waiting. A request ends if its device exceeds the
// window.
func (q *request) receive(r wire.Reply) {
	if full := q.keep(r); full != nil {
		full.overflow()
	}
}

// keep stores a chunk until it is read. It returns the request, if any, that must end because of
// too many unread bytes.
func (q *request) keep(r wire.Reply) (full *request) {
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
		q.failLocked(fmt.Errorf("received chunk %d instead of %d: %w", r.Seq, q.arrived, ErrLost))
	case len(q.waiting) >= 2*wire.ReplyWindow || q.bytes+len(r.Data) > maxWaiting:
		q.failLocked(fmt.Errorf("the device exceeds its window: %w", ErrLost))
	default:
		full = q.client.countUnread(q, len(r.Data))
		q.waiting = append(q.waiting, r)
		q.bytes += len(r.Data)
		q.arrived++
	}
	signal(q.news)
	return full
}

// next returns the next chunk, and acknowledges the chunk before it. After a failure it still
// returns the chunks that arrived before.
func (q *request) next(ctx context.Context, most time.Duration) (wire.Reply, error) {
	q.acknowledge()
	if err := q.await(ctx, most); err != nil {
		return wire.Reply{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 { // the request ended while next waited
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

// await waits for an unread chunk.
func (q *request) await(ctx context.Context, most time.Duration) error {
	var timeout <-chan time.Time
	if most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		timeout = timer.C
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
		case <-q.done:
		case <-timeout:
			return q.wrap(fmt.Errorf("no response for %s: %w", most, ErrLost))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// acknowledge reports the reader's progress to the device at intervals. If the report cannot be
// sent now, it is sent with a later chunk, or when the device asks again.
func (q *request) acknowledge() {
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
