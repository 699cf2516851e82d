package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/portforward"

	"flotilla.dev/hub/panics"
)

// maxConnections limits the concurrent connections of one request.
const maxConnections = 128

// Dial opens a connection to a port. If the connection has CloseWrite, it is called when the client
// has sent everything.
type Dial func(ctx context.Context, port int32) (io.ReadWriteCloser, error)

// Forward connects a client to ports until the client closes or the request's context ends. It
// returns the answer to a request that did not become streams. A failed connection reports its
// error on its own stream.
func Forward(w http.ResponseWriter, r *http.Request, dial Dial) error {
	var (
		conn net.Conn
		err  error
	)
	switch {
	case websocket.IsWebSocketUpgrade(r):
		conn, err = acceptTunnel(w, r)
	case isSPDY(r):
		conn, err = switchProtocols(w, r, portforward.PortForwardV1Name)
	default:
		err = notUpgraded()
	}
	if err != nil || conn == nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	f := &forwarding{ctx: ctx, dial: dial, pairs: map[string]*pair{}}
	frames, gone, err := serveSPDY(conn, f.accept)
	if err != nil {
		return nil // the client has gone
	}
	defer context.AfterFunc(ctx, frames.flow.end)()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	cancel()
	f.end()
	_ = frames.Close()
	return nil
}

func acceptTunnel(w http.ResponseWriter, r *http.Request) (net.Conn, error) {
	protocol, err := choose(websocket.Subprotocols(r), []string{portforward.WebsocketsSPDYTunnelingPortForwardV1})
	if err != nil {
		return nil, err
	}
	s, err := upgrade(w, r, protocol)
	if err != nil {
		return nil, err
	}
	return newTunnel(s), nil
}

// A forwarding is one client's port-forward.
type forwarding struct {
	ctx     context.Context
	dial    Dial
	running sync.WaitGroup

	mu    sync.Mutex
	pairs map[string]*pair // pairs by request ID
	over  bool
}

// A pair is the two streams of one connection: data and error.
type pair struct {
	port        int32
	data, fault *flowStream
	timeout     *time.Timer
}

// accept accepts one stream of a pair, and starts the connection when the pair is complete.
func (f *forwarding) accept(s flowStream) {
	h := s.Headers()
	id, kind := h.Get(corev1.PortForwardRequestIDHeader), h.Get(corev1.StreamType)
	port, err := strconv.ParseUint(h.Get(corev1.PortHeader), 10, 16)
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pairs[id]
	switch {
	case f.over, id == "", err != nil || port == 0, kind != corev1.StreamTypeData && kind != corev1.StreamTypeError,
		p != nil && (p.port != int32(port) || kind == corev1.StreamTypeData && p.data != nil ||
			kind == corev1.StreamTypeError && p.fault != nil),
		p == nil && len(f.pairs) >= maxConnections:
		_ = s.Reset()
		return
	case !answer(s.Stream):
		return
	case p == nil:
		p = &pair{port: int32(port)}
		p.timeout = time.AfterFunc(openTimeout, func() { f.drop(id, p) })
		f.pairs[id] = p
	}
	if kind == corev1.StreamTypeData {
		p.data = &s
	} else {
		p.fault = &s
	}
	if p.data != nil && p.fault != nil && p.timeout.Stop() {
		f.running.Go(func() {
			defer panics.CatchThen("port-forward", func(error) { f.drop(id, p) })
			p.run(f.ctx, f.dial)
			f.forget(id)
		})
	}
}

// drop removes a pair that stayed incomplete.
func (f *forwarding) drop(id string, p *pair) {
	defer panics.Catch("port-forward")
	f.forget(id)
	p.reset()
}

func (f *forwarding) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pairs, id)
}

// end waits for running connections, and closes all other streams, because the library waits for
// them.
func (f *forwarding) end() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	f.running.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pairs {
		p.timeout.Stop()
		p.reset()
	}
}

func (p *pair) reset() {
	for _, s := range []*flowStream{p.data, p.fault} {
		if s != nil {
			_ = s.Reset()
		}
	}
}

// run serves one connection from its beginning to its end. It drops data that the client sends
// later.
func (p *pair) run(ctx context.Context, dial Dial) {
	go func() { _, _ = io.Copy(io.Discard, p.fault) }()
	conn, err := dial(ctx, p.port)
	if err == nil {
		err = p.splice(ctx, conn)
	}
	if why := stopped(ctx); why != nil {
		err = why // a reset stream has no reader
	}
	if err != nil {
		_, _ = fmt.Fprintf(p.fault.Stream, "%v", err) // too short to be counted in a window
	}
	_ = p.data.Close()
	_ = p.fault.Close()
	p.data.flow.closeStream(p.data.Identifier())
	p.data.flow.closeStream(p.fault.Identifier())
}

// splice copies in both directions until the pod has sent everything, one side fails, or the client
// resets the stream.
func (p *pair) splice(ctx context.Context, conn io.ReadWriteCloser) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	done := make(chan struct{})
	defer close(done)
	defer func() { _ = conn.Close() }()
	go p.send(conn, done)
	_, err := io.Copy(p.data, conn)
	if errors.Is(err, errStreamClosed) || errors.Is(err, net.ErrClosed) || p.data.IsFinished() || p.data.closed() {
		return nil
	}
	return err
}

// send copies the client's data and its end. A reset by the client looks like an end.
func (p *pair) send(conn io.ReadWriteCloser, done <-chan struct{}) {
	defer panics.CatchThen("port-forward", func(error) { _ = conn.Close() })
	if _, err := io.Copy(conn, p.data); err != nil {
		_, _ = io.Copy(io.Discard, p.data)
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	for wait := 10 * time.Millisecond; !p.data.IsFinished() && !p.data.closed(); wait = min(2*wait, time.Minute) {
		select {
		case <-done:
			return
		case <-time.After(wait): // a reset may follow the end
		}
	}
	_ = conn.Close()
}
