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
)

// Times of a connection.
const (
	connectTimeout = 10 * time.Second // for TCP, TLS and CONNECT together
	keepAlive      = 10 * time.Second
	pingTimeout    = 5 * time.Second
	// paho looks every quarter of the keep-alive, so a ping goes out at the latest
	// 12.5 s after the last byte came, and 5 s later the link counts as half open.
	silence      = keepAlive + keepAlive/4 + pingTimeout
	writeTimeout = 5 * time.Second // in which the hub takes nothing of what is written to it
)

// settleDial checks Server and makes Dial a function that ends with TLS, where
// that is asked for.
func (c *Config) settleDial() error {
	u, err := url.Parse(c.Server)
	if err != nil || u.Hostname() == "" {
		return errors.New("the address must be like mqtts://hub.example:8883")
	}
	secure, port := false, "1883"
	switch u.Scheme {
	case "mqtts", "tls", "ssl":
		secure, port = true, "8883"
	case "mqtt", "tcp":
		if ip := net.ParseIP(u.Hostname()); c.Dial == nil && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("%s without TLS is for the development listener on loopback; use mqtts://%s", u.Scheme, u.Host)
		}
	default:
		return fmt.Errorf("scheme %q is not known; use mqtts", u.Scheme)
	}
	if u.Port() != "" {
		port = u.Port()
	}
	if c.Dial == nil {
		address := net.JoinHostPort(u.Hostname(), port)
		c.Dial = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	if !secure {
		c.TLS = nil
		return nil
	}
	if c.TLS == nil {
		return errors.New("mqtts needs the device's certificate and the hub's CA; join the fleet first")
	}
	c.TLS = c.TLS.Clone()
	c.TLS.MinVersion = max(c.TLS.MinVersion, tls.VersionTLS12)
	if c.TLS.ServerName == "" {
		c.TLS.ServerName = u.Hostname()
	}
	return nil
}

// open dials, and shakes hands where TLS is used.
func (c *Config) open(ctx context.Context, inFlight *atomic.Int64) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	dialled, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	raw := line.New(dialled, writeTimeout)
	if c.TLS == nil {
		return newConn(raw, raw, inFlight), nil
	}
	secure := tls.Client(raw, c.TLS)
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
