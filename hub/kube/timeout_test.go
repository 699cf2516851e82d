package kube

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// A request with an invalid timeout is refused before it changes anything, as in kube-apiserver.
// Watches ignore an invalid timeout.
func TestATimeoutIsADuration(t *testing.T) {
	s := newServer(seeded())
	const ns = "/api/v1/namespaces/default/configmaps"
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", ns + "?timeout=32s", http.StatusOK},
		{"GET", ns + "?timeout=", http.StatusOK},
		{"GET", ns + "?timeout=soon", http.StatusBadRequest},
		{"GET", ns + "?timeout=30", http.StatusBadRequest},
		{"POST", ns + "?timeout=1e9", http.StatusBadRequest},
		{"DELETE", ns + "/late?timeout=x", http.StatusBadRequest},
	} {
		w := request{method: c.method, path: c.path, contentType: "application/json",
			body: `{"metadata":{"name":"late"}}`}.do(s)
		if w.Code != c.code || c.code == http.StatusBadRequest &&
			!strings.Contains(w.Body.String(), "invalid timeout specified in the request URL - time: ") {
			t.Errorf("%s %s: %d %s; want %d", c.method, c.path, w.Code, w.Body, c.code)
		}
	}
	if w := (request{method: "GET", path: ns + "/late"}).do(s); w.Code != http.StatusNotFound {
		t.Errorf("a refused request must not create the object: %d; want 404", w.Code)
	}
}

// A list with watch=False is a list. Python clients write False.
func TestWatchFalseIsAList(t *testing.T) {
	s := newServer(seeded())
	for _, no := range []string{"false", "False", "FALSE", "0"} {
		w := request{method: "GET", path: "/api/v1/nodes?timeoutSeconds=1&watch=" + no}.do(s)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"NodeList"`) {
			t.Errorf("watch=%s: %d %.80s; want a list", no, w.Code, w.Body)
		}
		w = request{method: "GET", path: "/api/v1/nodes/pi-1?pretty=" + no}.do(s)
		if strings.Contains(w.Body.String(), "\n  ") {
			t.Errorf("pretty=%s must not indent", no)
		}
	}
}

// Options of logs and commands with the value False are off. Python clients write False.
func TestFalseInQueries(t *testing.T) {
	for _, no := range []string{"false", "False", "0"} {
		q := url.Values{"command": {"sh"}, "stdout": {"True"}}
		for _, name := range []string{"follow", "previous", "timestamps", "stdin", "stderr", "tty"} {
			q.Set(name, no)
		}
		if o, errs := logOptions(q); o.Follow || o.Previous || o.Timestamps || len(errs) > 0 {
			t.Errorf("%s: the options are %+v, want all off: %v", no, o, errs)
		}
		if o, err := streamOptions(q, "exec"); err != nil || !o.Stdout || o.Stdin || o.Stderr || o.TTY {
			t.Errorf("%s: the options are %+v, want only stdout: %v", no, o, err)
		}
	}
}
