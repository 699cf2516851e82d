// Package ask sends requests to devices over MQTT, and returns the responses as streams: logs of
// containers and agents, commands in containers, connections into pods, resource usage.
//
// Both directions are flow controlled: a device sends at most 64 unread chunks, and the hub sends
// input only as fast as the device reads it. Chunks are numbered, so a lost chunk ends the stream
// with an error instead of leaving a gap. The package decides nothing and reads no state: the
// caller passes the pod or node. Package broker carries its messages; packages kube and admin call
// it.
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

// A Broker sends requests to devices, in order and without waiting.
type Broker interface {
	Request(node, id string, r wire.Request) error
}

// Errors that callers handle differently.
var (
	ErrOffline = errors.New("the node's device is not connected to the hub")
	ErrLost    = errors.New("the device's response was interrupted")
	ErrTooOld  = errors.New("the device's agent is too old for this request")
)

// A Client sends requests to devices, and keeps the open ones.
type Client struct {
	Broker Broker

	mu          sync.Mutex
	open        map[string]*request // by request ID
	unread      map[string]int      // unread bytes by node
	unreadTotal int                 // unread bytes in total
	usages      usages
}

// countUnread counts unread bytes. If a limit of the node or of all nodes is exceeded, it returns
// the request with the most unread bytes. The caller ends it, so that a slow reader does not
// block others.
func (c *Client) countUnread(q *request, n int) (full *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unread == nil {
		c.unread = map[string]int{}
	}
	c.unread[q.node] += n
	c.unreadTotal += n
	q.unread += n
	ofNode := c.unread[q.node] > maxNodeUnread
	if !ofNode && c.unreadTotal <= maxUnread {
		return nil
	}
	full = q
	for _, o := range c.open {
		if o.unread > full.unread && (!ofNode || o.node == q.node) {
			full = o
		}
	}
	return full
}

func (c *Client) release(q *request, n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unreadTotal -= n
	q.unread -= n
	if c.unread[q.node] -= n; c.unread[q.node] <= 0 {
		delete(c.unread, q.node)
	}
}

// Reply handles a chunk of a response. It never blocks.
func (c *Client) Reply(node, id string, r wire.Reply) {
	c.mu.Lock()
	q := c.open[id]
	c.mu.Unlock()
	switch {
	case q == nil && !r.EOF && r.Seq%ackEvery == 0:
		c.cancel(node, id) // the request has ended, but the device still responds
	case q != nil && q.node == node:
		q.receive(r)
	}
}

// Disconnected ends the requests to a node.
func (c *Client) Disconnected(node string) {
	c.mu.Lock()
	var lost []*request
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

// Logs writes a container's log to w until its end. With o.Follow it waits for more until ctx ends.
func (c *Client) Logs(ctx context.Context, pod *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error {
	r := logRequest(wire.RequestLogs, o)
	r.Pod, r.Container, r.Previous = string(pod.UID), o.Container, o.Previous
	return c.copyLog(ctx, pod.Spec.NodeName, r, w)
}

// NodeLogs writes the log of a node's agent to w, as Logs does. ErrTooOld means that the agent does
// not keep its log.
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
	most := chunkTimeout
	if r.Follow {
		most = 0 // a followed log may have no lines for a long time
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
