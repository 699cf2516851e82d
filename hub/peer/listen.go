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

// Limits of handshakes. Before its handshake a client is unknown; afterwards it has shown a hub's
// certificate. These limits are separate from those that devices need.
const (
	maxHandshakes     = 128 // concurrent handshakes
	maxHandshakesEach = 64  // concurrent handshakes of one address
	greetTime         = 5 * time.Second
)

// A listener returns connections after their handshake.
type listener struct {
	net.Listener
	config    *tls.Config
	addresses listen.Addresses
	slots     chan struct{}
	comes     chan net.Conn
	over      chan struct{}
	once      sync.Once
	err       error // why the listener ended; valid after over is closed
}

// Listen returns a listener of connections that have passed the TLS handshake of config.
func Listen(l net.Listener, config *tls.Config) net.Listener {
	g := &listener{
		Listener: l, config: config, addresses: listen.Addresses{Most: maxHandshakesEach, Rate: 200, Burst: 2000},
		slots: make(chan struct{}, maxHandshakes), comes: make(chan net.Conn), over: make(chan struct{}),
	}
	go g.accept()
	return g
}

func (l *listener) accept() {
	defer panics.CatchThen("peer", l.end)
	for {
		select {
		case l.slots <- struct{}{}: // without a slot, clients wait in the kernel's queue
		case <-l.over:
			return
		}
		c, err := l.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			l.end(err)
			return
		case err != nil: // a temporary error, such as too many open files
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

// handshake performs the handshake, and passes the connection to Accept.
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

// Accept returns the next authenticated connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.comes:
		return c, nil
	case <-l.over:
		return nil, l.err
	}
}

// Close also ends a waiting Accept.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.end(net.ErrClosed)
	return err
}

func (l *listener) end(err error) { l.once.Do(func() { l.err = err; close(l.over) }) }
