package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
)

// An acceptor is a listener that two servers use one after the other. Between them the port stays
// open and clients wait.
type acceptor struct {
	net.Listener
	comes  chan net.Conn
	closed chan struct{} // closed together with the port
	over   chan struct{}
	once   sync.Once
	err    error // why the listener ended; valid after over is closed
}

// newAcceptor accepts connections of l, which may be nil.
func newAcceptor(l net.Listener) *acceptor {
	if l == nil {
		return nil
	}
	a := &acceptor{Listener: l, comes: make(chan net.Conn), closed: make(chan struct{}), over: make(chan struct{})}
	go a.accept()
	return a
}

func (a *acceptor) accept() {
	defer panics.Catch("acceptor")
	for {
		c, err := a.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			select {
			case <-a.closed:
				return
			default:
			}
			a.once.Do(func() { a.err = err; close(a.over) })
			return
		}
		if err != nil { // temporary, such as too many open files
			time.Sleep(50 * time.Millisecond)
			continue
		}
		select {
		case a.comes <- c:
		case <-a.closed:
			_ = c.Close()
			return
		case <-a.over:
			_ = c.Close()
			return
		}
	}
}

// Close closes the listener.
func (a *acceptor) Close() error {
	if a == nil {
		return nil
	}
	err := a.Listener.Close()
	a.once.Do(func() { a.err = net.ErrClosed; close(a.over) })
	return err
}

// end closes the port, once. The current server ends by itself.
func (a *acceptor) end() {
	if a == nil {
		return
	}
	close(a.closed)
	_ = a.Listener.Close()
}

// open returns the slot of the next server. Closing the slot leaves the port open.
func (a *acceptor) open() net.Listener {
	if a == nil {
		return nil
	}
	return &slot{acceptor: a, closed: make(chan struct{})}
}

// A slot is one server's use of an acceptor.
type slot struct {
	*acceptor
	closed chan struct{}
	once   sync.Once
}

func (s *slot) Accept() (net.Conn, error) {
	select {
	case <-s.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-s.comes:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	case <-s.over:
		return nil, s.err
	}
}

func (s *slot) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// refuse closes every new connection until ctx ends, so that clients try another address.
func (a *acceptor) refuse(ctx context.Context) error {
	if a == nil {
		return nil
	}
	t := a.open()
	defer context.AfterFunc(ctx, func() {
		defer panics.Catch("acceptor")
		_ = t.Close()
	})()
	for {
		c, err := t.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		_ = c.Close()
	}
}
