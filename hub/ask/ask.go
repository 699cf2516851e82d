// Package ask puts questions to devices over their MQTT link and brings the
// answers back as streams: the logs of a container today.
//
// It knows nothing of the fleet beside the pod that it is asked about, and decides
// nothing. What it sends goes through package broker; replies come from there.
package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/oklog/ulid/v2"

	"flotilla.dev/shared/wire"
)

// A Broker carries requests to devices without waiting for them.
type Broker interface {
	Request(node, id string, r wire.Request) error
}

// Errors by what the caller can do.
var (
	ErrOffline = errors.New("the node's device is not connected to the hub")
	ErrLost    = errors.New("the device's link was lost in the middle of the answer")
)

const (
	window   = 64               // chunks that a device sends without an acknowledgement
	ackEvery = 16               // chunks
	patience = 15 * time.Second // for the first chunk, and between chunks of an answer that does not follow
)

// A Desk keeps the questions under way.
type Desk struct {
	Broker Broker

	mu   sync.Mutex
	open map[string]*question
}

type question struct {
	node    string
	replies chan wire.Reply
	lost    chan struct{}
}

// Reply takes a chunk of an answer. It never blocks: a device that sends more
// than its window loses the question.
func (d *Desk) Reply(node, id string, r wire.Reply) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.open[id]
	if q == nil || q.node != node {
		return
	}
	select {
	case q.replies <- r:
	default:
		d.end(id, q)
	}
}

// Disconnected ends the questions to a node: nobody will answer them.
func (d *Desk) Disconnected(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, q := range d.open {
		if q.node == node {
			d.end(id, q)
		}
	}
}

func (d *Desk) end(id string, q *question) {
	delete(d.open, id)
	close(q.lost)
}

func (d *Desk) start(node string) (id string, q *question) {
	id = strings.ToLower(ulid.Make().String())
	q = &question{node: node, replies: make(chan wire.Reply, 2*window), lost: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		d.open = map[string]*question{}
	}
	d.open[id] = q
	return id, q
}

func (d *Desk) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, id)
}

// Logs writes the log of a pod's container to w until its end, or, following,
// until ctx ends.
func (d *Desk) Logs(ctx context.Context, pod *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error {
	r := wire.Request{
		Type: wire.RequestLogs, Pod: string(pod.UID), Container: o.Container, TailLines: o.TailLines, Follow: o.Follow,
		Previous: o.Previous, SinceSeconds: o.SinceSeconds, Timestamps: o.Timestamps, LimitBytes: o.LimitBytes,
	}
	if o.SinceTime != nil {
		seconds := int64(max(time.Since(o.SinceTime.Time).Round(time.Second), time.Second) / time.Second)
		r.SinceSeconds = &seconds
	}
	return d.stream(ctx, pod.Spec.NodeName, r, w)
}

// stream asks a node and writes what it answers, in order.
func (d *Desk) stream(ctx context.Context, node string, r wire.Request, w io.Writer) error {
	id, q := d.start(node)
	defer d.forget(id)
	if err := d.Broker.Request(node, id, r); err != nil {
		return fmt.Errorf("%s of node %s: %w", r.Type, node, errors.Join(ErrOffline, err))
	}
	cancel := func() { _ = d.Broker.Request(node, id+"c", wire.Request{Type: wire.RequestCancel, Of: id}) }
	idle := time.NewTimer(patience)
	defer idle.Stop()
	for next := uint64(0); ; next++ {
		select {
		case <-ctx.Done():
			cancel()
			return ctx.Err()
		case <-q.lost:
			return fmt.Errorf("%s of node %s: %w", r.Type, node, ErrLost)
		case <-idle.C:
			cancel()
			return fmt.Errorf("%s of node %s: no answer for %s: %w", r.Type, node, patience, ErrLost)
		case reply := <-q.replies:
			if reply.Seq != next {
				cancel()
				return fmt.Errorf("%s of node %s: chunk %d came after %d: %w", r.Type, node, reply.Seq, next, ErrLost)
			}
			if r.Follow {
				idle.Stop() // silence is no sign of anything any more
			} else {
				idle.Reset(patience)
			}
			if _, err := w.Write(reply.Data); err != nil {
				cancel()
				return err
			}
			if reply.Error != "" {
				return errors.New(reply.Error)
			}
			if reply.EOF {
				return nil
			}
			if next%ackEvery == ackEvery-1 {
				_ = d.Broker.Request(node, id+"a"+fmt.Sprint(next), wire.Request{Type: wire.RequestAck, Of: id, Seq: reply.Seq})
			}
		}
	}
}
