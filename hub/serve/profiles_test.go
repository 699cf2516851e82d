package serve

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestProfilesAreForAdministrators(t *testing.T) {
	hub, people := wholeHub(t)
	ask := func(who, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host, r.TLS = "127.0.0.1:8443", &tls.ConnectionState{}
		people[who](r)
		w := httptest.NewRecorder()
		hub.Handler().ServeHTTP(w, r)
		return w
	}
	for _, p := range profiles() {
		for who, want := range map[string]int{"stranger": 401, "device": 403, "viewer": 403, "operator": 403} {
			if w := ask(who, p.Path+"?seconds=1"); w.Code != want {
				t.Errorf("%s asks for %s: %d, want %d", who, p.Path, w.Code, want)
			}
		}
		for _, seconds := range []string{"61", "-1", "0", "NaN", "x"} {
			if w := ask("admin", p.Path+"?seconds="+seconds); w.Code != 400 {
				t.Errorf("%s for %s seconds: %d, want 400", p.Path, seconds, w.Code)
			}
		}
	}
	for _, name := range []string{"heap", "goroutine", "allocs"} {
		if w := ask("admin", "/debug/pprof/"+name); w.Code != 200 || w.Body.Len() < 100 || w.Body.Bytes()[0] != 0x1f {
			t.Errorf("%s is not a profile: %d, %d bytes", name, w.Code, w.Body.Len())
		}
	}
	for _, path := range []string{"/debug/pprof/cmdline", "/debug/pprof/", "/debug/vars"} {
		if w := ask("admin", path); w.Code == 200 {
			t.Errorf("%s is served: %.100q", path, w.Body)
		}
	}
}
