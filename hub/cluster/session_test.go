package cluster

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/peer"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// A stream ends with its user's access, also on a real connection. If its handler is blocked
// because the client does not read, the connection is closed.
func TestStreamsEndWithTheirUsersAccess(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	authority, err := pki.Open(dir + "/pki")
	if err != nil {
		t.Fatal(err)
	}
	server, err := authority.NewServer(func() []string { return []string{"127.0.0.1"} }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	guard := access.New(access.Options{Store: st, Authority: authority, Log: slog.New(slog.DiscardHandler)})
	if err := guard.CreateUser(t.Context(), access.NewUser{Name: "olav", Password: "correct horse battery",
		Role: access.Operator}); err != nil {
		t.Fatal(err)
	}
	over := make(chan string, 10)
	handler := WatchSessions(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { over <- r.URL.Path }()
		if _, err := guard.Authenticate(r); err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		rc := http.NewResponseController(w)
		var out io.Writer = w
		if r.URL.Path == "/upgraded" {
			c, _, err := rc.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			out = c
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		} else {
			w.WriteHeader(http.StatusOK)
			_ = rc.Flush()
		}
		if r.URL.Path == "/quiet" {
			<-r.Context().Done()
			return
		}
		for b := make([]byte, 64<<10); ; { // the handler ignores its context
			if _, err := out.Write(b); err != nil {
				return
			}
		}
	}))
	web := &http.Server{TLSConfig: authority.HTTPS(server), Handler: handler}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = listen.Serve(web, listen.New(l, listen.Limits{})) }()
	defer web.Close()
	token, err := guard.CreateAPIToken(t.Context(), access.NewAPIToken{User: "olav", Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	// A standby forwards this request; its client does not read.
	forwarded, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	peers := peerServer(peer.Accept(handler, func(leader.Status) {}))
	go func() { _ = peers.Serve(peer.Listen(forwarded, authority.Peers(server))) }()
	defer peers.Close()
	paths := []string{"/quiet", "/flood", "/upgraded"}
	for i := range 2 * len(paths) {
		path, to, config := paths[i%len(paths)], l, &tls.Config{InsecureSkipVerify: true}
		if i >= len(paths) {
			to, config = forwarded, authority.NewPeerClient("hub-b").Config("127.0.0.1")
		}
		c, err := tls.Dial("tcp", to.Addr().String(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		upgrade := ""
		if path == "/upgraded" {
			upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
		}
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: hub\r\nX-Forwarded-For: 192.0.2.7\r\nAuthorization: Bearer %s\r\n%s\r\n", path, token, upgrade)
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil { // the server has closed the connection without a response
			t.Fatal(line, err)
		}
	}
	h2 := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true}}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String()+"/flood2", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := h2.Do(r)
	if err != nil || answer.ProtoMajor != 2 {
		t.Fatal(answer, err)
	}
	defer answer.Body.Close()
	select {
	case path := <-over:
		t.Fatalf("%s ended before the user's access", path)
	default:
	}
	if err := guard.DeleteUser(t.Context(), "olav"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 2*len(paths) + 1 {
		select {
		case path := <-over:
			t.Logf("%s ended %s after the user's access", path, time.Since(began).Round(time.Millisecond))
		case <-time.After(3 * time.Minute):
			t.Fatal("a stream continues after the user's access ended")
		}
	}
}
