package kube

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
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
		_, _ = fmt.Fprintf(w, "%s %s %q %q %s", r.Method, r.RequestURI, r.Header.Get("Authorization"),
			r.Header.Get("Cookie"), body)
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
		{"a slash at the end, and a query for the pod", "operator", "GET", "kiosk-1:" + port(plain) + "/proxy/a/?timeout=soon", "", 200, `GET /a/?timeout=soon "" "" `},
		{"an escaped path", "operator", "GET", "kiosk-1:" + port(plain) + "/proxy/a%20b/proxy/c", "", 200, `GET /a%20b/proxy/c "" "" `},
		{"a body", "operator", "POST", "kiosk-1:" + port(plain) + "/proxy/form", "words", 200, `POST /form "" "" words`},
		{"the pod's status code", "operator", "GET", "http:kiosk-1:" + port(plain) + "/proxy/missing", "", 404, `GET /missing`},
		{"https", "operator", "GET", "https:kiosk-1:" + port(secure) + "/proxy/s", "", 200, `GET /s "" "" `},
		{"a port without a listener", "operator", "GET", "kiosk-1:1/proxy/", "", 503, "error trying to reach pod default/kiosk-1 at port 1: "},
		{"an invalid port", "operator", "GET", "kiosk-1:70000/proxy/", "", 400, "is not a port"},
		{"another protocol", "operator", "GET", "ftp:kiosk-1:80/proxy/", "", 400, "use http or https"},
		{"a missing pod", "operator", "GET", "nobody:80/proxy/", "", 404, `pods \"nobody\" not found`},
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
			if h := got.Header; h.Get("Set-Cookie") != "" || h.Get("Content-Security-Policy") != "sandbox" ||
				len(h["Cache-Control"]) != 1 || h.Get("Cache-Control") == "public" || h.Get("X-Kiosk") != "" {
				t.Errorf("a browser gets the headers %v, want the hub's own only", h)
			}
		})
	}
}

func TestHeadersOfAPodsAnswer(t *testing.T) {
	acts := []string{
		"Set-Cookie", "Clear-Site-Data", "Nel", "Report-To", "Refresh", "Alt-Svc", "Strict-Transport-Security",
		"Access-Control-Allow-Origin", "Service-Worker-Allowed", "Www-Authenticate", "Link", "Content-Location",
		"X-Anything", "Reporting-Endpoints", "Content-Security-Policy-Report-Only", "Sourcemap", "Trailer",
	}
	page := func(code int, first ...int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for _, code := range first {
				w.Header().Set("Link", "</a.js>; rel=preload")
				w.WriteHeader(code)
			}
			for _, name := range acts {
				w.Header().Set(name, "theirs")
			}
			w.Header().Set("Content-Security-Policy", "default-src *")
			w.Header().Set("X-Content-Type-Options", "none")
			w.Header().Set("Cross-Origin-Resource-Policy", "cross-origin")
			w.Header().Set("Cache-Control", "public")
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Etag", `"1"`)
			w.Header().Set("Location", r.URL.Query().Get("to"))
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "<script>")
			w.Header().Set(http.TrailerPrefix+"Clear-Site-Data", "theirs")
		}
	}
	for _, tt := range []struct {
		name     string
		pod      http.HandlerFunc
		to, want string // Location as the pod sends it, and as the client gets it
	}{
		{"a page", page(200), "", ""},
		{"early hints before a page", page(200, 103), "", ""},
		{"several informational answers", page(200, 102, 103, 103), "", ""},
		{"early hints before an error", page(401, 103), "", ""},
		{"a redirect within the pod, by its path", page(302), "/b%20c?d=e#f", "/b%20c?d=e#f"},
		{"a redirect within the pod, relative", page(302), "b", "/a/b"},
		{"a redirect to another host", page(302), "https://elsewhere.test/", ""},
		{"a redirect to another host without a scheme", page(302), "//elsewhere.test/", ""},
		{"a redirect to a script", page(302), "javascript:alert(1)", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := httptest.NewServer(tt.pod)
			defer pod.Close()
			at, _ := url.Parse(pod.URL)
			s := httptest.NewServer(streaming())
			defer s.Close()
			above := ns + "/pods/kiosk-1:" + at.Port() + "/proxy"
			ctx := httptrace.WithClientTrace(t.Context(),
				&httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					t.Errorf("the client must not receive %d %v", code, h)
					return nil
				}})
			r, err := http.NewRequestWithContext(ctx, "GET", s.URL+above+"/a/?to="+url.QueryEscape(tt.to), nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer operator")
			answer, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "<script>" {
				t.Errorf("the body is %q, want <script>: %v", body, err)
			}
			for _, name := range acts {
				if v := answer.Header.Values(name); len(v) > 0 {
					t.Errorf("%s: the client must not receive %q", name, v)
				}
			}
			if len(answer.Trailer) > 0 {
				t.Errorf("the client must not receive the trailer %v", answer.Trailer)
			}
			want := map[string]string{
				"Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache, private",
				"Cross-Origin-Resource-Policy": "same-origin", "Content-Type": "text/html", "Etag": `"1"`,
			}
			if tt.want != "" {
				want["Location"] = above + tt.want
			} else if l := answer.Header.Get("Location"); l != "" {
				t.Errorf("the client gets the Location %s, want none", l)
			}
			for name, value := range want {
				if v := answer.Header.Values(name); len(v) != 1 || v[0] != value {
					t.Errorf("%s: %q, want %q", name, v, value)
				}
			}
		})
	}
}
