package listen

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// A distant is a listener whose connections come from an address that is not loopback, so that the
// limits apply.
type distant struct {
	net.Listener
	ip net.IP
}

type distantConn struct {
	net.Conn
	ip net.IP
}

func (d distant) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return distantConn{c, d.ip}, nil
}

func (c distantConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: c.ip, Port: 4711} }

func far(l net.Listener) net.Listener { return distant{l, net.IPv4(192, 0, 2, 7)} }

// Unauthenticated requests count for their address, on all its connections. Authenticated requests
// do not count.
func TestAnAddressOverItsLimitStillServesUsers(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := startOn(t, conf, Limits{Connections: 1000, Address: 900, AskRate: 0.5}, far) // allows 20 requests at once
		anna := h.dial("http/1.1")
		served := func(name string, n int) (ok int) {
			for i := range n {
				if i%20 == 0 {
					if code, err := ask(anna, get("/", "anna")); code != http.StatusOK {
						t.Fatalf("a user is refused because of other clients of her address: %d %v", code, err)
					}
				}
				c := h.dial("http/1.1")
				if code, err := ask(c, get("/", name)); code == http.StatusOK {
					ok++
				} else if code != http.StatusTooManyRequests {
					t.Fatal(code, err)
				}
				_ = c.Close()
				synctest.Wait()
			}
			return ok
		}
		if n := served("anna", 60); n != 60 {
			t.Errorf("%d of a user's 60 requests are served", n)
		}
		began := time.Now()
		n := served("", 200)
		if most := 20 + int(time.Since(began).Seconds()/2) + 1; n < 20 || n > most {
			t.Errorf("%d of 200 unauthenticated requests are served, want 20 to %d", n, most)
		}
	})
}

// An address with too many connections loses its own oldest connection, and no other address's.
func TestAnAddressDisplacesItsOwnConnections(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		far := &turns{}
		h := startOn(t, conf, Limits{Connections: 100, Address: 3, Rate: 1000},
			func(l net.Listener) net.Listener { far.Listener = l; return far })
		far.ip = net.IPv4(192, 0, 2, 1)
		other := h.dial("http/1.1") // the oldest connection of all addresses
		far.ip = net.IPv4(192, 0, 2, 2)
		for range 3 {
			h.dial("http/1.1")
		}
		time.Sleep(settled + time.Second)
		if code, err := ask(h.dial("http/1.1"), get("/", "")); code != 200 {
			t.Errorf("the fourth connection gets no place: %d %v", code, err)
		}
		h.l.mu.Lock()
		if h.l.open != 4 {
			t.Errorf("%d connections are open, want 4: 3 of one address and 1 of the other", h.l.open)
		}
		h.l.mu.Unlock()
		if code, err := ask(other, get("/", "")); code != 200 {
			t.Errorf("another address's connection was displaced: %d %v", code, err)
		}
		// Two of the address's connections are not new, and are displaced. While all three are new,
		// further ones are refused, and take no place.
		refused := 0
		for range 10 {
			c := h.raw()
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
				refused++
			}
		}
		h.l.mu.Lock()
		if refused != 8 || h.l.open != 4 {
			t.Errorf("%d of 10 connections are refused and %d are open, want 8 and 4", refused, h.l.open)
		}
		h.l.mu.Unlock()
	})
}

// turns is a listener whose next connection comes from ip.
type turns struct {
	net.Listener
	ip net.IP
}

func (l *turns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return distantConn{c, l.ip}, nil
}

// A new connection has time to authenticate, however many other clients connect.
func TestANewConnectionIsSafeAtFirst(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 2})
		c := h.dial("http/1.1")
		h.raw()
		began := time.Now()
		h.raw() // must not displace a new connection
		_ = c.SetReadDeadline(began.Add(settled - time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() {
			t.Errorf("the connection was closed after %s: %v", time.Since(began), err)
		}
	})
}

// A request that has ended no longer counts for its user.
func TestEndedRequestsDoNotCount(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8, Requests: 3})
		c := h.dial("http/1.1")
		for i := range 10 {
			if code, err := ask(c, get("/", "anna")); code != 200 {
				t.Fatalf("request %d: %d %v", i, code, err)
			}
		}
		if code, err := ask(h.dial("http/1.1"), strings.Replace(get("/", "anna"), "Name:", "Then: olav\r\nName:",
			1)); code != 200 {
			t.Fatal(code, err)
		}
		_ = c.Close()
		time.Sleep(2 * idle)
		h.l.mu.Lock()
		defer h.l.mu.Unlock()
		for name, u := range h.l.users {
			t.Errorf("%s still counts with %d connections and %d requests", name, u.connections, u.requests)
		}
		if h.l.open != 0 || h.l.anonymous.Len() != 0 {
			t.Errorf("%d connections are open, %d of them unauthenticated", h.l.open, h.l.anonymous.Len())
		}
	})
}

// A refused unauthenticated request does not count as running.
func TestRefusedRequestsDoNotCount(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8})
		c := dial2(h, 1<<16)
		codes := map[string]int{}
		count := func(n int) {
			t.Helper()
			if err := c.read(func(f http2.Frame) bool {
				if m, ok := f.(*http2.MetaHeadersFrame); ok {
					codes[m.PseudoValue("status")]++
				}
				return codes["200"]+codes["429"] == n
			}); err != nil {
				t.Fatal(err)
			}
		}
		var ids []uint32
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			for range maxAnonymous + 40 {
				ids = append(ids, c.request("GET", "/quiet"))
			}
		}()
		count(maxAnonymous + 40)
		<-asked
		go func() {
			for _, id := range ids[:maxAnonymous] {
				_ = c.exclusively(func() error { return c.WriteRSTStream(id, http2.ErrCodeCancel) })
			}
			time.Sleep(time.Second)
			c.request("GET", "/")
		}()
		count(maxAnonymous + 41)
		if codes["200"] != maxAnonymous+1 {
			t.Errorf("the answers were %v, want 200 as the last one", codes)
		}
	})
}

// The hub does not store an endless header.
func TestAHeaderHasALimit(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8})
		c := h.dial("http/1.1")
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: hub\r\nX-A: "+strings.Repeat("a", 1<<20)+"\r\n\r\n")
		}()
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%v %v", a, err)
		}
		_ = c.NetConn().Close()
		<-over
		time.Sleep(time.Second) // until the server has closed the connection
	})
}

// An authenticated HTTP/2 connection also has a limit of streams. It is closed if pings get no
// response.
func TestAnHTTP2ConnectionHasLimits(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8})
		c := dial2(h, 1<<16)
		streams := uint32(0)
		if err := c.read(func(f http2.Frame) bool {
			s, ok := f.(*http2.SettingsFrame)
			if ok {
				streams, _ = s.Value(http2.SettingMaxConcurrentStreams)
			}
			return ok
		}); err != nil || streams != Streams {
			t.Errorf("the connection may have %d streams, %v", streams, err)
		}
		c.request("GET", "/quiet", "name", "anna")
		began := time.Now()
		for {
			if _, err := c.ReadFrame(); err != nil { // the client reads, but answers nothing
				break
			}
		}
		if took := time.Since(began); took > 2*reading {
			t.Errorf("the connection stayed open for %s", took)
		}
	})
}

// A request with the header Upgrade, but without an upgrade, does not give later requests the
// longer timeout of a terminal.
func TestTheTimeoutOfAnUpgradeEndsWithItsRequest(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8})
		c := h.dial("http/1.1")
		if code, err := ask(c, strings.Replace(get("/", ""), "Host:", "Connection: Upgrade\r\nUpgrade: websocket\r\nHost:",
			1)); code != 200 {
			t.Fatal(code, err)
		}
		if _, err := io.WriteString(c, get("/large", "")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-h.gaveUp
		if took := time.Since(began); took > 2*reading {
			t.Errorf("the connection of an unread answer stayed open for %s", took)
		}
	})
}

// Deadlines end idle clients. Slow but steady clients are served, and answers may take any time.
func TestASlowSteadyClientIsServed(t *testing.T) {
	conf := certificate()
	const size = 600_000
	post := "POST %s HTTP/1.1\r\nHost: hub\r\nContent-Length: %d\r\n\r\n"
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8})
		c := h.dial("http/1.1")
		_, _ = fmt.Fprintf(c, post, "/body", size)
		for range size / 20_000 {
			time.Sleep(time.Second)
			if _, err := c.Write(make([]byte, 20_000)); err != nil {
				t.Fatal(err)
			}
		}
		if a, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || a.StatusCode != 200 {
			t.Fatalf("a body of half a minute: %v %v", a, err)
		}
		_, _ = fmt.Fprintf(c, strings.Replace(post, "Host", "Drain: yes\r\nHost", 1)+"{}", "/quiet", 2)
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(a.Body); string(text) != "an hour later" {
			t.Errorf("an answer an hour after its request's body: %q %v", text, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8})
		c := dial2(h, answerChunk)
		id, got := c.request("GET", "/large", "name", "anna"), 0
		over := make(chan struct{})
		defer close(over)
		go func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(reading / 2):
				}
				_ = c.exclusively(func() error {
					_ = c.WriteWindowUpdate(0, answerChunk)
					return c.WriteWindowUpdate(id, answerChunk)
				})
			}
		}()
		err := c.read(func(f http2.Frame) bool {
			d, ok := f.(*http2.DataFrame)
			if !ok {
				return f.Header().StreamID == id && f.Header().Type == http2.FrameRSTStream
			}
			got += len(d.Data())
			return d.StreamEnded()
		})
		if got != len(large) {
			t.Errorf("%d bytes of %d arrived, %v", got, len(large), err)
		}
	})
}

// An answer ends at once when its user loses the right, even if its client reads everything. Other
// answers on the connection go on.
func TestACutAnswerEnds(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, conf, Limits{Connections: 8})
		c := h.dial("http/1.1")
		began := time.Now()
		if _, err := io.WriteString(c, get("/cut", "anna")); err != nil {
			t.Fatal(err)
		}
		if took := lasts(c); took > 2*time.Second {
			t.Errorf("HTTP/1.1: the answer went on for %s", took)
		}
		<-h.gaveUp

		c2 := dial2(h, 1<<30)
		_ = c2.exclusively(func() error { return c2.WriteWindowUpdate(0, 1<<30) })
		began = time.Now()
		other := c2.request("GET", "/quiet", "name", "anna")
		cut := c2.request("GET", "/cut", "name", "anna")
		ended, whole := time.Duration(0), false
		err := c2.read(func(f http2.Frame) bool {
			if f.Header().StreamID == cut && f.Header().Type == http2.FrameRSTStream {
				ended = time.Since(began)
			}
			whole = f.Header().StreamID == other && f.Header().Flags.Has(http2.FlagDataEndStream)
			return whole
		})
		if ended == 0 || ended > 2*time.Second || !whole {
			t.Errorf("HTTP/2: the answer ended after %s; the other stream's answer is complete: %v, %v", ended, whole, err)
		}
	})
}

// Without settings, the default limits apply.
func TestDefaultLimits(t *testing.T) {
	l := New(nil, Limits{Connections: 1000})
	want := Limits{Connections: 1000, Address: 750, Rate: 200, AskRate: 50, User: 250, Requests: 1000}
	if l.limits != want || l.addresses.Most != 750 || l.addresses.Burst != 2000 || l.addresses.AskBurst != 2000 {
		t.Errorf("%+v", l.limits)
	}
	if l := New(nil, Limits{}); l.limits.Connections < 1 || l.limits.Connections > maxHTTPS {
		t.Errorf("%+v", l.limits)
	}
}

func TestNoAnswerIsSniffed(t *testing.T) {
	w := httptest.NewRecorder()
	handler{http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		_, _ = w.Write([]byte("<script>"))
	})}.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics",
		nil))
	if got := w.Result().Header.Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options is %q", got)
	}
}
