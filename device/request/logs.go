package request

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

// sendLogs streams one container's log.
func (s *Server) sendLogs(ctx context.Context, r wire.Request, stream Stream) error {
	e, id, err := s.device.Log(ctx, types.UID(r.Pod), r.Container, r.Previous)
	if err != nil {
		return err
	}
	o := engine.LogOptions{Follow: r.Follow && !r.Previous, Timestamps: r.Timestamps, Tail: -1, Since: sinceOf(r)}
	if r.TailLines != nil {
		o.Tail = max(*r.TailLines, 0)
	}
	return copyLog(ctx, r, stream, func(ctx context.Context, w io.Writer) error { return e.Logs(ctx, id, o, w, w) })
}

// sinceOf returns the time from which a log is requested; zero: from its beginning.
func sinceOf(r wire.Request) time.Time {
	const longest = int64(math.MaxInt64 / time.Second)
	switch {
	case r.SinceTime != nil:
		return *r.SinceTime
	case r.SinceSeconds == nil:
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(min(max(*r.SinceSeconds, 0), longest)) * time.Second)
}

// sendNodeLogs streams the agent's own log.
func (s *Server) sendNodeLogs(ctx context.Context, r wire.Request, stream Stream) error {
	if s.device.Journal == nil {
		return errors.New("this agent stores no log")
	}
	source := func(ctx context.Context, w io.Writer) error { return s.device.Journal.Copy(ctx, r, w) }
	return copyLog(ctx, r, stream, source)
}

// copyLog sends the output of source.
func copyLog(ctx context.Context, r wire.Request, stream Stream, source func(context.Context, io.Writer) error) error {
	if err := stream.Send(ctx, wire.Reply{}); err != nil { // the request has begun, although the first line may come late
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := newPipe(ctx)
	if r.LimitBytes != nil {
		p.left = max(*r.LimitBytes, 0)
		p.ended = p.left == 0
	}
	go func() { p.close(source(ctx, p.stdout())) }()
	return p.send(ctx, stream)
}
