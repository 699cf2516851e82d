package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
)

// Whoever reaches the listener of hubs may be anybody until their handshake is done: then they have
// shown a hub's certificate. Of those few are open at once, and what they hold is nobody's that
// devices need.
const (
	greeting     = 128 // at once
	greetingEach = 64  // of one address
	greetTime    = 5 * time.Second
)

// A listener hands over connections whose handshake is done.
type listener struct {
	net.Listener
	config    *tls.Config
	addresses listen.Addresses
	slots     chan struct{}
	comes     chan net.Conn
	over      chan struct{}
	once      sync.Once
	err       error // why it ended; known once over is closed
}

// Listen returns a listener whose connections are of whom a configuration lets in.
func Listen(l net.Listener, config *tls.Config) net.Listener {
	g := &listener{
		Listener: l, config: config, addresses: listen.Addresses{Most: greetingEach, Rate: 200, Burst: 2000},
		slots: make(chan struct{}, greeting), comes: make(chan net.Conn), over: make(chan struct{}),
	}
	go g.accept()
	return g
}

func (l *listener) accept() {
	defer panics.CatchThen("peer", l.end)
	for {
		select {
		case l.slots <- struct{}{}: // who comes when there is none waits in the kernel's queue
		case <-l.over:
			return
		}
		c, err := l.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			l.end(err)
			return
		case err != nil: // too many files are open, for a moment
			<-l.slots
			time.Sleep(50 * time.Millisecond)
			continue
		}
		ip := listen.IP(c)
		if l.addresses.Enter(ip) != nil {
			<-l.slots
			_ = c.Close()
			continue
		}
		go func() {
			defer func() { l.addresses.Leave(ip); <-l.slots }()
			defer panics.CatchThen("peer", func(error) { _ = c.Close() })
			l.handshake(c)
		}()
	}
}

// handshake does the handshake, and hands the connection over.
func (l *listener) handshake(c net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), greetTime)
	defer cancel()
	secure := tls.Server(c, l.config)
	if secure.HandshakeContext(ctx) != nil {
		_ = c.Close()
		return
	}
	select {
	case l.comes <- secure:
	case <-l.over:
		_ = c.Close()
	}
}

// Accept returns the next of those who were let in.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.comes:
		return c, nil
	case <-l.over:
		return nil, l.err
	}
}

// Close ends a waiting Accept, too.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.end(net.ErrClosed)
	return err
}

func (l *listener) end(err error) { l.once.Do(func() { l.err = err; close(l.over) }) }
