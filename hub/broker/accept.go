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

// accept accepts connections until the context ends. It logs and retries failed accepts, such as
// too many open files or an aborted connection, because a listener must not stop while the process
// runs.
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

// admit starts serving a connection, unless there are too many.
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
		defer panics.Catch("mqtt", "addr", ip) // a panic ends this connection only
		if s := b.handshake(c, l); s != nil {
			handedOver = true
			go b.serveConn(s, c, ip) // TLS and CONNECT have grown the stack; a new goroutine has a small one
		}
	}()
}

// serveConn serves a connection from its accepted CONNECT until it ends or becomes idle.
func (b *Broker) serveConn(s *session, c net.Conn, ip netip.Addr) {
	defer panics.Catch("mqtt")
	s.key, s.ip = c, ip
	b.runPart(s, func() (isIdle bool) { return b.serveSession(c, s) })
}

// runPart runs a part of a session. When the part panics or ends without becoming idle, it ends the
// session and removes the connection.
func (b *Broker) runPart(s *session, part func() (isIdle bool)) {
	isIdle := false
	defer func() {
		if !isIdle {
			if s.claimed {
				b.release(s)
			}
			b.unregister(s.key, s.ip)
			b.handlers.Done()
		}
	}()
	defer panics.Catch("mqtt", "node", s.peer.Node)
	isIdle = part()
}

// register counts a connection and takes a slot for its handshake. If a limit is reached, the error
// names the limit.
func (b *Broker) register(c net.Conn) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.open); n >= b.cfg.Limits.Connections {
		if n < maxConnections {
			return fmt.Errorf("%d connections are open, which is the limit of the hub's open files: raise "+
				"LimitNOFILE= (ulimit -n)", n)
		}
		return fmt.Errorf("%d connections are open, which is the limit", n)
	}
	select {
	case b.handshakes <- struct{}{}:
		b.open[c] = true
		return nil
	default:
		return fmt.Errorf("%d connections have not finished CONNECT, which is the limit", len(b.handshakes))
	}
}

// unregister closes a connection and removes it from the counts.
func (b *Broker) unregister(c net.Conn, ip netip.Addr) {
	_ = c.Close()
	b.mu.Lock()
	delete(b.open, c)
	b.mu.Unlock()
	b.addresses.Leave(ip)
}

// handshake reads a connection up to its accepted CONNECT; nil: the connection was refused.
func (b *Broker) handshake(c *line.Conn, l listener) *session {
	defer func() { <-b.handshakes }()
	_ = c.SetDeadline(time.Now().Add(b.handshakeTimeout))
	first := make([]byte, 1) // before the first byte, a connection costs only this and a small stack
	if _, err := io.ReadFull(c, first); err != nil {
		b.refused(c, &refusal{why: silent, err: fmt.Errorf("no data received: %w", err)})
		return nil
	}
	s, ref := b.readConnectFrom(c, first, l)
	if ref != nil {
		b.refused(c, ref)
		return nil
	}
	if s.dismissal != nil || s.observer != nil {
		return s
	}
	if err := b.claim(s); err != nil {
		refuse(s.conn, 4, unavailable)
		b.refused(c, &refusal{why: busy, node: s.peer.Node, err: err})
		return nil
	}
	return s
}

// serveSession serves a connection after its accepted CONNECT.
func (b *Broker) serveSession(c net.Conn, s *session) (isIdle bool) {
	switch {
	case s.dismissal != nil:
		b.serveDismissed(s)
		return false
	case s.observer != nil:
		err := b.observe(s)
		b.log.Debug("observer disconnected", "name", s.observer.Name, "addr", s.observer.Addr, "err", err)
		return false
	}
	s.claimed = true
	speaks := false
	if onGoroutine(func() { speaks = b.cfg.Handler.Speaks(s.peer) }); !speaks {
		refuse(s.conn, 4, notAuthorized)
		b.refused(c, &refusal{why: refusedByHub, node: s.peer.Node,
			err: errors.New("another device has just taken its place")})
		return false
	}
	b.stats.accepted.Add(1)
	return b.serveUntilIdle(s)
}

const maxConnections = 65536

// fill sets the defaults.
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
	// Some open files are for other purposes.
	_, files := listen.Files()
	l.Connections = min(l.Connections, files)
}
