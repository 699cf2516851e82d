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
	connectTimeout = 10 * time.Second // TCP, TLS and CONNECT together
	dialTimeout    = 4 * time.Second  // TCP, if the list has several addresses: a SYN is sent at 0, 1 and 3 s
	keepAlive      = 10 * time.Second
	pingTimeout    = 5 * time.Second
	// paho checks every quarter of the keep-alive: a ping goes out at most 12.5 s after the last
	// byte, and 5 s later the link counts as half open.
	silence      = keepAlive + keepAlive/4 + pingTimeout
	writeTimeout = 5 * time.Second // longest write without progress
)

// A server is one address of the hub.
type server struct {
	url  string
	dial func(context.Context) (net.Conn, error)
	tls  *tls.Config // nil: without TLS
}

// servers parses a list of addresses. Each has its own TLS configuration, since the certificate
// must match the dialled address.
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
		return nil, fmt.Errorf("there are %d addresses; give at most %d", len(all), wire.MaxBrokers)
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
			state.ServerName = name // crypto/tls leaves it empty for an IP address
			return verify(state)
		}
	}
	return s, nil
}

// open connects, with a TLS handshake if needed. If the list has several addresses, the time for
// TCP is shorter, so that another address is tried soon.
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

// A conn detects a dead peer itself: no byte for 17.5 s plus the time of unacknowledged bytes on
// the slowest link, 5 s without progress of a write, or a packet slower than 1 KiB/s. paho instead
// counts packets: a desired state that needs a minute would count as silence, and paho never stops
// writing a ping to a dead line.
type conn struct {
	net.Conn               // the connection to use, with TLS if configured
	raw      *line.Conn    // the TCP connection
	turn     chan struct{} // semaphore: paho has two goroutines that write

	mu     sync.Mutex
	closed bool  // paho has closed the connection
	broken error // why conn closed the connection
}

// newConn adds these checks to a connection. inFlight counts the unacknowledged bytes, behind which
// the answer to a ping waits.
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
		// paho takes the original error for the result of its own Close and would not report it.
		err = errors.New("the connection was cut on this side")
	}
	return n, err
}

// pingreq is an MQTT PINGREQ packet.
var pingreq = []byte{0xc0, 0}

// Write sends one whole packet; a ping must not interrupt another packet. Each lease, the only
// packet at QoS 0, carries a ping: a separate ping would wake the hub once more per node and
// interval, which costs more than the lease. paho sees the PINGRESP and sends no ping of its own.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 || p[0] != publish0 {
		return c.write(p)
	}
	n, err := c.write(append(slices.Clip(p), pingreq...))
	return min(n, len(p)), err
}

const publish0 = 0x30 // first byte of a PUBLISH at QoS 0

func (c *conn) write(p []byte) (int, error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	_ = c.raw.SetWriteDeadline(time.Now().Add(writeTimeout + line.Takes(len(p))))
	n, err := c.Conn.Write(p)
	if err != nil {
		err = c.breakOff(err) // the packet is incomplete, so the stream is broken
	}
	return n, err
}

// breakOff closes the connection after a failed write and gives the error to the reader, because
// paho ignores a failed ping.
func (c *conn) breakOff(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.broken == nil {
		c.broken = fmt.Errorf("write to the hub: %w", err)
	}
	_ = c.raw.Close()
	return err
}

// Close closes the connection at once, without a DISCONNECT that could block.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.raw.Close()
}

// SetDeadline is called by paho around CONNECT.
func (c *conn) SetDeadline(t time.Time) error { return c.raw.SetReadDeadline(t) }

// SetWriteDeadline ignores paho's deadline, which does not depend on the packet's size; conn has
// its own.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// clip shortens a text to at most n bytes, at a character boundary.
func clip(s string, n int) string { return strings.ToValidUTF8(s[:n-len("…")], "") + "…" }
