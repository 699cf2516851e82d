package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/wire"
)

// Forward opens a TCP connection to a port inside a pod. The connection lasts until the caller
// closes it or ctx ends. It also has the method CloseWrite.
func (c *Client) Forward(ctx context.Context, pod *corev1.Pod, port int32) (io.ReadWriteCloser, error) {
	q, err := c.ask(ctx, pod.Spec.NodeName, wire.Request{Type: wire.RequestPortForward, Pod: string(pod.UID), Port: port})
	var first wire.Reply
	if err == nil {
		if first, err = q.next(ctx, chunkTimeout); err != nil {
			q.close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("forward port %d of pod %s/%s: %w", port, pod.Namespace, pod.Name, err)
	}
	conn := &connection{q: q, rest: first.Data, eof: first.EOF}
	conn.ctx, conn.cancel = context.WithCancel(ctx)
	conn.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, nil
}

// A connection is a TCP connection into a pod. Only one goroutine may read.
type connection struct {
	q      *request
	ctx    context.Context
	cancel context.CancelFunc
	stop   func() bool
	once   sync.Once

	rest []byte // received but unread bytes
	eof  bool
	err  error
}

func (c *connection) Read(p []byte) (int, error) {
	for len(c.rest) == 0 && len(p) > 0 {
		switch {
		case c.err != nil:
			return 0, c.err
		case c.eof:
			return 0, io.EOF
		}
		r, err := c.q.next(c.ctx, 0)
		if c.ctx.Err() != nil {
			err = net.ErrClosed
		}
		c.rest, c.eof, c.err = r.Data, r.EOF, err
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *connection) Write(p []byte) (done int, err error) {
	for done < len(p) {
		n := min(len(p)-done, wire.MaxInput)
		data := append([]byte(nil), p[done:done+n]...)
		if err := c.put(wire.Request{Type: wire.RequestStdin, Data: data}); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// CloseWrite ends the output direction.
func (c *connection) CloseWrite() error { return c.put(wire.Request{Type: wire.RequestCloseStdin}) }

func (c *connection) put(r wire.Request) error {
	err := c.q.input.put(c.ctx, r)
	if errors.Is(err, context.Canceled) {
		return net.ErrClosed
	}
	return err
}

// Close ends the connection in both directions at once.
func (c *connection) Close() error {
	c.once.Do(func() {
		c.stop()
		c.cancel()
		c.q.close()
	})
	return nil
}
