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
	// bodyTime is how long a request's body may take, plus one second for each bodyRate bytes.
	bodyTime = 10 * time.Second
	bodyRate = 8 << 10
	// answerChunk is how many bytes of an answer an HTTP/2 client must take within `reading`.
	answerChunk = 64 << 10
	// maxAnonymous is the limit of concurrent requests on an unauthenticated connection.
	maxAnonymous = 16
	// maxAnonymousRow is the limit of unauthenticated requests in a row on one connection. A new
	// connection costs the client more than the hub.
	maxAnonymousRow = 100
	// Streams is the limit of concurrent requests on one HTTP/2 connection.
	Streams = 100
	// maxDrain is how much of a body is read after an answer that closes the connection.
	maxDrain = 1 << 20
	// idle is how long a connection may stay open without a request.
	idle = 2 * time.Minute
)

type key struct{}

// A request is a running request.
type request struct {
	w    http.ResponseWriter
	conn *Conn // nil: the connection does not come from a Listener

	mu        sync.Mutex
	user      string // "" until Authenticated is called
	anonymous bool   // the request was counted as unauthenticated
}

// Serve serves HTTPS on the connections of a Listener, with the limits of this package.
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

// A handler limits the resources that each request can hold.
type handler struct{ next http.Handler }

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff") // browsers must not guess the type of an answer
	conn, _ := r.Context().Value(key{}).(*Conn)
	q := &request{w: w, conn: conn}
	rc := http.NewResponseController(w)
	if r.ContentLength != 0 { // without a body there is no read to limit
		b := &body{ReadCloser: r.Body, rc: rc, began: time.Now()}
		_ = rc.SetReadDeadline(b.readDeadline()) // the writers of tests have no deadlines, and no connection
		r.Body = b
	}
	if !q.begin() {
		Busy(w, "too many unauthenticated requests are under way on this connection")
		return
	}
	defer q.end()
	if !q.countAnonymous() {
		closeAfter(w, r)
		Busy(w, "too many unauthenticated requests from this address")
		drain(w, r)
		return
	}
	if conn != nil && conn.anonymousRequests.Load() >= maxAnonymousRow {
		closeAfter(w, r)
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
	drain(w, r)
}

// closeAfter closes the connection after the answer. If the rest of an HTTP/1.1 request is long,
// net/http itself closes the connection, and half-closes it first.
func closeAfter(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 || r.ContentLength <= maxDrain {
		w.Header().Set("Connection", "close")
	}
}

// drain reads the rest of the body after an answer that closes the connection. Closing with unread
// input would reset the connection, and the client might lose the answer.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 && w.Header().Get("Connection") == "close" {
		_ = http.NewResponseController(w).Flush()
		_, _ = io.CopyN(io.Discard, r.Body, maxDrain)
	}
}

// Busy answers 429 Too Many Requests.
func Busy(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why+"; try again", http.StatusTooManyRequests)
}

func (q *request) begin() bool {
	if q.conn == nil {
		return true
	}
	n := q.conn.requests.Add(1)
	if n <= maxAnonymous {
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

// countAnonymous counts an unauthenticated request, and tells whether it is within the limits.
func (q *request) countAnonymous() bool {
	if q.conn == nil {
		return true
	}
	q.conn.l.mu.Lock()
	q.anonymous = q.conn.user == ""
	q.conn.l.mu.Unlock()
	if !q.anonymous {
		return true
	}
	q.conn.anonymousRequests.Add(1)
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
		l.countAnonymous(q.conn)
		return
	}
	u := l.users[name]
	u.requests--
	l.forget(name, u)
}

// ErrBusy refuses a request of a user who has too many requests under way.
var ErrBusy = errors.New("too many requests of this user are under way")

// Authenticated records the authenticated user of a request. Newcomers no longer displace its
// connection, unless the user already has Limits.User such connections.
func Authenticated(ctx context.Context, name string) error {
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
	if q.user != "" { // the first user of a request counts
		l.forget(name, u)
		return nil
	}
	q.user = name
	u.requests++
	c.authenticated.Store(true)
	c.anonymousRow = 0
	if q.anonymous {
		q.anonymous = false
		c.anonymousRequests.Add(-1)
		l.addresses.Unask(c.ip)
	}
	if c.element != nil && u.connections < l.limits.User {
		l.anonymous.Remove(c.element)
		c.element, c.user = nil, name
		u.connections++
	}
	return nil
}

// Cut ends a request's answer: the connection with HTTP/1.1, the stream with HTTP/2.
func Cut(ctx context.Context) {
	if c, ok := ctx.Value(key{}).(net.Conn); ok {
		_ = c.Close()
		return
	}
	q, _ := ctx.Value(key{}).(*request)
	switch {
	case q == nil:
	case q.conn != nil && ownsConnection(q.w):
		_ = q.conn.Close()
	default:
		_ = http.NewResponseController(q.w).SetWriteDeadline(time.Unix(1, 0))
	}
}

// ConnContext is the ConnContext of a server without the limits of this package. Its connections
// have one request at a time, so Cut closes the connection.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// ownsConnection tells whether an answer has its own connection, as in HTTP/1.1.
func ownsConnection(w http.ResponseWriter) bool { _, many := w.(*answer); return !many }

// A body extends its read deadline with each byte that arrives.
type body struct {
	io.ReadCloser
	rc    *http.ResponseController
	began time.Time
	bytes int64
}

func (b *body) readDeadline() time.Time {
	return b.began.Add(bodyTime + time.Duration(b.bytes)*time.Second/bodyRate)
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes += int64(n)
	switch {
	case err == nil:
		_ = b.rc.SetReadDeadline(b.readDeadline())
	case errors.Is(err, io.EOF):
		_ = b.rc.SetReadDeadline(time.Time{}) // after the body, the answer may take any time
	}
	return n, err
}

// An answer is an HTTP/2 response with its own write deadline. Streams share a connection, so the
// connection's deadline does not show that one stream's client does not read.
type answer struct {
	http.ResponseWriter
	rc *http.ResponseController

	mu       sync.Mutex
	deadline time.Time // set by the handler
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// SetWriteDeadline sets the handler's deadline, beside the package's own.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deadline = t
	return a.rc.SetWriteDeadline(t)
}

// withDeadline runs a write with a deadline.
func (a *answer) withDeadline(do func() error) error {
	a.mu.Lock()
	t := time.Now().Add(reading)
	if !a.deadline.IsZero() && a.deadline.Before(t) {
		t = a.deadline
	}
	_ = a.rc.SetWriteDeadline(t)
	a.mu.Unlock()
	err := do()
	a.mu.Lock()
	_ = a.rc.SetWriteDeadline(a.deadline) // a deadline that stays set would end a quiet stream
	a.mu.Unlock()
	return err
}

func (a *answer) Write(p []byte) (done int, err error) {
	for first := true; first || len(p) > 0 && err == nil; first = false {
		n := min(len(p), answerChunk)
		err = a.withDeadline(func() error {
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
func (a *answer) FlushError() error { return a.withDeadline(a.rc.Flush) }
