package kube

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestPodProxy(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Set-Cookie", "session=theirs")
		w.Header().Set("Cache-Control", "public")
		w.Header().Set("X-Kiosk", "yes")
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = fmt.Fprintf(w, "%s %s %q %q %s", r.Method, r.RequestURI, r.Header.Get("Authorization"), r.Header.Get("Cookie"), body)
	})
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	port := func(s *httptest.Server) string {
		u, _ := url.Parse(s.URL)
		return u.Port()
	}
	s := httptest.NewServer(streaming())
	t.Cleanup(s.Close)
	for _, tt := range []struct {
		name, role, method, path, body string
		code                           int
		want                           string
	}{
		{"a path", "operator", "GET", "kiosk-1:" + port(plain) + "/proxy/a/b", "", 200, `GET /a/b "" "" `},
		{"no path", "operator", "GET", "kiosk-1:" + port(plain) + "/proxy", "", 200, `GET / "" "" `},
		{"a slash at the end, and a query that is the pod's", "operator", "GET", "kiosk-1:" + port(plain) + "/proxy/a/?timeout=soon", "", 200, `GET /a/?timeout=soon "" "" `},
		{"a path as it was written", "operator", "GET", "kiosk-1:" + port(plain) + "/proxy/a%20b/proxy/c", "", 200, `GET /a%20b/proxy/c "" "" `},
		{"a body", "operator", "POST", "kiosk-1:" + port(plain) + "/proxy/form", "words", 200, `POST /form "" "" words`},
		{"the code is the pod's", "operator", "GET", "http:kiosk-1:" + port(plain) + "/proxy/missing", "", 404, `GET /missing`},
		{"https", "operator", "GET", "https:kiosk-1:" + port(secure) + "/proxy/s", "", 200, `GET /s "" "" `},
		{"nobody listens", "operator", "GET", "kiosk-1:1/proxy/", "", 503, "ask pod default/kiosk-1 at port 1: "},
		{"a port that is none", "operator", "GET", "kiosk-1:70000/proxy/", "", 400, "is no port"},
		{"another protocol", "operator", "GET", "ftp:kiosk-1:80/proxy/", "", 400, "use http or https"},
		{"a pod that is not there", "operator", "GET", "nobody:80/proxy/", "", 404, `pods \"nobody\" not found`},
		{"a viewer", "viewer", "GET", "kiosk-1:" + port(plain) + "/proxy/a", "", 403, "pods/proxy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), tt.method, s.URL+ns+"/pods/"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+tt.role)
			r.Header.Set("Cookie", "session=ours")
			got, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Body.Close()
			body, _ := io.ReadAll(got.Body)
			if got.StatusCode != tt.code || !strings.Contains(string(body), tt.want) {
				t.Errorf("%d %s, want %d %q", got.StatusCode, body, tt.code, tt.want)
			}
			if tt.code != 200 {
				return
			}
			if h := got.Header; h.Get("Set-Cookie") != "" || h.Get("Content-Security-Policy") != "sandbox" || len(h["Cache-Control"]) != 1 || h.Get("Cache-Control") == "public" || h.Get("X-Kiosk") != "yes" {
				t.Errorf("a browser is told %v", h)
			}
		})
	}
}
