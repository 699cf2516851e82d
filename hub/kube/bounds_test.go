package kube

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/kube/body"
)

// A patch that makes a library panic is a bad request, not an error of the hub.
func TestAPatchThatMakesALibraryPanicIsRefused(t *testing.T) {
	s := newServer(seeded())
	for _, tt := range []struct{ name, path, media, body string }{
		{"a list as a merge key", apps + "/deployments/web", smp, `{"spec":{"template":{"spec":{"containers":[{"name":["c"],"image":"a"}]}}}}`},
		{"an object as a merge key", "/api/v1/nodes/pi-1", smp, `{"status":{"conditions":[{"type":{},"status":"True"}]}}`},
		{"a test of an empty list", "/api/v1/nodes/pi-1", jp, `[{"op":"test","path":"/metadata/managedFields","value":[null]},{"op":"test","path":"/status/conditions","value":[null]}]`},
		{"a list as a merge key of a scale", apps + "/deployments/web/scale", jp, `[{"op":"add","path":"/status","value":{"a":[1]}},{"op":"test","path":"/status/a","value":[null]}]`},
	} {
		w := request{method: "PATCH", path: tt.path, contentType: tt.media, body: tt.body}.do(s)
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "the patch cannot be applied") {
			t.Errorf("%s: %d %.300s; want 422 with %q", tt.name, w.Code, w.Body, "the patch cannot be applied")
		}
	}
}

// The error names the object that exceeds a limit, because a file may have many objects.
func TestAnObjectOverALimitIsNamed(t *testing.T) {
	s := newServer(seeded())
	for name, want := range map[string]string{"settings": `ConfigMap "settings" is invalid`,
		strings.Repeat("x", 1000): "…\" is invalid"} {
		body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{"a":"\u0000"}}`
		w := request{method: "POST", path: ns + "/configmaps", body: body}.do(s)
		if w.Code != http.StatusUnprocessableEntity ||
			!strings.Contains(w.Body.String(), strings.ReplaceAll(want, `"`, `\"`)) || w.Body.Len() > 2000 {
			t.Errorf("%.20s: %d %.300s", name, w.Code, w.Body)
		}
	}
}

// A body is read only up to its limit.
func TestABodyHasALimit(t *testing.T) {
	s := newServer(seeded())
	big := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"` + strings.Repeat("x",
		body.MaxBody) + `"}}`
	for _, tt := range []struct{ method, path, media string }{{"POST", ns + "/configmaps", ""},
		{"PATCH", "/api/v1/nodes/pi-1", mp}, {"DELETE", ns + "/pods/kiosk-1", ""}} {
		if w := (request{method: tt.method, path: tt.path, contentType: tt.media,
			body: big}).do(s); w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s %s: %d %.100s; want 413", tt.method, tt.path, w.Code, w.Body)
		}
	}
}

// A patch cannot change the name of its object.
func TestAPatchKeepsTheName(t *testing.T) {
	s := newServer(seeded())
	for _, body := range []string{`{"metadata":{"name":"another"}}`, `{"metadata":{"namespace":"kube-system"}}`} {
		if w := (request{method: "PATCH", path: ns + "/pods/kiosk-1", contentType: mp,
			body: body}).do(s); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %.200s; want 400", body, w.Code, w.Body)
		}
	}
}

// Which origins may open a WebSocket depends on the kind of authentication.
func TestOriginsThatMayOpenAWebSocket(t *testing.T) {
	for _, tt := range []struct {
		origin              string
		token, cookie, cert bool
	}{ // allowed with a token, a certificate, a cookie
		{"", true, false, true},
		{"https://hub.example", true, true, true},
		{"http://hub.example", true, false, false}, // without TLS the page may have been changed on the way
		{"https://hub.example:8443", true, false, false},
		{"https://evil.example", true, false, false},
		{"https://hub.example.evil.example", true, false, false},
		{"null", true, false, false},
		{"http://localhost:4466", true, false, true},
		{"http://127.0.0.1:4466", true, false, true},
		{"http://[::1]:4466", true, false, true},
		{"file://", true, false, true},
		{"http://192.0.2.1", true, false, false},
		{"http://localhost.evil.example", true, false, false},
		{"http://127.0.0.1.evil.example", true, false, false},
		{"%zz", true, false, false},
	} {
		for what, want := range map[string]bool{"token": tt.token, "cookie": tt.cookie, "certificate": tt.cert} {
			r := httptest.NewRequest(http.MethodGet, "https://hub.example/api/v1/nodes?watch=1", nil)
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
			if tt.origin != "" {
				r.Header.Set("Origin", tt.origin)
			}
			switch what {
			case "token":
				r.Header.Set("Authorization", "Bearer x")
				r.Header.Set("Cookie", "a=b")
			case "cookie":
				r.Header.Set("Cookie", "__Host-flotilla=x")
			case "certificate":
				r.Header.Set("Cookie", "a=b")
				r.TLS.PeerCertificates = append(r.TLS.PeerCertificates, nil)
			}
			s := newServer(seeded())
			c := &call{Server: s, w: hijackable{httptest.NewRecorder()}, r: r}
			c.target, _ = parsePath(r.URL.EscapedPath())
			c.res = c.find(c.target)
			if ok, err := c.upgrades(); ok != want || (err == nil) != want {
				t.Errorf("a page of %q with a %s may open a WebSocket: %t %v, want %t", tt.origin, what, ok, err, want)
			}
		}
	}
}

type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }

// A record has the kind of authentication (page or token), and the answer's code and reason.
func TestARecordHasAuthenticationCodeAndReason(t *testing.T) {
	s := newServer(seeded())
	var kept auditing
	s.Audit = &kept
	for via, want := range map[string]string{"": "API", "token": "token", "certificate": "certificate", "session": "API"} {
		r := httptest.NewRequest(http.MethodDelete, ns+"/pods/kiosk-1", nil)
		c := &call{Server: s, w: httptest.NewRecorder(), r: r, user: access.User{Name: "anna", Via: via}}
		if row := c.row("", nil); row.Via != want || row.Who != "anna" || row.Code != 200 || row.Source == "" {
			t.Errorf("the record is %+v, want %q and code 200 for anna", row, want)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/api/v1/nodes", nil)
	r.Header.Set("Authorization", "Bearer nonsense")
	s.ServeHTTP(httptest.NewRecorder(), r)
	if len(kept.rows) != 1 || kept.rows[0].Code != http.StatusUnauthorized || kept.rows[0].Message == "" {
		t.Errorf("the records are %+v, want one with 401 and a message", kept.rows)
	}
}
