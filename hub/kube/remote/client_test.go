package remote

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/moby/spdystream"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
)

// patience is how long a test waits for data.
const patience = time.Minute

// A tester is the client's side of a command, in one of the protocols.
type tester interface {
	// send sends bytes of stdin or resize unless the command has ended.
	send(stream string, b []byte)
	// shut ends stdin. v4 over a WebSocket cannot do that.
	shut()
	// rest reads a stream to its end.
	rest(stream string) string
	// read reads n bytes of a stream.
	read(stream string, n int) string
	// vanish closes the connection without a close message.
	vanish()
}

// protocols are the ways to connect a client to a server.
var protocols = []struct {
	name string
	open func(t *testing.T, srv *httptest.Server, enabled Streams) tester
}{
	{"v5 over a WebSocket", func(t *testing.T, srv *httptest.Server, _ Streams) tester {
		return openSocket(t, srv, remotecommand.StreamProtocolV5Name)
	}},
	{"v4 over a WebSocket", func(t *testing.T, srv *httptest.Server, _ Streams) tester {
		return openSocket(t, srv, remotecommand.StreamProtocolV4Name)
	}},
	{"SPDY", openSPDY},
}

var ids = map[string]byte{
	corev1.StreamTypeStdin: 0, corev1.StreamTypeStdout: 1, corev1.StreamTypeStderr: 2, corev1.StreamTypeError: 3,
	corev1.StreamTypeResize: 4,
}

// A socketClient stores the data of each channel.
type socketClient struct {
	t    *testing.T
	conn *websocket.Conn

	mu    sync.Mutex
	came  *sync.Cond
	bytes [5]bytes.Buffer
	first []byte // payload of the first message
	ended bool
}

func openSocket(t *testing.T, srv *httptest.Server, protocol string) *socketClient {
	t.Helper()
	d := websocket.Dialer{Subprotocols: []string{"base64.binary.k8s.io", protocol, "channel.k8s.io"}}
	conn, _, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if conn.Subprotocol() != protocol {
		t.Fatalf("the protocol is %q, want %q", conn.Subprotocol(), protocol)
	}
	c := &socketClient{t: t, conn: conn}
	c.came = sync.NewCond(&c.mu)
	t.Cleanup(c.vanish)
	go c.listen()
	return c
}

func (c *socketClient) listen() {
	for {
		_, m, err := c.conn.ReadMessage()
		c.mu.Lock()
		if err != nil {
			c.ended = true
			c.came.Broadcast()
			c.mu.Unlock()
			return
		}
		if c.first == nil {
			c.first = m
		}
		c.bytes[m[0]].Write(m[1:])
		c.came.Broadcast()
		c.mu.Unlock()
	}
}

func (c *socketClient) send(stream string, b []byte) {
	_ = c.conn.WriteMessage(websocket.BinaryMessage, append([]byte{ids[stream]}, b...))
}

func (c *socketClient) shut() {
	_ = c.conn.WriteMessage(websocket.BinaryMessage, []byte{255, 0})
}

func (c *socketClient) rest(stream string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.ended {
		c.came.Wait()
	}
	return c.bytes[ids[stream]].String()
}

func (c *socketClient) read(stream string, n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &c.bytes[ids[stream]]
	for b.Len() < n && !c.ended {
		c.came.Wait()
	}
	return string(b.Next(n))
}

func (c *socketClient) vanish() { _ = c.conn.NetConn().Close() }

// A spdyClient has one SPDY stream for each purpose.
type spdyClient struct {
	t       *testing.T
	net     net.Conn
	conn    *spdystream.Connection
	streams map[string]*spdystream.Stream
}

// dialSPDY opens a connection with SPDY.
func dialSPDY(t *testing.T, srv *httptest.Server, protocol string) (net.Conn, *spdystream.Connection) {
	t.Helper()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, upgradeSPDY(t, c, protocol)
}

// upgradeSPDY upgrades a connection to SPDY.
func upgradeSPDY(t *testing.T, c net.Conn, protocol string) *spdystream.Connection {
	t.Helper()
	_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: "+
		"SPDY/3.1\r\nX-Stream-Protocol-Version: v9.k8s.io, %s\r\nContent-Length: 0\r\n\r\n", protocol)
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b[0]) {
		if _, err := c.Read(b); err != nil {
			t.Fatalf("%v after %q", err, head)
		}
	}
	if text := string(head); !strings.HasPrefix(text, "HTTP/1.1 101 ") ||
		!strings.Contains(text, "X-Stream-Protocol-Version: "+protocol+"\r\n") {
		t.Fatalf("answered %q", head)
	}
	conn, err := spdystream.NewConnection(c, false)
	if err != nil {
		t.Fatal(err)
	}
	go conn.Serve(spdystream.NoOpStreamHandler)
	return conn
}

func openSPDY(t *testing.T, srv *httptest.Server, enabled Streams) tester {
	t.Helper()
	c := &spdyClient{t: t, streams: map[string]*spdystream.Stream{}}
	c.net, c.conn = dialSPDY(t, srv, remotecommand.StreamProtocolV4Name)
	enabled.Stderr = enabled.Stderr && !enabled.TTY // kubectl does the same
	for _, name := range enabled.streams() {
		c.streams[name] = openStream(t, c.conn, http.Header{corev1.StreamType: {name}})
	}
	return c
}

func openStream(t *testing.T, conn *spdystream.Connection, h http.Header) *spdystream.Stream {
	t.Helper()
	s, err := conn.CreateStream(h, nil, false)
	if err == nil {
		err = s.WaitTimeout(patience)
	}
	if err != nil {
		t.Fatalf("open a stream: %v", err)
	}
	return s
}

func (c *spdyClient) send(stream string, b []byte) {
	_, _ = c.streams[stream].Write(b)
}

func (c *spdyClient) shut() { _ = c.streams[corev1.StreamTypeStdin].Close() }

func (c *spdyClient) rest(stream string) string {
	if c.streams[stream] == nil {
		return ""
	}
	b, err := io.ReadAll(c.streams[stream])
	if err != nil {
		c.t.Error(err)
	}
	return string(b)
}

func (c *spdyClient) read(stream string, n int) string {
	b := make([]byte, n)
	n, _ = io.ReadFull(c.streams[stream], b)
	return string(b[:n])
}

func (c *spdyClient) vanish() { _ = c.net.Close() }

// status reads the command's result.
func status(t *testing.T, c tester) (st metav1.Status) {
	t.Helper()
	text := c.rest(corev1.StreamTypeError)
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		t.Fatalf("the error stream has %q: %v", text, err)
	}
	return st
}

// forwarders are the protocols of port-forward.
var forwarders = []struct {
	name string
	open func(t *testing.T, srv *httptest.Server) (net.Conn, *spdystream.Connection)
}{
	{"SPDY", func(t *testing.T, srv *httptest.Server) (net.Conn, *spdystream.Connection) {
		return dialSPDY(t, srv, portforward.PortForwardV1Name)
	}},
	{"SPDY in a WebSocket", func(t *testing.T, srv *httptest.Server) (net.Conn, *spdystream.Connection) {
		d := websocket.Dialer{Subprotocols: []string{portforward.WebsocketsSPDYTunnelingPortForwardV1}}
		ws, _, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http"), nil)
		if err != nil {
			t.Fatal(err)
		}
		c := newTunnel(&socket{conn: ws, closed: make(chan struct{})})
		t.Cleanup(func() { _ = ws.NetConn().Close() })
		conn, err := spdystream.NewConnection(c, false)
		if err != nil {
			t.Fatal(err)
		}
		go conn.Serve(spdystream.NoOpStreamHandler)
		return ws.NetConn(), conn
	}},
}
