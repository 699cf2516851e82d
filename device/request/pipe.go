package request

import (
	"context"
	"io"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

const (
	chunkSize = 32 << 10              // most bytes of one reply
	gather    = 20 * time.Millisecond // pause after a chunk in which further output is collected
)

// A pipe carries output from the engine to the hub. Its buffer is small, so that the engine waits
// for the hub.
type pipe struct {
	ctx   context.Context
	mu    sync.Mutex
	parts []part
	size  int   // total bytes in parts
	left  int64 // bytes that are still accepted; < 0: no limit
	ended bool
	err   error
	ready chan struct{}
	room  chan struct{}
	sent  time.Time // time of the last chunk
}

// A part is output for stdout or stderr.
type part struct {
	stderr bool
	data   []byte
}

func newPipe(ctx context.Context) *pipe {
	return &pipe{ready: make(chan struct{}, 1), room: make(chan struct{}, 1), ctx: ctx, left: -1}
}

// An inlet is the stdout or stderr side of a pipe.
type inlet struct {
	*pipe
	errors bool
}

func (p *pipe) stdout() io.Writer { return inlet{p, false} }
func (p *pipe) stderr() io.Writer { return inlet{p, true} }

// Write implements io.Writer for the engine's goroutines.
func (i inlet) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		took, ended := i.take(b, i.errors)
		b = b[took:]
		signal(i.ready)
		if ended {
			return n, nil
		}
		if len(b) > 0 {
			select {
			case <-i.room:
			case <-i.ctx.Done():
				return 0, context.Cause(i.ctx)
			}
		}
	}
	return n, nil
}

// take buffers as many bytes as fit.
func (p *pipe) take(b []byte, stderr bool) (n int, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(len(b), 2*chunkSize-p.size)
	if p.left >= 0 {
		n = int(min(int64(n), p.left))
		p.left -= int64(n)
		p.ended = p.ended || p.left == 0
	}
	if n > 0 {
		if last := len(p.parts) - 1; last < 0 || p.parts[last].stderr != stderr {
			p.parts = append(p.parts, part{stderr: stderr})
		}
		last := &p.parts[len(p.parts)-1]
		last.data = append(last.data, b[:n]...)
		p.size += n
	}
	return n, p.ended
}

func (p *pipe) close(err error) {
	p.mu.Lock()
	if !p.ended {
		p.ended, p.err = true, err
	}
	p.mu.Unlock()
	signal(p.ready)
}

// send sends the output until its end.
func (p *pipe) send(ctx context.Context, stream Stream) error {
	for {
		next, done, err := p.next(ctx)
		if len(next.data) > 0 {
			if err := stream.Send(ctx, wire.Reply{Data: next.data, Stderr: next.stderr}); err != nil {
				return err
			}
		}
		if done {
			return err
		}
	}
}

// next waits for the next chunk. The first output after a silence, such as the echo of a key, is
// sent at once.
func (p *pipe) next(ctx context.Context) (chunk part, done bool, err error) {
	for {
		p.mu.Lock()
		n, ended := p.size, p.ended
		p.mu.Unlock()
		if wait := gather - time.Since(p.sent); n > 0 && n < chunkSize && !ended && wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		p.mu.Lock()
		if len(p.parts) > 0 {
			first := &p.parts[0]
			take := min(len(first.data), chunkSize)
			chunk = part{first.stderr, append([]byte(nil), first.data[:take]...)}
			p.size -= take
			if first.data = append(first.data[:0], first.data[take:]...); len(first.data) == 0 {
				p.parts = p.parts[1:]
			}
		}
		done, err = p.ended && p.size == 0, p.err
		p.mu.Unlock()
		signal(p.room)
		if len(chunk.data) > 0 || done {
			p.sent = time.Now()
			return chunk, done, err
		}
		select {
		case <-p.ready:
		case <-ctx.Done():
			return part{}, true, context.Cause(ctx)
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
