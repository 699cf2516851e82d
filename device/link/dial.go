package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// Times of a connection.
const (
	connectTimeout = 10 * time.Second // for TCP, TLS and CONNECT together
	dialTimeout    = 4 * time.Second  // for TCP alone where there are several addresses: a SYN is sent at 0, 1 and 3 s
	keepAlive      = 10 * time.Second
	pingTimeout    = 5 * time.Second
	// paho looks every quarter of the keep-alive, so a ping goes out at the latest
	// 12.5 s after the last byte came, and 5 s later the link counts as half open.
	silence      = keepAlive + keepAlive/4 + pingTimeout
	writeTimeout = 5 * time.Second // in which the hub takes nothing of what is written to it
)

// A server is one of the addresses under which the hub can be reached.
type server struct {
	url  string
	dial func(context.Context) (net.Conn, error)
	tls  *tls.Config // nil: none
}

// servers reads a list of addresses. Each has a TLS configuration of its own: the name
// that the other side must prove is that of the address which was dialled.
func (c *Config) servers(list string) (all []server, err error) {
	for text := range strings.SplitSeq(list, ",") {
		s, err := c.server(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%.200q: %w", text, err)
		}
		if !slices.ContainsFunc(all, func(have server) bool { return have.url == s.url }) {
			all = append(all, s)
		}
	}
	if len(all) > wire.MaxBrokers {
		return nil, fmt.Errorf("there are %d addresses, and at most %d are used", len(all), wire.MaxBrokers)
	}
	return all, nil
}

func (c *Config) server(text string) (s server, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return s, errors.New("the address must be like mqtts://hub.example:8883")
	}
	secure, port := false, "1883"
	switch u.Scheme {
	case "mqtts", "tls", "ssl":
		secure, port = true, "8883"
	case "mqtt", "tcp":
		if ip := net.ParseIP(u.Hostname()); c.Dial == nil && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return s, fmt.Errorf("%s without TLS is for the development listener on loopback; use mqtts://%s", u.Scheme, u.Host)
		}
	default:
		return s, fmt.Errorf("scheme %q is not known; use mqtts", u.Scheme)
	}
	if u.Port() != "" {
		port = u.Port()
	}
	s = server{url: text, dial: c.Dial}
	if s.dial == nil {
		address := net.JoinHostPort(u.Hostname(), port)
		s.dial = func(ctx context.Context) (net.Conn, error) {
			return line.Dialer().DialContext(ctx, "tcp", address)
		}
	}
	if !secure {
		return s, nil
	}
	if c.TLS == nil {
		return s, errors.New("mqtts needs the device's certificate and the hub's CA; join the fleet first")
	}
	s.tls = c.TLS.Clone()
	s.tls.MinVersion = max(s.tls.MinVersion, tls.VersionTLS12)
	if s.tls.ServerName == "" {
		s.tls.ServerName = u.Hostname()
	}
	if verify := s.tls.VerifyConnection; verify != nil {
		name := s.tls.ServerName
		s.tls.VerifyConnection = func(state tls.ConnectionState) error {
			state.ServerName = name // which the library leaves out where it is an IP address
			return verify(state)
		}
	}
	return s, nil
}

// open dials, and shakes hands where TLS is used. One address of several that does not
// answer must not take the time in which another one would.
func (s *server) open(ctx context.Context, several bool, inFlight *atomic.Int64) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	dialling, done := ctx, func() {}
	if several {
		dialling, done = context.WithTimeout(ctx, dialTimeout)
	}
	dialled, err := s.dial(dialling)
	done()
	if err != nil {
		return nil, err
	}
	raw := line.New(dialled, writeTimeout)
	if s.tls == nil {
		return newConn(raw, raw, inFlight), nil
	}
	secure := tls.Client(raw, s.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return newConn(secure, raw, inFlight), nil
}

// A conn notices by itself when the other end is gone: no byte for 17.5 s and the
// time that what was written takes on the slowest link, 5 s in which it takes nothing of
// what is written, or a packet that goes out at less than 1 KiB/s. paho counts packets
// instead: a desired state that takes a minute to come over a slow line would be taken for
// silence, and a ping on a dead line would be written for ever.
type conn struct {
	net.Conn               // encrypted, where it is
	raw      *line.Conn    // what is below
	turn     chan struct{} // taken by who writes: paho has two that do

	mu     sync.Mutex
	closed bool  // by paho
	broken error // why we have closed it
}

// newConn gives a connection the ends that it has from now on. inFlight are the bytes that
// the hub has not acknowledged: an answer to a ping comes behind them.
func newConn(c net.Conn, raw *line.Conn, inFlight *atomic.Int64) *conn {
	raw.Listen(func() time.Duration { return silence + line.Takes(int(inFlight.Load())) })
	return &conn{Conn: c, raw: raw, turn: make(chan struct{}, 1)}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil {
		return n, nil
	}
	var timeout net.Error
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
	case c.broken != nil:
		err = c.broken
	case errors.As(err, &timeout) && timeout.Timeout():
		err = errors.New("no answer from the hub")
	case errors.Is(err, net.ErrClosed):
		// In these words paho would take it for its own doing and stay
		// connected to nothing.
		err = errors.New("the connection was cut on this side")
	}
	return n, err
}

// pingreq asks the hub for a sign of life.
var pingreq = []byte{0xc0, 0}

// Write sends one whole packet; a ping must not get into the middle of another.
//
// A ping of its own wakes the hub once more for each node and lease interval, which costs
// the hub more than the lease. So each lease, the only packet at QoS 0, takes one along,
// and paho, which hears the answer, has nothing to ping for.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 || p[0] != publish0 {
		return c.write(p)
	}
	n, err := c.write(append(slices.Clip(p), pingreq...))
	return min(n, len(p)), err
}

const publish0 = 0x30 // the first byte of a PUBLISH at QoS 0

func (c *conn) write(p []byte) (int, error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	_ = c.raw.SetWriteDeadline(time.Now().Add(writeTimeout + line.Takes(len(p))))
	n, err := c.Conn.Write(p)
	if err != nil {
		err = c.breakOff(err) // the stream is broken inside a packet
	}
	return n, err
}

// breakOff closes the connection after a failed write. The reader gets to know
// why: paho does not act on a ping that could not be written.
func (c *conn) breakOff(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.broken == nil {
		c.broken = fmt.Errorf("write to the hub: %w", err)
	}
	_ = c.raw.Close()
	return err
}

// Close cuts the connection without a farewell that could block.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.raw.Close()
}

// SetDeadline is paho's, around CONNECT.
func (c *conn) SetDeadline(t time.Time) error { return c.raw.SetReadDeadline(t) }

// SetWriteDeadline is paho's around each packet, whatever its size; ours knows that.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// clip shortens a text to at most n bytes, at a character's end.
func clip(s string, n int) string { return strings.ToValidUTF8(s[:n-len("…")], "") + "…" }
