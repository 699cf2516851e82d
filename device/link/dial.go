package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Times of a connection.
const (
	connectTimeout = 10 * time.Second // for TCP, TLS and CONNECT together
	keepAlive      = 10 * time.Second
	pingTimeout    = 5 * time.Second
	// paho looks every quarter of the keep-alive, so a ping goes out at the latest
	// 12.5 s after the last byte came, and 5 s later the link counts as half open.
	silence      = keepAlive + keepAlive/4 + pingTimeout
	writeTimeout = 5 * time.Second // for writeChunk bytes to the hub
	writeChunk   = 4 << 10
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
func (c *Config) open(ctx context.Context, inFlight *atomic.Int64) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	raw, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
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
// time that what was written takes on the slowest link, or 4 KiB that do not get
// away in 5 s. paho counts packets instead: a desired state
// that takes a minute to come over a slow line would be taken for silence, and a
// ping on a dead line would be written for ever.
type conn struct {
	net.Conn               // encrypted, where it is
	raw      net.Conn      // what is below
	turn     chan struct{} // taken by who writes: paho has two that do
	inFlight *atomic.Int64 // bytes that the hub has not acknowledged; an answer to a ping comes behind them

	mu       sync.Mutex
	deadline time.Time // paho's, for CONNECT; zero: ours
	closed   bool      // by paho
	broken   error     // why we have closed it
}

func newConn(c, raw net.Conn, inFlight *atomic.Int64) *conn {
	return &conn{Conn: c, raw: raw, turn: make(chan struct{}, 1), inFlight: inFlight}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.read(p)
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

// read waits for bytes, on a slow link longer than it had thought at first.
func (c *conn) read(p []byte) (int, error) {
	for began := time.Now(); ; {
		c.mu.Lock()
		until := c.deadline
		c.mu.Unlock()
		own := until.IsZero()
		if own {
			until = began.Add(silence + takes(int(c.inFlight.Load())))
		}
		if err := c.raw.SetReadDeadline(until); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(p)
		if !own || n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) ||
			!time.Now().Before(began.Add(silence+takes(int(c.inFlight.Load())))) {
			return n, err
		}
	}
}

// pingreq asks the hub for a sign of life.
var pingreq = []byte{0xc0, 0}

// Write sends one whole packet; a ping must not get between the chunks of another.
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

func (c *conn) write(p []byte) (done int, err error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	for done < len(p) {
		if err := c.raw.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return done, err
		}
		n, err := c.Conn.Write(p[done:min(len(p), done+writeChunk)])
		if done += n; err != nil {
			return done, c.breakOff(err) // the stream is broken inside a packet
		}
	}
	return done, nil
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
func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.raw.SetReadDeadline(t)
}

// SetWriteDeadline is paho's around each packet; ours are around each chunk.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// clip shortens a text to at most n bytes, at a character's end.
func clip(s string, n int) string { return strings.ToValidUTF8(s[:n-len("…")], "") + "…" }
