package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"flotilla.dev/hub/broker/idle"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/line"
)

// A listener is one of the broker's listeners.
type listener struct {
	net.Listener
	tls *tls.Config // nil: the development listener
}

// accept lets connections in until the context ends. A failed accept (too many
// open files, a connection gone before its turn) is logged and tried again: a
// listener that dies while the process lives is the worst of both.
func (b *Broker) accept(ctx context.Context, l listener) error {
	const shortest, longest = 5 * time.Millisecond, time.Second
	pause := shortest
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept MQTT connections on %s: the listener was closed: %w", l.Addr(), err)
		case err != nil:
			b.stats.acceptErrors.Add(1)
			b.warn("accept", "accept MQTT connection; trying again", "listener", l.Addr().String(), "err", err, "again", pause)
			time.Sleep(pause)
			pause = min(2*pause, longest)
			continue
		}
		pause = shortest
		b.admit(line.New(idle.New(c), writeTimeout), l)
	}
}

// admit starts a connection, unless there are too many.
func (b *Broker) admit(c *line.Conn, l listener) {
	ip := listen.IP(c)
	if err := b.addresses.Enter(ip); err != nil {
		b.refused(c, &refusal{why: perAddress, err: err})
		_ = c.Close()
		return
	}
	if err := b.register(c); err != nil {
		b.refused(c, &refusal{why: capacity, err: err})
		b.unregister(c, ip)
		return
	}
	b.handlers.Add(1)
	go func() {
		handedOver := false
		defer func() {
			if !handedOver {
				b.unregister(c, ip)
				b.handlers.Done()
			}
		}()
		defer panics.Catch("mqtt", "addr", ip) // one connection's must not end all others
		if s := b.handshake(c, l); s != nil {
			handedOver = true
			go b.serveConn(s, c, ip) // TLS and CONNECT have left a large stack behind; this one is small
		}
	}()
}

// serveConn is a connection from its accepted CONNECT to its end, or until it is parked.
func (b *Broker) serveConn(s *session, c net.Conn, ip netip.Addr) {
	defer panics.Catch("mqtt")
	s.whose, s.ip = c, ip
	b.runPart(s, func() (parked bool) { return b.serveSession(c, s) })
}

// runPart is a part of a session's life. With the last one, and with one that panics, the
// session ends and the connection is forgotten; one that ends parked is not the last.
func (b *Broker) runPart(s *session, part func() (parked bool)) {
	parked := false
	defer func() {
		if !parked {
			if s.claimed {
				b.release(s)
			}
			b.unregister(s.whose, s.ip)
			b.handlers.Done()
		}
	}()
	defer panics.Catch("mqtt", "node", s.peer.Node)
	parked = part()
}

// register enters a connection into the books and takes a slot for its greeting,
// or says for which of the two there is no room.
func (b *Broker) register(c net.Conn) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.open); n >= b.cfg.Limits.Connections {
		if n < maxConnections {
			return fmt.Errorf("%d connections are open, and the open files that the hub may have allow no more: raise "+
				"LimitNOFILE= (ulimit -n)", n)
		}
		return fmt.Errorf("%d connections are open, which are the most", n)
	}
	select {
	case b.greeting <- struct{}{}:
		b.open[c] = true
		return nil
	default:
		return fmt.Errorf("%d connections have yet to say who they are, which are the most at once", len(b.greeting))
	}
}

// unregister closes a connection and takes it out of the books.
func (b *Broker) unregister(c net.Conn, ip netip.Addr) {
	_ = c.Close()
	b.mu.Lock()
	delete(b.open, c)
	b.mu.Unlock()
	b.addresses.Leave(ip)
}

// handshake takes a connection up to its accepted CONNECT, and returns nil if it was refused.
func (b *Broker) handshake(c *line.Conn, l listener) *session {
	defer func() { <-b.greeting }()
	_ = c.SetDeadline(time.Now().Add(b.greetFor))
	first := make([]byte, 1) // while nothing comes, this and a small stack is all that is held
	if _, err := io.ReadFull(c, first); err != nil {
		b.refused(c, &refusal{why: silent, err: fmt.Errorf("nothing came: %w", err)})
		return nil
	}
	s, ref := b.readConnectFrom(c, first, l)
	if ref != nil {
		b.refused(c, ref)
		return nil
	}
	if s.farewell != nil || s.watching != nil {
		return s
	}
	if err := b.claim(s); err != nil {
		refuse(s.conn, 4, unavailable)
		b.refused(c, &refusal{why: busy, node: s.peer.Node, err: err})
		return nil
	}
	return s
}

// serveSession is the part of a connection's life after its CONNECT was accepted.
func (b *Broker) serveSession(c net.Conn, s *session) (parked bool) {
	switch {
	case s.farewell != nil:
		b.serveDismissed(s)
		return false
	case s.watching != nil:
		err := b.observe(s)
		b.log.Debug("observer disconnected", "name", s.watching.Name, "addr", s.watching.Addr, "err", err)
		return false
	}
	s.claimed = true
	speaks := false
	if onOwnGoroutine(func() { speaks = b.cfg.Handler.Speaks(s.peer) }); !speaks {
		refuse(s.conn, 4, notAuthorized)
		b.refused(c, &refusal{why: refusedByHub, node: s.peer.Node,
			err: errors.New("another device took its place in this moment")})
		return false
	}
	b.stats.accepted.Add(1)
	return b.serveUntilIdle(s)
}

const maxConnections = 65536

// fill puts in the defaults.
func (l *Limits) fill() {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	setRate := func(v *float64, def float64) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.Connections, maxConnections)
	set(&l.Greeting, 2048)
	set(&l.PerAddress, 2048)
	setRate(&l.PerAddressRate, 100)
	setRate(&l.NodeRate, 100)
	// The hub needs files for other things too.
	_, files := listen.Files()
	l.Connections = min(l.Connections, files)
}
