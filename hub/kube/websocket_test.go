package kube

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	gorilla "github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"
	"golang.org/x/net/websocket"
)

// mounted serves the API as the hub mounts it.
func mounted(s *Server) *httptest.Server {
	e := echo.New()
	s.Register(e)
	return httptest.NewServer(e)
}

func dial(t *testing.T, srv *httptest.Server, path, origin, token string) (*websocket.Conn, error) {
	t.Helper()
	config, err := websocket.NewConfig("ws"+strings.TrimPrefix(srv.URL, "http")+path, origin)
	if err != nil {
		t.Fatal(err)
	}
	config.Protocol = []string{"base64.binary.k8s.io"}
	if token != "" {
		config.Header.Set("Authorization", "Bearer "+token)
	}
	conn, err := config.DialContext(t.Context())
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	}
	return conn, err
}

func receive(t *testing.T, conn *websocket.Conn) string {
	t.Helper()
	var s string
	if err := websocket.Message.Receive(conn, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestABrowserWatchesOverAWebSocket(t *testing.T) {
	f := seeded()
	srv := mounted(newServer(f))
	defer srv.Close()
	conn, err := dial(t, srv, "/api/v1/nodes?watch=1", "http://headlamp.example", "viewer")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"type":"ADDED","object":{"kind":"Node"`, `{"type":"ADDED","object":{"kind":"Node"`} {
		if got := receive(t, conn); !strings.HasPrefix(got, want) || strings.HasSuffix(got, "\n") {
			t.Errorf("got %q, want one event that begins with %s", got, want)
		}
	}
	f.touch(fakeNode("pi-1", ""), "a", "b")
	if got := receive(t, conn); !strings.HasPrefix(got, `{"type":"MODIFIED"`) {
		t.Errorf("the change arrives as %q, want MODIFIED", got)
	}
}

func TestABrowserReadsALogOverAWebSocket(t *testing.T) {
	srv := mounted(newServer(seeded()))
	defer srv.Close()
	conn, err := dial(t, srv, ns+"/pods/kiosk-1/log?follow=true", "http://headlamp.example", "viewer")
	if err != nil {
		t.Fatal(err)
	}
	if first := receive(t, conn); first != "" {
		t.Errorf("the first message is %q, want an empty one", first)
	}
	line, err := base64.StdEncoding.DecodeString(receive(t, conn))
	if err != nil || string(line) != "hello from main of kiosk-1\n" {
		t.Errorf("the log is %q, %v", line, err)
	}
}

// A browser adds its client certificate to the requests of every page, but it never adds a token.
func TestAPageOfAnotherSiteOpensNoWebSocketWithACertificate(t *testing.T) {
	s := newServer(seeded())
	s.Access = certificate{}
	srv := mounted(s)
	defer srv.Close()
	if _, err := dial(t, srv, "/api/v1/nodes?watch=1", "http://evil.example", ""); err == nil {
		t.Error("a page of another site must not open a WebSocket")
	}
	if _, err := dial(t, srv, "/api/v1/nodes?watch=1", srv.URL, ""); err != nil {
		t.Errorf("the hub's own page must open a WebSocket: %v", err)
	}
}

// To a browser, other programs on the hub's machine are the same site, so it sends them the
// session's cookie.
func TestACookieOpensAWebSocketForOurOwnPageOnly(t *testing.T) {
	s := streaming()
	s.Access = certificate{}
	srv := mounted(s)
	defer srv.Close()
	for origin, may := range map[string]bool{
		"https://hub.example:8443": true, "": false, "null": false, "file://": false, "http://localhost:4466": false, "https://localhost:4466": false,
		"http://127.0.0.1:4466": false, "http://[::1]:4466": false, "https://evil.example": false,
	} {
		for _, path := range []string{"/pods/kiosk-1/exec?command=echo&stdout=1", "/pods?watch=1",
			"/pods/kiosk-1/log?follow=1"} {
			h := http.Header{"Origin": {origin}, "Host": {"hub.example:8443"}, "Cookie": {"__Host-flotilla=x"}}
			if origin == "" {
				delete(h, "Origin")
			}
			d := gorilla.Dialer{}
			if strings.Contains(path, "exec") {
				d.Subprotocols = []string{"v5.channel.k8s.io"}
			}
			conn, answer, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http")+ns+path, h)
			if err == nil {
				_ = conn.Close()
			}
			if may != (err == nil) || !may && answer.StatusCode != http.StatusForbidden {
				t.Errorf("a page of %q opens %s: %v, want allowed: %v", origin, path, err, may)
			}
		}
	}
}
