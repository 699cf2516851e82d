package serve

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
)

// A gate is a listener that two servers use one after the other, without a moment at which
// the port is closed: who comes in between waits.
type gate struct {
	net.Listener
	comes chan net.Conn
	shut  chan struct{} // the port is closed
	over  chan struct{}
	once  sync.Once
	err   error // why the listener ended; known once over is closed
}

// newGate accepts from l; nil: there is no such listener.
func newGate(l net.Listener) *gate {
	if l == nil {
		return nil
	}
	g := &gate{Listener: l, comes: make(chan net.Conn), shut: make(chan struct{}), over: make(chan struct{})}
	go g.accept()
	return g
}

func (g *gate) accept() {
	defer panics.Catch("gate")
	for {
		c, err := g.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			select {
			case <-g.shut:
				return
			default:
			}
			g.once.Do(func() { g.err = err; close(g.over) })
			return
		}
		if err != nil { // too many files are open, for a moment
			time.Sleep(50 * time.Millisecond)
			continue
		}
		select {
		case g.comes <- c:
		case <-g.shut:
			_ = c.Close()
			return
		case <-g.over:
			_ = c.Close()
			return
		}
	}
}

// Close ends the listener itself.
func (g *gate) Close() error {
	if g == nil {
		return nil
	}
	err := g.Listener.Close()
	g.once.Do(func() { g.err = net.ErrClosed; close(g.over) })
	return err
}

// end closes the port, once. A server that has its turn hears nothing of it: it ends by itself, and nobody
// comes any more.
func (g *gate) end() {
	if g == nil {
		return
	}
	close(g.shut)
	_ = g.Listener.Close()
}

// open returns what the next server listens on. Closing that leaves the port open.
func (g *gate) open() net.Listener {
	if g == nil {
		return nil
	}
	return &turn{gate: g, closed: make(chan struct{})}
}

// A turn is the time of one server at a gate.
type turn struct {
	*gate
	closed chan struct{}
	once   sync.Once
}

func (t *turn) Accept() (net.Conn, error) {
	select {
	case <-t.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-t.comes:
		return c, nil
	case <-t.closed:
		return nil, net.ErrClosed
	case <-t.over:
		return nil, t.err
	}
}

func (t *turn) Close() error {
	t.once.Do(func() { close(t.closed) })
	return nil
}

// refuse closes every connection that comes, until ctx ends: who knows another address
// goes there.
func (g *gate) refuse(ctx context.Context) error {
	if g == nil {
		return nil
	}
	t := g.open()
	defer context.AfterFunc(ctx, func() {
		defer panics.Catch("gate")
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
