package listen

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"flotilla.dev/hub/broker/pipe"
)

// certificate returns a certificate that these tests do not verify.
func certificate() *tls.Config {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
}

// A hub is a server that sends large answers, reads bodies, and authenticates by the header Name.
type hub struct {
	t      *testing.T
	net    *pipe.Net
	l      *Listener
	gaveUp chan struct{} // receives when the server gave up on an unread answer
}

var large = bytes.Repeat([]byte("0123456789abcdef"), 1<<16)

func (h hub) serve(w http.ResponseWriter, r *http.Request) {
	if name := r.Header.Get("Name"); name != "" {
		if err := Authenticated(r.Context(), name); err != nil {
			Busy(w, err.Error())
			return
		}
		if then := r.Header.Get("Then"); then != "" {
			_ = Authenticated(r.Context(), then)
		}
	}
	if r.Header.Get("Drain") != "" {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	switch r.URL.Path {
	case "/large":
		h.write(w)
	case "/body":
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	case "/unread": // /unread refuses without reading the body
		w.WriteHeader(http.StatusUnauthorized)
	case "/cut": // /cut ends the user's right during the answer
		time.AfterFunc(time.Second, func() { Cut(r.Context()) })
		for range 1000 {
			if _, err := w.Write(large); err != nil {
				h.gaveUp <- struct{}{}
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	case "/quiet":
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(time.Hour):
			_, _ = io.WriteString(w, "an hour later")
		case <-r.Context().Done():
		}
	case "/upgrade":
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\n\r\n"))
			h.write(c)
			_ = c.Close()
		}
	}
}

func (h hub) write(w io.Writer) {
	if _, err := w.Write(large); err != nil {
		h.gaveUp <- struct{}{}
	}
}

func start(t *testing.T, conf *tls.Config, limits Limits) hub {
	return startOn(t, conf, limits, func(l net.Listener) net.Listener { return l })
}

// startOn is start with a listener between the hub and the network.
func startOn(t *testing.T, conf *tls.Config, limits Limits, between func(net.Listener) net.Listener) hub {
	h := hub{t: t, net: pipe.New(), gaveUp: make(chan struct{}, 100)}
	h.l = New(between(h.net), limits)
	s := &http.Server{Handler: http.HandlerFunc(h.serve), TLSConfig: conf, ErrorLog: log.New(io.Discard, "", 0)}
	over := make(chan error, 1)
	go func() { over <- Serve(s, h.l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-over; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return h
}

func (h hub) raw() net.Conn {
	h.t.Helper()
	c, err := h.net.Dial(h.t.Context(), "client")
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// dial does a TLS handshake with a protocol.
func (h hub) dial(protocol string) *tls.Conn {
	h.t.Helper()
	c := tls.Client(h.raw(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
	if err := c.Handshake(); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// ask sends a request and returns the status code.
func ask(c net.Conn, text string) (int, error) {
	if _, err := io.WriteString(c, text); err != nil {
		return 0, err
	}
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, a.Body)
	return a.StatusCode, nil
}

func get(path, name string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: hub\r\nName: " + name + "\r\n\r\n"
}

// lasts returns after what time the hub closes a connection.
func lasts(c net.Conn) time.Duration {
	began := time.Now()
	_, _ = io.Copy(io.Discard, c)
	return time.Since(began)
}

func TestUnfinishedRequestsEnd(t *testing.T) {
	conf := certificate()
	post := "POST %s HTTP/1.1\r\nHost: hub\r\nContent-Length: 1000000\r\n\r\n{"
	for _, tt := range []struct {
		name string
		do   func(h hub) time.Duration
		most time.Duration
	}{
		{"a silent connection", func(h hub) time.Duration { return lasts(h.raw()) }, 10 * time.Second},
		{"half of a TLS handshake", func(h hub) time.Duration {
			c := h.raw()
			_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3})
			return lasts(c)
		}, 10 * time.Second},
		{"half of a header", func(h hub) time.Duration {
			c := h.dial("http/1.1")
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: hub\r\nX-A: ")
			return lasts(c)
		}, 10 * time.Second},
		{"half of a body", func(h hub) time.Duration {
			c := h.dial("http/1.1")
			_, _ = fmt.Fprintf(c, post, "/body")
			return lasts(c)
		}, 11 * time.Second},
		{"half of an unread body", func(h hub) time.Duration {
			c := h.dial("http/1.1")
			_, _ = fmt.Fprintf(c, post, "/unread")
			return lasts(c)
		}, 11 * time.Second},
		{"a body of a byte a second", func(h hub) time.Duration {
			c := h.dial("http/1.1")
			_, _ = fmt.Fprintf(c, post, "/body")
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				for range 1000 {
					time.Sleep(time.Second)
					if _, err := io.WriteString(c, " "); err != nil {
						return
					}
				}
			}()
			took := lasts(c)
			_ = c.NetConn().Close()
			<-stopped
			return took
		}, 12 * time.Second},
		{"a body in chunks that never ends", func(h hub) time.Duration {
			c := h.dial("http/1.1")
			_, _ = io.WriteString(c, "POST /body HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			return lasts(c)
		}, 11 * time.Second},
		{"a connection without requests", func(h hub) time.Duration {
			c := h.dial("http/1.1")
			if code, err := ask(c, get("/", "")); code != 200 {
				h.t.Fatal(code, err)
			}
			return lasts(c)
		}, idle},
		{"an unread answer", func(h hub) time.Duration { return unread(h, get("/large", "")) }, reading + 5*time.Second},
		{"an unread answer to a user", func(h hub) time.Duration { return unread(h, get("/large", "anna")) }, reading + 5*time.Second},
		{"an unread upgraded connection may pause longer", func(h hub) time.Duration {
			return unread(h, "GET /upgrade HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		}, pausing + time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, conf, Limits{Connections: 8})
				if took := tt.do(h); took > tt.most || took < tt.most/3 {
					t.Errorf("the connection lasted %s, want about %s", took, tt.most)
				}
				if code, err := ask(h.dial("http/1.1"), get("/", "")); code != 200 {
					t.Errorf("the next client: %d %v", code, err)
				}
			})
		})
	}
}

// unread sends a request, reads nothing, and returns after what time the hub gives up.
func unread(h hub, text string) time.Duration {
	h.t.Helper()
	c := h.dial("http/1.1")
	if _, err := io.WriteString(c, text); err != nil {
		h.t.Fatal(err)
	}
	began := time.Now()
	<-h.gaveUp
	return time.Since(began)
}

func TestIdleConnectionsAreDisplaced(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 6, User: 2})
		anna := h.dial("http/1.1")
		if code, err := ask(anna, get("/", "anna")); code != 200 {
			t.Fatal(code, err)
		}
		var idle []net.Conn
		for range 5 {
			idle = append(idle, h.raw())
		}
		for range 20 { // each newcomer displaces the oldest idle connection
			began := time.Now()
			if code, err := ask(h.dial("http/1.1"), get("/", "")); code != 200 || time.Since(began) > settled+time.Second {
				t.Fatalf("%d %v after %s", code, err, time.Since(began))
			}
		}
		for i, c := range idle { // all were displaced, because of the limit
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			var timeout net.Error
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("idle connection %d has kept its place: %v", i, err)
			}
		}
		if code, err := ask(anna, get("/", "anna")); code != 200 {
			t.Error("a user's connection was displaced:", code, err)
		}
		for range 5 { // a user keeps at most two places
			if _, err := io.WriteString(h.dial("http/1.1"), get("/quiet", "anna")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		began := time.Now()
		for range 6 {
			h.dial("http/1.1")
		}
		if code, err := ask(h.dial("http/1.1"), get("/", "olav")); code != 200 || time.Since(began) > 10*settled {
			t.Errorf("one user has all places: %d %v after %s", code, err, time.Since(began))
		}
		h.l.mu.Lock()
		defer h.l.mu.Unlock()
		if n := h.l.users["anna"].connections; n != 2 {
			t.Errorf("anna has %d places", n)
		}
	})
}

// A client2 uses HTTP/2 frame by frame.
type client2 struct {
	*http2.Framer
	t       *testing.T
	next    uint32
	writing chan struct{} // held during a write
}

func (c *client2) exclusively(do func() error) error {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	return do()
}

func dial2(h hub, window uint32) *client2 {
	h.t.Helper()
	c := h.dial("h2")
	_, _ = io.WriteString(c, http2.ClientPreface)
	f := &client2{http2.NewFramer(c, c), h.t, 1, make(chan struct{}, 1)}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	frames := make(chan error, 1)
	go func() {
		frames <- f.exclusively(func() error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
		})
	}()
	if err := <-frames; err != nil {
		h.t.Fatal(err)
	}
	return f
}

func (c *client2) request(method, path string, more ...string) uint32 {
	c.t.Helper()
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	fields := append([]string{":method", method, ":scheme", "https", ":authority", "hub", ":path", path}, more...)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: strings.ToLower(fields[i]), Value: fields[i+1]})
	}
	id := c.next
	c.next += 2
	err := c.exclusively(func() error {
		return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true,
			EndStream: method == "GET"})
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// read reads frames until one matches, and answers pings.
func (c *client2) read(want func(http2.Frame) bool) error {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return err
		}
		if p, ok := f.(*http2.PingFrame); ok && !p.IsAck() {
			go func() { _ = c.exclusively(func() error { return c.WritePing(true, p.Data) }) }()
		}
		if want(f) {
			return nil
		}
	}
}

func TestAnUnreadHTTP2AnswerEnds(t *testing.T) {
	conf := certificate()
	for path, wants := range map[string]time.Duration{"/large": reading, "/quiet": time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, conf, Limits{Connections: 8})
			c := dial2(h, map[string]uint32{"/large": 0, "/quiet": 1000}[path])
			began := time.Now()
			id := c.request("GET", path, "name", "anna")
			err := c.read(func(f http2.Frame) bool {
				_, reset := f.(*http2.RSTStreamFrame)
				return f.Header().StreamID == id && (reset || f.Header().Flags.Has(http2.FlagDataEndStream))
			})
			if took := time.Since(began); err != nil || took < wants || took > wants+time.Minute {
				t.Errorf("%s ended after %s: %v; want %s", path, took, err, wants)
			}
		})
	}
}

func TestConcurrentAnonymousRequestsAreLimited(t *testing.T) {
	conf := certificate()
	for name, want := range map[string]int{"": maxAnonymous, "anna": 40} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, conf, Limits{Connections: 8, Requests: 40})
			c := dial2(h, 1<<16)
			if name != "" {
				c.request("GET", "/quiet", "name", name)
				if err := c.read(func(f http2.Frame) bool { return f.Header().Type == http2.FrameHeaders }); err != nil {
					t.Fatal(err)
				}
				want--
			}
			asked := make(chan struct{})
			go func() {
				defer close(asked)
				for range 60 {
					c.request("GET", "/quiet", "name", name)
				}
			}()
			refused, served := 0, 0
			err := c.read(func(f http2.Frame) bool {
				if m, ok := f.(*http2.MetaHeadersFrame); ok && m.PseudoValue("status") == "429" {
					refused++
				} else if ok {
					served++
				}
				return served+refused == 60
			})
			if err != nil || served != want {
				t.Errorf("%d requests were served and %d refused, %v; want %d served", served, refused, err, want)
			}
			<-asked
		})
	}
}

// A connection counts as its user's while requests on it are authenticated. After the user's right
// has ended, the limits of unauthenticated connections apply again.
func TestAConnectionIsAnonymousAgainAfterItsUsersRightEnds(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := startOn(t, conf, Limits{Connections: 100, AskRate: 0.5}, far) // allows 20 unauthenticated requests at once
		places := func(users, strangers int) {
			t.Helper()
			synctest.Wait()
			h.l.mu.Lock()
			defer h.l.mu.Unlock()
			if len(h.l.users) != users || h.l.anonymous.Len() != strangers {
				t.Errorf("%d users and %d unauthenticated connections, want %d and %d", len(h.l.users), h.l.anonymous.Len(), users,
					strangers)
			}
		}
		c := h.dial("http/1.1")
		for range 3 {
			for i := range maxAnonymousRow { // a page's files are requested without authentication
				name := ""
				if i == 0 {
					name = "anna"
				}
				if code, err := ask(c, get("/", name)); code != http.StatusOK {
					t.Fatal(i, code, err)
				}
			}
			places(1, 0)
		}
		began, served := time.Now(), 0
		for code := http.StatusOK; code == http.StatusOK && served < 1000; served++ {
			code, _ = ask(c, get("/", ""))
		}
		if most := 22 + int(time.Since(began).Seconds()/2); served > most {
			t.Errorf("%d more unauthenticated requests are served, want %d at most", served, most)
		}
		_ = c.Close()
		places(0, 0)
		time.Sleep(10 * time.Second) // until unauthenticated requests are allowed again
		c = h.dial("http/1.1")
		if code, err := ask(c, get("/", "anna")); code != http.StatusOK {
			t.Error("a user that authenticates again:", code, err)
		}
		places(1, 0)
		for range maxAnonymousRow {
			_, _ = ask(c, get("/", ""))
		}
		places(0, 1)
		if code, err := ask(c, get("/", "anna")); code != http.StatusOK {
			t.Error("a user on a connection that counted as unauthenticated:", code, err)
		}
		places(1, 0)
	})
}
