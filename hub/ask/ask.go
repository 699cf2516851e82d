// Package ask puts questions to devices over their MQTT link and brings the
// answers back as streams: the log of a container or of the agent itself, a command
// in a container, a connection into a pod, what a device uses.
//
// Both directions are flow controlled: a device stops at 64 chunks that the reader
// has not taken, and input waits here until the device has taken what came before.
// Chunks are numbered, so that one that got lost ends the stream with an error and
// never leaves a hole. The package knows nothing of the fleet but the pod that
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

// A Client asks devices, and keeps the questions under way.
type Client struct {
	Broker Broker

	mu     sync.Mutex
	open   map[string]*question // by id
	held   map[string]int       // bytes that nobody has taken yet, by node
	all    int                  // of them
	usages usages
}

// hold counts so many bytes of an answer until they are taken. Where too much waits, of the node's
// answers or of all, full is the one of which most does: whoever reads is not held up by whoever
// does not.
func (c *Client) hold(q *question, n int) (full *question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = map[string]int{}
	}
	c.held[q.node] += n
	c.all += n
	q.held += n
	ofNode := c.held[q.node] > nodeHeld
	if !ofNode && c.all <= allHeld {
		return nil
	}
	full = q
	for _, o := range c.open {
		if o.held > full.held && (!ofNode || o.node == q.node) {
			full = o
		}
	}
	return full
}

func (c *Client) release(q *question, n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all -= n
	q.held -= n
	if c.held[q.node] -= n; c.held[q.node] <= 0 {
		delete(c.held, q.node)
	}
}

// Reply takes a chunk of an answer. It never blocks.
func (c *Client) Reply(node, id string, r wire.Reply) {
	c.mu.Lock()
	q := c.open[id]
	c.mu.Unlock()
	switch {
	case q == nil && !r.EOF && r.Seq%ackEvery == 0:
		c.cancel(node, id) // nobody waits for it any more, and the device does not know
	case q != nil && q.node == node:
		q.hear(r)
	}
}

// Disconnected ends the questions to a node: nobody will answer them.
func (c *Client) Disconnected(node string) {
	c.mu.Lock()
	var lost []*question
	for _, q := range c.open {
		if q.node == node {
			lost = append(lost, q)
		}
	}
	c.mu.Unlock()
	for _, q := range lost {
		q.fail(fmt.Errorf("the link to the device was lost: %w", ErrLost))
	}
}

// Logs writes the log of a pod's container to w until its end, or, following,
// until ctx ends.
func (c *Client) Logs(ctx context.Context, pod *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error {
	r := logRequest(wire.RequestLogs, o)
	r.Pod, r.Container, r.Previous = string(pod.UID), o.Container, o.Previous
	return c.copyLog(ctx, pod.Spec.NodeName, r, w)
}

// NodeLogs writes what the agent of a node keeps of its own log to w, as Logs does
// with a container's. ErrTooOld: that agent keeps none.
func (c *Client) NodeLogs(ctx context.Context, node string, o corev1.PodLogOptions, w io.Writer) error {
	r := logRequest(wire.RequestNodeLogs, o)
	err := c.copyLog(ctx, node, r, w)
	if errors.Is(err, wire.ErrUnsupported) {
		return fmt.Errorf("the log of node %s's agent: %w: update flotilla-device there", node, ErrTooOld)
	}
	return err
}

func logRequest(kind string, o corev1.PodLogOptions) wire.Request {
	r := wire.Request{
		Type: kind, TailLines: o.TailLines, Follow: o.Follow, SinceSeconds: o.SinceSeconds, Timestamps: o.Timestamps,
		LimitBytes: o.LimitBytes,
	}
	if o.SinceTime != nil {
		seconds := int64(max(time.Since(o.SinceTime.Time)+time.Second-1, time.Second) / time.Second)
		r.SinceSeconds, r.SinceTime = &seconds, &o.SinceTime.Time
	}
	return r
}

func (c *Client) copyLog(ctx context.Context, node string, r wire.Request, w io.Writer) error {
	q, err := c.ask(ctx, node, r)
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
