package kube

import "testing"

// Headers tell a browser not to guess the type, not to show the answer on other sites, and not to
// store secrets.
func TestHeadersOfAnswers(t *testing.T) {
	s := newServer(seeded())
	for path, cache := range map[string]string{
		"/version": "no-cache, private", "/api/v1/nodes": "no-cache, private", "/api/v1/nodes/missing": "no-cache, private",
		"/api/v1/secrets": "no-store", "/api/v1/namespaces/default/secrets/missing": "no-store", "/healthz": "no-cache, private",
	} {
		h := (request{method: "GET", path: path}).do(s).Header()
		for name, want := range map[string]string{"Cache-Control": cache, "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Resource-Policy": "same-origin"} {
			if got := h.Values(name); len(got) != 1 || got[0] != want {
				t.Errorf("GET %s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
}
