package serve

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/pki"
)

func TestBrowsersAreToldToComeOverTLSUnderAHubsName(t *testing.T) {
	authority, err := pki.Open(t.TempDir() + "/pki")
	if err != nil {
		t.Fatal(err)
	}
	server, err := authority.NewServer(func() []string { return []string{"gateway.example", "localhost", "192.0.2.1", "2001:db8::1"} }, slog.New(slog.DiscardHandler))
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
		{"a name of the hub, written in capitals", "GATEWAY.example", false, 204, "max-age=2592000"},
		{"an address has no such policy (RFC 6797, 8.1.1)", "192.0.2.1:8443", false, 204, ""},
		{"nor has one of IPv6", "[2001:db8::1]:8443", false, 204, ""},
		{"localhost is other programs', too", "localhost:8443", false, 204, ""},
		{"who has not come over TLS is told nothing", "gateway.example", true, 204, ""},
		{"a name that is not the hub's is not served", "evil.example", false, 421, ""},
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
