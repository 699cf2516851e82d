package request

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

// runCommand runs a command in a container, or attaches to the container.
func (s *Server) runCommand(ctx context.Context, r wire.Request, stream Stream) (exitCode int32, err error) {
	e, id, err := s.device.Running(ctx, types.UID(r.Pod), r.Container)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, stop := limitSilence(stream, maxDuration, cancel)
	defer stop()
	if err := stream.Send(ctx, wire.Reply{}); err != nil { // the request has begun: the hub may send input
		return 0, err
	}
	p := newPipe(ctx)
	in, typed := io.Pipe()
	defer in.Close()
	sizes := make(chan engine.Size, 1)
	exec := ""
	streams := engine.Streams{Stdout: p.stdout(), Stderr: p.stderr(), TTY: r.TTY, Resize: sizes, Began: func(id string) {
		exec = id
		s.device.ExecBegan(id)
	}}
	if r.Stdin {
		streams.Stdin = in
	} else {
		_ = in.Close()
	}
	go func() {
		// Cancel before closing the input: the command must not read an incomplete input as
		// complete.
		err := feed(ctx, stream, typed, sizes)
		cancel(err)
		_ = typed.CloseWithError(err)
	}()
	var code int
	s.work.Go(func() { // the command may outlive the request
		var err error
		if r.Type == wire.RequestAttach {
			err = e.Attach(ctx, id, streams)
		} else {
			code, err = e.Exec(ctx, id, r.Command, streams)
		}
		if exec != "" && !errors.Is(err, engine.ErrUnavailable) { // without the engine the command may still run
			s.device.ExecEnded(exec)
		}
		p.close(err)
	})
	if err := p.send(ctx, stream); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, err
	}
	return int32(code), nil
}

// feed passes inputs to the command until receiving one fails, and returns that error.
func feed(ctx context.Context, stream Stream, typed *io.PipeWriter, sizes chan engine.Size) error {
	for {
		r, err := stream.Input(ctx)
		if err != nil {
			return err
		}
		switch r.Type {
		case wire.RequestStdin:
			_, _ = typed.Write(r.Data) // an error means that the command has stopped reading
		case wire.RequestCloseStdin:
			_ = typed.Close()
		case wire.RequestResize:
			select {
			case <-sizes: // drop the older size
			default:
			}
			sizes <- engine.Size{Width: r.Width, Height: r.Height}
		}
	}
}

// forward carries one connection to a port of a pod. It ends when the pod closes its side.
func (s *Server) forward(ctx context.Context, r wire.Request, stream Stream) error {
	const dialTimeout = 10 * time.Second // includes the wait for a slot
	dialling, done := context.WithTimeout(ctx, dialTimeout)
	defer done()
	leave, err := s.connections.take(dialling)
	if err != nil {
		return err
	}
	defer leave()
	e, id, err := s.device.Running(ctx, types.UID(r.Pod), AnyContainer)
	if err != nil {
		return err
	}
	conn, err := e.Dial(dialling, id, int(r.Port))
	done()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, stop := limitSilence(stream, maxDuration, cancel)
	defer stop()
	if err := stream.Send(ctx, wire.Reply{}); err != nil {
		return err
	}
	closing := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer closing()
	go func() {
		for {
			r, err := stream.Input(ctx)
			switch {
			case err != nil:
				cancel(err)
				return
			case r.Type == wire.RequestCloseStdin:
				if half, ok := conn.(interface{ CloseWrite() error }); ok {
					_ = half.CloseWrite()
				}
			case r.Type == wire.RequestStdin:
				_, _ = conn.Write(r.Data) // reading from the connection reports the error
			}
		}
	}()
	buf := make([]byte, chunkSize)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := stream.Send(ctx, wire.Reply{Data: buf[:n]}); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("port %d of the pod: %w", r.Port, err)
		}
	}
}

// limitSilence cancels a stream that has had no input and output for the time most, because its
// client has probably forgotten it.
func limitSilence(stream Stream, most time.Duration, cancel context.CancelCauseFunc) (Stream, func() bool) {
	timer := time.AfterFunc(most, func() {
		cancel(fmt.Errorf("ended, because there was no input or output for %s", most))
	})
	return timedStream{stream, timer, most}, timer.Stop
}

type timedStream struct {
	Stream
	timer *time.Timer
	most  time.Duration
}

func (s timedStream) Send(ctx context.Context, r wire.Reply) error {
	s.timer.Reset(s.most)
	return s.Stream.Send(ctx, r)
}

func (s timedStream) Input(ctx context.Context) (wire.Request, error) {
	r, err := s.Stream.Input(ctx)
	if err == nil {
		s.timer.Reset(s.most)
	}
	return r, err
}
