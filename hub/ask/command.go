package ask

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/wire"
)

// Exec runs a command in a container. It returns when the command or ctx ends; the device then
// hangs up the command. An exit code other than 0 is an ExitError. A Read of s.Stdin may still be
// blocked when Exec returns; the caller ends it.
func (c *Client) Exec(ctx context.Context, pod *corev1.Pod, o corev1.PodExecOptions, s IO) error {
	return c.command(ctx, pod,
		wire.Request{Type: wire.RequestExec, Container: o.Container, Command: o.Command, TTY: o.TTY}, s)
}

// Attach connects to a container's first process until the process or ctx ends; the container keeps
// running. Earlier output is not repeated. s.Stdin is as in Exec.
func (c *Client) Attach(ctx context.Context, pod *corev1.Pod, o corev1.PodAttachOptions, s IO) error {
	return c.command(ctx, pod, wire.Request{Type: wire.RequestAttach, Container: o.Container, TTY: o.TTY}, s)
}

func (c *Client) command(ctx context.Context, pod *corev1.Pod, r wire.Request, s IO) error {
	r.Pod, r.Stdin = string(pod.UID), s.Stdin != nil
	q, err := c.ask(ctx, pod.Spec.NodeName, r)
	if err != nil {
		return err
	}
	defer q.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.Stdin != nil {
		go q.input.feed(ctx, s.Stdin)
	}
	if s.Resize != nil {
		go q.input.resize(ctx, s.Resize)
	}
	for {
		reply, err := q.next(ctx, 0)
		if len(reply.Data) > 0 {
			to := s.Stdout
			if reply.Stderr {
				to = s.Stderr
			}
			if to == nil {
				to = io.Discard
			}
			if _, err := to.Write(reply.Data); err != nil {
				return err
			}
		}
		switch {
		case err != nil:
			return err
		case reply.EOF && reply.ExitCode != 0:
			return &ExitError{Code: int(reply.ExitCode)}
		case reply.EOF:
			return nil
		}
	}
}

// resize sends each window size.
func (i *input) resize(ctx context.Context, sizes <-chan Size) {
	defer panics.CatchThen("input", i.q.fail)
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			if s.Width > 0 && s.Height > 0 &&
				i.put(ctx, wire.Request{Type: wire.RequestResize, Width: s.Width, Height: s.Height}) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
