// Package ask puts questions to devices over their MQTT link and brings the
// answers back as streams: the log of a container or of the agent itself, a command
// in a container, a connection into a pod, what a device uses.
//
// Both directions are flow controlled: a device stops at 64 chunks that the reader
// has not taken, and input waits here until the device has taken what came before.
// Chunks are numbered, so that one that got lost ends the stream with an error and
// never leaves a hole. The package knows nothing of the fleet beside the pod that
// it is asked about, and decides nothing. What it sends goes through package
// broker; replies come from there.
package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/wire"
)

// A Broker carries requests to devices without waiting for them, in their order.
type Broker interface {
	Request(node, id string, r wire.Request) error
}

// Errors by what the caller can do.
var (
	ErrOffline = errors.New("the node's device is not connected to the hub")
	ErrLost    = errors.New("the device's answer broke off")
	ErrTooOld  = errors.New("the device's agent is older than this question")
)

// A Desk keeps the questions under way.
type Desk struct {
	Broker Broker

	mu     sync.Mutex
	open   map[string]*question // by id
	usages usages
}

// Reply takes a chunk of an answer. It never blocks.
func (d *Desk) Reply(node, id string, r wire.Reply) {
	d.mu.Lock()
	q := d.open[id]
	d.mu.Unlock()
	switch {
	case q == nil && !r.EOF && r.Seq%ackEvery == 0:
		d.cancel(node, id) // nobody waits for it any more, and the device does not know
	case q != nil && q.node == node:
		q.hear(r)
	}
}

// Disconnected ends the questions to a node: nobody will answer them.
func (d *Desk) Disconnected(node string) {
	d.mu.Lock()
	var lost []*question
	for _, q := range d.open {
		if q.node == node {
			lost = append(lost, q)
		}
	}
	d.mu.Unlock()
	for _, q := range lost {
		q.fail(fmt.Errorf("the link to the device was lost: %w", ErrLost))
	}
}

// Logs writes the log of a pod's container to w until its end, or, following,
// until ctx ends.
func (d *Desk) Logs(ctx context.Context, pod *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error {
	r := logRequest(wire.RequestLogs, o)
	r.Pod, r.Container, r.Previous = string(pod.UID), o.Container, o.Previous
	return d.copyLog(ctx, pod.Spec.NodeName, r, w)
}

// NodeLogs writes what the agent of a node keeps of its own log to w, as Logs does
// with a container's. ErrTooOld: that agent keeps none.
func (d *Desk) NodeLogs(ctx context.Context, node string, o corev1.PodLogOptions, w io.Writer) error {
	r := logRequest(wire.RequestNodeLogs, o)
	err := d.copyLog(ctx, node, r, w)
	if err != nil && err.Error() == wire.Unsupported(r.Type) {
		return fmt.Errorf("the log of node %s's agent: %w: update flotilla-device there", node, ErrTooOld)
	}
	return err
}

func logRequest(kind string, o corev1.PodLogOptions) wire.Request {
	r := wire.Request{
		Type: kind, TailLines: o.TailLines, Follow: o.Follow, SinceSeconds: o.SinceSeconds, Timestamps: o.Timestamps, LimitBytes: o.LimitBytes,
	}
	if o.SinceTime != nil {
		seconds := int64(max(time.Since(o.SinceTime.Time)+time.Second-1, time.Second) / time.Second)
		r.SinceSeconds, r.SinceTime = &seconds, &o.SinceTime.Time
	}
	return r
}

func (d *Desk) copyLog(ctx context.Context, node string, r wire.Request, w io.Writer) error {
	q, err := d.ask(ctx, node, r)
	if err != nil {
		return err
	}
	defer q.close()
	most := patience
	if r.Follow {
		most = 0 // silence is no sign of anything
	}
	for {
		reply, err := q.next(ctx, most)
		if len(reply.Data) > 0 {
			if _, err := w.Write(reply.Data); err != nil {
				return err
			}
		}
		if err != nil || reply.EOF {
			return err
		}
	}
}
