package engine

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

func (a *api) Attach(ctx context.Context, id string, s Streams) error {
	found, err := a.look(ctx, id)
	if err != nil {
		return explain(err, "attach to container", id)
	}
	if c := found.Container; c.State == nil || c.Config == nil || !c.State.Running {
		return errors.New("attach to container " + id + ": it does not run")
	}
	config := found.Container.Config
	if !config.OpenStdin {
		s.Stdin = nil // without StdinOpen the container does not read stdin
	}
	stream, err := a.client().ContainerAttach(ctx, id,
		client.ContainerAttachOptions{Stream: true, Stdin: s.Stdin != nil, Stdout: true, Stderr: true,
			DetachKeys: detachKeys})
	if err != nil {
		return explain(err, "attach to container", id)
	}
	j := join{HijackedResponse: stream.HijackedResponse, s: s, tty: config.Tty,
		resize: func(ctx context.Context, z Size) error {
			_, err := a.client().ContainerResize(ctx, id,
				client.ContainerResizeOptions{Width: uint(z.Width), Height: uint(z.Height)})
			return err
		}}
	if err = j.copy(ctx); ctx.Err() != nil {
		return ctx.Err()
	}
	return explain(err, "attach to container", id)
}

// detachKeys is the key sequence that detaches from a terminal. Engines hold back the first keys of
// the sequence, by default ^P, which shells use. So detachKeys is a sequence that users do not
// type.
const detachKeys = "ctrl-_,ctrl-@,ctrl-^,ctrl-@,ctrl-_"

// A join connects the caller's streams with the engine's connection.
type join struct {
	client.HijackedResponse
	s      Streams
	tty    bool
	resize func(context.Context, Size) error
}

// copy copies in both directions until the output or ctx ends, then closes the connection.
func (j *join) copy(ctx context.Context) error {
	defer j.Close()
	stop := context.AfterFunc(ctx, j.Close)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if j.s.Stdin != nil {
		go func() {
			if _, err := io.Copy(j.Conn, j.s.Stdin); err == nil { // close the input only at its end, not after a read error
				_ = j.CloseWrite()
			}
		}()
	}
	if j.tty && j.s.Resize != nil {
		go j.follow(ctx)
	}
	stdout, stderr := cmp.Or(j.s.Stdout, io.Discard), cmp.Or(j.s.Stderr, io.Discard)
	var err error
	if j.tty {
		_, err = io.Copy(stdout, j.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, j.Reader)
	}
	return err
}

// Timing of window sizes. Podman loses a size that comes right after another one, so each is sent
// twice with a pause. The first attempts may fail because the command has not started yet.
const (
	resizePause = 250 * time.Millisecond
	resizeRetry = 50 * time.Millisecond
	resizeTries = 100
)

// follow sets the terminal's size whenever the caller's window changes.
func (j *join) follow(ctx context.Context) {
	var (
		size    Size
		sizes   = j.s.Resize
		repeats int // number of repeats left
		fails   int
		next    <-chan time.Time
	)
	for sizes != nil || next != nil {
		select {
		case z, ok := <-sizes:
			if !ok {
				sizes = nil
				continue
			}
			if size, repeats, fails = z, 2, 0; next == nil {
				next = time.After(0)
			}
		case <-next:
			next = nil
			switch err := j.resize(ctx, size); {
			case err == nil:
				if repeats--; repeats > 0 {
					next = time.After(resizePause)
				}
			case lost(err):
				return
			default:
				if fails++; fails < resizeTries {
					next = time.After(resizeRetry)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}
