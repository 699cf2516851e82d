package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// bodyTime is how long the body of a request may take, beside bodyRate bytes for
	// each second more.
	bodyTime = 10 * time.Second
	bodyRate = 8 << 10
	// answerChunk is how much of an answer a client of HTTP/2 has to take in the time
	// that is given for reading.
	answerChunk = 64 << 10
	// strangersRequests is how many requests may be under way on one connection
	// while nobody has shown on it who they are.
	strangersRequests = 16
	// strangersAsks is how many requests a connection serves on which nobody shows who
	// they are. Who goes on has to open another, which costs them more than us.
	strangersAsks = 100
	// Streams is how many requests HTTP/2 lets one connection have under way.
	Streams = 100
	// idle is how long a connection may be open without a request.
	idle = 2 * time.Minute
)

type key struct{}

// A request is one that is under way.
type request struct {
	w    http.ResponseWriter
	conn *Conn // nil: not from a Listener

	mu       sync.Mutex
	user     string // whose it is
	stranger bool   // counted as one whose sender is not known
}

// Serve gives a server the limits of this package: it takes its connections from a
// Listener, over TLS.
func Serve(s *http.Server, l *Listener) error {
	s.ReadHeaderTimeout, s.IdleTimeout, s.MaxHeaderBytes = 10*time.Second, idle, 64<<10
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: Streams, WriteByteTimeout: reading, SendPingTimeout: reading, PingTimeout: 15 * time.Second,
		MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 256 << 10,
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		mine, _ := c.(*Conn)
		return context.WithValue(ctx, key{}, mine)
	}
	s.Handler = handler{s.Handler}
	return s.Serve(tls.NewListener(l, s.TLSConfig))
}

// A handler bounds what each request can hold.
type handler struct{ next http.Handler }

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff") // every answer is what it says, whoever gives it
	conn, _ := r.Context().Value(key{}).(*Conn)
	q := &request{w: w, conn: conn}
	if !q.begin() {
		Busy(w, "too many requests are under way on this connection, and none has shown who sends them")
		return
	}
	defer q.end()
	if !q.asks() {
		w.Header().Set("Connection", "close")
		Busy(w, "too many requests come from this address, and none shows who sends them")
		return
	}
	if conn != nil && conn.asked.Load() >= strangersAsks {
		w.Header().Set("Connection", "close")
	}
	rc := http.NewResponseController(w)
	if r.ContentLength != 0 { // else nothing is read that anybody would wait for
		b := &body{ReadCloser: r.Body, rc: rc, began: time.Now()}
		_ = rc.SetReadDeadline(b.until()) // a writer without deadlines, as in tests, has no connection either
		r.Body = b
	}
	switch {
	case r.ProtoMajor == 2:
		w = &answer{ResponseWriter: w, rc: rc}
		q.w = w
	case conn != nil && strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade"):
		conn.patience.Store(int64(pausing))
		defer conn.patience.Store(int64(reading))
	}
	h.next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, q)))
}

// Busy refuses a request for now.
func Busy(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why+"; try again", http.StatusTooManyRequests)
}

func (q *request) begin() bool {
	if q.conn == nil {
		return true
	}
	n := q.conn.requests.Add(1)
	if n <= strangersRequests {
		return true
	}
	q.conn.l.mu.Lock()
	known := q.conn.user != ""
	q.conn.l.mu.Unlock()
	if !known {
		q.conn.requests.Add(-1)
	}
	return known
}

// asks counts a request of whom nobody knows yet.
func (q *request) asks() bool {
	if q.conn == nil {
		return true
	}
	q.conn.l.mu.Lock()
	q.stranger = q.conn.user == ""
	q.conn.l.mu.Unlock()
	if !q.stranger {
		return true
	}
	q.conn.asked.Add(1)
	return q.conn.l.addresses.Ask(q.conn.ip)
}

func (q *request) end() {
	if q.conn == nil {
		return
	}
	q.conn.requests.Add(-1)
	q.mu.Lock()
	name := q.user
	q.mu.Unlock()
	l := q.conn.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if name == "" {
		l.unknown(q.conn)
		return
	}
	u := l.users[name]
	u.requests--
	l.forget(name, u)
}

// ErrBusy: a user has as many requests under way as one may have.
var ErrBusy = errors.New("too many requests of this user are under way")

// Known says whose a request has turned out to be, by what could not be made up. Its
// connection keeps its place from now on, unless the user has enough of them.
func Known(ctx context.Context, name string) error {
	q, _ := ctx.Value(key{}).(*request)
	if q == nil || q.conn == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.user == name {
		return nil
	}
	c, l := q.conn, q.conn.l
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.userOf(name)
	if u.requests >= l.limits.Requests {
		return ErrBusy
	}
	if q.user != "" { // the request of one user is never another's
		l.forget(name, u)
		return nil
	}
	q.user = name
	u.requests++
	c.known.Store(true)
	c.unknown = 0
	if q.stranger {
		q.stranger = false
		c.asked.Add(-1)
		l.addresses.Unask(c.ip)
	}
	if c.element != nil && u.connections < l.limits.User {
		l.strangers.Remove(c.element)
		c.element, c.user = nil, name
		u.connections++
	}
	return nil
}

// Cut ends a request's answer, and where the connection is the answer's alone that.
func Cut(ctx context.Context) {
	if c, ok := ctx.Value(key{}).(net.Conn); ok {
		_ = c.Close()
		return
	}
	q, _ := ctx.Value(key{}).(*request)
	switch {
	case q == nil:
	case q.conn != nil && isOne(q.w):
		_ = q.conn.Close()
	default:
		_ = http.NewResponseController(q.w).SetWriteDeadline(time.Unix(1, 0))
	}
}

// One is for the ConnContext of a server without the limits of this package, whose connections
// carry one request at a time: Cut ends it with its connection.
func One(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) }

// isOne tells whether an answer has a connection of its own, as in HTTP/1.1.
func isOne(w http.ResponseWriter) bool { _, many := w.(*answer); return !many }

// A body is read with a deadline that what has come moves.
type body struct {
	io.ReadCloser
	rc    *http.ResponseController
	began time.Time
	bytes int64
}

func (b *body) until() time.Time {
	return b.began.Add(bodyTime + time.Duration(b.bytes)*time.Second/bodyRate)
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes += int64(n)
	switch {
	case err == nil:
		_ = b.rc.SetReadDeadline(b.until())
	case errors.Is(err, io.EOF):
		_ = b.rc.SetReadDeadline(time.Time{}) // the answer may take as long as it likes
	}
	return n, err
}

// An answer over HTTP/2 shares its connection, so that the connection's own deadline
// does not show that its client takes nothing.
type answer struct {
	http.ResponseWriter
	rc *http.ResponseController

	mu       sync.Mutex
	deadline time.Time // of the handler
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// SetWriteDeadline is the handler's; the answer's own is beside it.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deadline = t
	return a.rc.SetWriteDeadline(t)
}

// timed does something that waits for the client.
func (a *answer) timed(do func() error) error {
	a.mu.Lock()
	t := time.Now().Add(reading)
	if !a.deadline.IsZero() && a.deadline.Before(t) {
		t = a.deadline
	}
	_ = a.rc.SetWriteDeadline(t)
	a.mu.Unlock()
	err := do()
	a.mu.Lock()
	_ = a.rc.SetWriteDeadline(a.deadline) // one that stays would end a stream that is only quiet
	a.mu.Unlock()
	return err
}

func (a *answer) Write(p []byte) (done int, err error) {
	for first := true; first || len(p) > 0 && err == nil; first = false {
		n := min(len(p), answerChunk)
		err = a.timed(func() error {
			m, err := a.ResponseWriter.Write(p[:n])
			done += m
			return err
		})
		p = p[n:]
	}
	return done, err
}

// Flush implements http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is for http.ResponseController.
func (a *answer) FlushError() error { return a.timed(a.rc.Flush) }
