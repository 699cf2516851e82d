package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/moby/spdystream"
	"github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/panics"
)

const (
	spdyUpgrade    = "SPDY/3.1"
	protocolHeader = "X-Stream-Protocol-Version"
)

// isSPDY reports whether a request asks for SPDY.
func isSPDY(r *http.Request) bool {
	return strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade") &&
		strings.EqualFold(r.Header.Get("Upgrade"), spdyUpgrade)
}

// switchProtocols answers with an upgrade to SPDY, and to the client's first supported protocol.
func switchProtocols(w http.ResponseWriter, r *http.Request, supported ...string) (net.Conn, error) {
	var offered []string
	for _, h := range r.Header.Values(protocolHeader) {
		for p := range strings.SplitSeq(h, ",") {
			offered = append(offered, strings.TrimSpace(p))
		}
	}
	protocol, err := choose(offered, supported)
	if err != nil {
		return nil, err
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, hijackFailed(err)
	}
	if _, err := fmt.Fprintf(conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %s\r\n\r\n", spdyUpgrade,
		protocolHeader, protocol); err != nil {
		_ = conn.Close()
		return nil, nil
	}
	return &bufferedConn{conn, buffered.Reader}, nil
}

// A bufferedConn is a connection with bytes that are already read.
type bufferedConn struct {
	net.Conn
	read *bufio.Reader
}

func (e *bufferedConn) Read(p []byte) (int, error) { return e.read.Read(p) }

// serveSPDY calls accept for each stream that the client opens, from several goroutines. gone is
// closed when the client has closed the connection. A client that does not count windows can
// overfill an unread stream. That blocks its other streams, and only a ping then notices that the
// client has gone.
func serveSPDY(c net.Conn, accept func(flowStream)) (conn *framed, gone <-chan struct{}, err error) {
	conn = newFramed(c)
	s, err := spdystream.NewConnectionWithOptions(conn, true,
		spdy.WithMaxControlFramePayloadSize(maxControl), spdy.WithMaxHeaderFieldSize(maxHeader),
		spdy.WithMaxHeaderCount(maxHeaders))
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	closed := make(chan struct{})
	go func() {
		defer panics.Catch("stream")
		defer close(closed)
		select {
		case <-s.CloseChan():
		case <-conn.stop:
		}
	}()
	go func() {
		defer panics.CatchThen("stream", func(error) { _ = conn.Close() })
		s.Serve(func(s *spdystream.Stream) { // accept is called on a goroutine of the library
			defer panics.CatchThen("stream", func(error) { _ = conn.Close() })
			accept(flowStream{s, conn.flow})
		})
	}()
	return conn, closed, nil
}

// answer accepts a stream. Only the goroutine that received the stream may call answer.
func answer(s *spdystream.Stream) bool { return s.SendReply(http.Header{}, false) == nil }

// streams is a command's client on SPDY. It has one stream for each purpose.
type streams struct {
	*input
	enabled Streams
	conn    *framed
	closed  <-chan struct{} // closed when the client has closed the connection

	mu      sync.Mutex
	opened  map[string]*flowStream // open streams by type
	missing int
	ready   chan struct{}
}

func acceptStreams(w http.ResponseWriter, r *http.Request, enabled Streams) (session, error) {
	conn, err := switchProtocols(w, r, remotecommand.StreamProtocolV4Name)
	if err != nil || conn == nil {
		return nil, err
	}
	c := &streams{input: newInput(), enabled: enabled, opened: map[string]*flowStream{}, ready: make(chan struct{})}
	for _, name := range enabled.streams() {
		c.opened[name] = nil
		c.missing++
	}
	if c.conn, c.closed, err = serveSPDY(conn, c.accept); err != nil {
		return nil, nil // the client has gone
	}
	context.AfterFunc(r.Context(), c.conn.flow.end)
	timeout := time.NewTimer(openTimeout)
	defer timeout.Stop()
	select {
	case <-c.ready:
	case <-c.closed:
		c.close()
		return nil, nil
	case <-timeout.C:
		c.close()
		return nil, nil
	}
	if enabled.Stdin {
		go c.listen(c.opened[corev1.StreamTypeStdin])
	}
	if enabled.TTY {
		go c.watch(c.opened[corev1.StreamTypeResize])
	}
	return c, nil
}

// streams returns the types of the streams that the client opens.
func (w Streams) streams() []string {
	names := []string{corev1.StreamTypeError}
	for _, each := range []struct {
		name   string
		wanted bool
	}{{corev1.StreamTypeStdin, w.Stdin}, {corev1.StreamTypeStdout, w.Stdout}, {corev1.StreamTypeStderr, w.Stderr},
		{corev1.StreamTypeResize, w.TTY}} {
		if each.wanted {
			names = append(names, each.name)
		}
	}
	return names
}

// accept accepts each requested stream once.
func (c *streams) accept(s flowStream) {
	kind := s.Headers().Get(corev1.StreamType)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, wanted := c.opened[kind]; !wanted || known != nil {
		_ = s.Reset()
		return
	}
	if !answer(s.Stream) {
		return
	}
	c.opened[kind] = &s
	if c.missing--; c.missing == 0 {
		close(c.ready)
	}
}

func (c *streams) listen(s *flowStream) {
	defer panics.CatchThen("stream", func(error) { _ = c.conn.Close() })
	defer c.input.abort()
	buf := make([]byte, 32<<10)
	for {
		n, err := s.Read(buf)
		if n > 0 {
			c.input.write(buf[:n])
		}
		if err != nil && s.complete() {
			c.input.close()
		}
		if err != nil {
			return
		}
	}
}

func (c *streams) watch(s *flowStream) {
	defer panics.CatchThen("stream", func(error) { _ = c.conn.Close() })
	c.resizes(s)
}

func (c *streams) io() ask.IO {
	var s ask.IO
	if c.enabled.Stdout {
		s.Stdout = c.opened[corev1.StreamTypeStdout]
	}
	if c.enabled.Stderr {
		s.Stderr = c.opened[corev1.StreamTypeStderr]
	}
	return c.of(c.enabled, s)
}

func (c *streams) gone() <-chan struct{} { return c.closed }

func (c *streams) end(st *metav1.Status) {
	c.stop()
	for _, name := range []string{corev1.StreamTypeStdout, corev1.StreamTypeStderr} {
		if s := c.opened[name]; s != nil {
			_ = s.Close()
		}
	}
	b, _ := json.Marshal(st)                                // strings and numbers can always be encoded
	_, _ = c.opened[corev1.StreamTypeError].Stream.Write(b) // too short to be counted in a window
	_ = c.opened[corev1.StreamTypeError].Close()
	timeout := time.NewTimer(closeTimeout)
	defer timeout.Stop()
	select {
	case <-c.closed:
	case <-timeout.C:
	}
	c.close()
}

// close closes each stream and the connection. The library waits for the streams.
func (c *streams) close() {
	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.opened {
		if s != nil {
			_ = s.Reset()
		}
	}
}
