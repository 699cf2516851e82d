package serve

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/pki"
)

func TestStrictTransportSecurity(t *testing.T) {
	authority, err := pki.Open(t.TempDir() + "/pki")
	if err != nil {
		t.Fatal(err)
	}
	server, err := authority.NewServer(func() []string {
		return []string{"gateway.example", "localhost", "192.0.2.1",
			"2001:db8::1"}
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h := &Hub{authority: authority, server: server}
	e := echo.New()
	e.Use(h.hosts)
	e.Any("/*", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) })
	for _, tt := range []struct {
		name, host string
		plain      bool
		code       int
		strict     string
	}{
		{"a name of the hub", "gateway.example:8443", false, 204, "max-age=2592000"},
		{"a name of the hub in upper case", "GATEWAY.example", false, 204, "max-age=2592000"},
		{"an address has no such policy (RFC 6797, 8.1.1)", "192.0.2.1:8443", false, 204, ""},
		{"an IPv6 address has no such policy either", "[2001:db8::1]:8443", false, 204, ""},
		{"localhost belongs to other programs too", "localhost:8443", false, 204, ""},
		{"without TLS there is no policy", "gateway.example", true, 204, ""},
		{"a name that is not the hub's is not served", "evil.example", false, 421, ""},
		{"an address with a zone, which may be any text, is not served", "[fe80::1%';touch x;']:8443", false, 400, ""},
		{"an invalid port is not served", "127.0.0.1:8443';touch x;'", false, 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Host, r.TLS = tt.host, &tls.ConnectionState{}
			if tt.plain {
				r.TLS = nil
			}
			w := httptest.NewRecorder()
			e.ServeHTTP(w, r)
			if got := w.Header().Get("Strict-Transport-Security"); w.Code != tt.code || got != tt.strict {
				t.Errorf("%d, %q; want %d, %q", w.Code, got, tt.code, tt.strict)
			}
		})
	}
}

// A program that requests / as JSON gets the paths that it may read. A browser gets the page.
func TestTheRootIsAnIndexForPrograms(t *testing.T) {
	hub, people := wholeHub(t)
	ask := func(who, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host, r.TLS = "127.0.0.1:8443", &tls.ConnectionState{}
		r.Header.Set("Accept", accept)
		people[who](r)
		w := httptest.NewRecorder()
		hub.Handler().ServeHTTP(w, r)
		return w
	}
	const kubectl, browser = "application/json, */*", "text/html,*/*;q=0.8"
	for _, who := range []string{"viewer", "admin"} {
		w := ask(who, kubectl)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"/apis/apps/v1"`) ||
			!strings.Contains(w.Body.String(), `"/metrics"`) ||
			strings.Contains(w.Body.String(), `"/audit/export"`) != (who == "admin") {
			t.Errorf("%s: %d %s; want the paths that the role may read", who, w.Code, w.Body)
		}
	}
	if w := ask("device", kubectl); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(),
		"flotilla-hub kubeconfig") {
		t.Errorf("a device: %d %s; want 403 with %q", w.Code, w.Body, "flotilla-hub kubeconfig")
	}
	if w := ask("stranger", kubectl); w.Code != http.StatusUnauthorized {
		t.Errorf("a program without authentication: %d; want 401", w.Code)
	}
	if w := ask("stranger", browser); w.Header().Get("Location") == "" {
		t.Errorf("a browser without authentication: %d %s; want a redirect", w.Code, w.Body)
	}
	if w := ask("viewer", browser); w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Content-Type"),
		"text/html") {
		t.Errorf("a viewer's browser: %d %s; want the page", w.Code, w.Header())
	}
}
