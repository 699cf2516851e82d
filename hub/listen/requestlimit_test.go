package listen

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnonymousRequestsOfAConnectionAreLimited(t *testing.T) {
	conf := certificate()
	for name, closes := range map[string]bool{"": true, "anna": false} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, conf, Limits{Connections: 8, User: 1})
			if name != "" { // anna has her one place on another connection
				if code, err := ask(h.dial("http/1.1"), get("/", name)); code != 200 {
					t.Fatal(code, err)
				}
			}
			c := h.dial("http/1.1")
			r, served := bufio.NewReader(c), 0
			for range 3 * maxAnonymousRow {
				if _, err := io.WriteString(c, get("/", name)); err != nil {
					break
				}
				a, err := http.ReadResponse(r, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, a.Body)
				if served++; a.Close {
					break
				}
			}
			if want := map[bool]int{true: maxAnonymousRow, false: 3 * maxAnonymousRow}[closes]; served != want {
				t.Errorf("%q: %d requests were served, want %d", name, served, want)
			}
		})
	}
}

// The hub reads a short body before it closes a connection after its last answer. Closing with
// unread input would reset the connection, and the client might lose the answer.
func TestABodyIsReadBeforeTheConnectionCloses(t *testing.T) {
	conf := certificate()
	synctest.Test(t, func(t *testing.T) {
		c := start(t, conf, Limits{Connections: 8}).dial("http/1.1")
		for range maxAnonymousRow - 1 {
			if code, err := ask(c, get("/", "")); code != 200 {
				t.Fatal(code, err)
			}
		}
		sent := make(chan error, 1)
		go func() {
			_, err := fmt.Fprintf(c, "POST /unread HTTP/1.1\r\nHost: hub\r\nContent-Length: 900000\r\n\r\n%0900000d", 0)
			sent <- err
		}()
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || a.StatusCode != http.StatusUnauthorized || !a.Close {
			t.Fatal(a, err)
		}
		if err := <-sent; err != nil {
			t.Error("the rest of the body was not read:", err)
		}
		lasts(c)
	})
}

func TestAnonymousRequestsOfAnAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Addresses{Most: 5, Rate: 1, Burst: 4, AskRate: 2, AskBurst: 10}
		ip := IP(&fakeConn{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7)}})
		if err := a.Enter(ip); err != nil {
			t.Fatal(err)
		}
		count := func(n int) (ok int) {
			for range n {
				if a.Ask(ip) {
					ok++
				}
			}
			return ok
		}
		if n := count(30); n != 10 {
			t.Errorf("%d of 30 requests at once are allowed, want 10", n)
		}
		time.Sleep(2 * time.Second)
		if n := count(30); n != 4 {
			t.Errorf("%d requests are allowed two seconds later, want 4", n)
		}
		a.Unask(ip)
		if n := count(30); n != 1 {
			t.Errorf("%d requests are allowed after one was authenticated, want 1", n)
		}
		a.Leave(ip)
		if a.Len() != 1 {
			t.Error("a reconnect resets the count")
		}
		time.Sleep(time.Minute)
		_ = a.Enter(ip)
		if a.Leave(ip); a.Len() != 0 {
			t.Error("the address is never removed")
		}
		if !a.Ask(IP(&fakeConn{addr: &net.TCPAddr{IP: net.IPv6loopback}})) {
			t.Error("loopback is limited")
		}
	})
}

// Frames and headers cost the hub more than the unauthenticated client that sends them.
func TestAnonymousConnectionsAreReadSlowly(t *testing.T) {
	conf := certificate()
	const size = 1 << 20
	for name, slow := range map[string]bool{"": true, "anna": false} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, conf, Limits{Connections: 8, User: 1})
			if name != "" { // anna has her one place on another connection; this one counts as authenticated too
				if code, err := ask(h.dial("http/1.1"), get("/", name)); code != 200 {
					t.Fatal(code, err)
				}
			}
			c := h.dial("http/1.1")
			began := time.Now()
			go func() {
				_, _ = io.WriteString(c, "POST /body HTTP/1.1\r\nHost: hub\r\nName: "+name+"\r\nContent-Length: 1048576\r\n\r\n")
				_, _ = c.Write(make([]byte, size))
			}()
			if a, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || a.StatusCode != 200 {
				t.Fatal(a, err)
			}
			took, want := time.Since(began), time.Duration(size-anonymousBurst)*time.Second/anonymousRate
			if slow && (took < want || took > want+time.Second) || !slow && took > 0 {
				t.Errorf("%q: %d bytes took %s, want %s without authentication", name, size, took, want)
			}
		})
	}
}
