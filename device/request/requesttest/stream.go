// Package requesttest has a request.Stream for tests.
package requesttest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

// A Stream is a request.Stream in which the test takes the place of the client.
type Stream struct {
	Inputs chan wire.Request // inputs of the client; closing it loses an input
	Lost   chan struct{}     // closing it disconnects the hub
	End    chan wire.Reply   // receives the last reply
	Delay  time.Duration     // duration of each Send

	mu       sync.Mutex
	began    bool
	out, err bytes.Buffer
}

// New returns a stream.
func New() *Stream {
	return &Stream{Inputs: make(chan wire.Request), Lost: make(chan struct{}), End: make(chan wire.Reply, 1)}
}

// Send implements request.Stream.
func (s *Stream) Send(ctx context.Context, r wire.Reply) error {
	select {
	case <-s.Lost:
		return errors.New("offline")
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.Delay):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Stderr {
		s.err.Write(r.Data)
	} else {
		s.out.Write(r.Data)
	}
	s.began = true
	if r.EOF {
		s.End <- r
	}
	return nil
}

// Input implements request.Stream.
func (s *Stream) Input(ctx context.Context) (wire.Request, error) {
	select {
	case r, ok := <-s.Inputs:
		if !ok {
			return r, errors.New("input 5 came after 3")
		}
		return r, nil
	case <-s.Lost:
		return wire.Request{}, errors.New("offline")
	case <-ctx.Done():
		return wire.Request{}, ctx.Err()
	}
}

// Gone implements request.Stream.
func (s *Stream) Gone() <-chan struct{} { return s.Lost }

// Began reports whether a reply was sent.
func (s *Stream) Began() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

// Stdout returns the output so far.
func (s *Stream) Stdout() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// Stderr returns the error output so far.
func (s *Stream) Stderr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err.String()
}
