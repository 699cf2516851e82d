package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func indexOf(t *testing.T, s *Server, role string) []string {
	t.Helper()
	var got metav1.RootPaths
	w := request{role: role, method: "GET", path: "/", accept: "application/json, */*"}.do(s)
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: %d %v %s; want 200", role, w.Code, err, w.Body)
	}
	return got.Paths
}

// The index lists exactly the existing paths that the role may read.
func TestTheIndexListsExistingPaths(t *testing.T) {
	s := newServer(seeded())
	s.Others = []Other{{"/metrics", "get", "metrics"}, {"/audit/export", "list", "audit"}}
	srv := mounted(s)
	defer srv.Close()
	for role, sees := range map[string]map[string]bool{
		"admin":  {"/metrics": true, "/audit/export": true},
		"viewer": {"/metrics": true, "/audit/export": false},
	} {
		paths := indexOf(t, s, role)
		for p, want := range sees {
			if slices.Contains(paths, p) != want {
				t.Errorf("%s gets %s: %t", role, p, !want)
			}
		}
		for _, p := range []string{"/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/apis/flotilla.dev/v1alpha1",
			"/healthz", "/readyz/control-loop", "/openapi/v2", "/openapi/v3", "/version"} {
			if !slices.Contains(paths, p) {
				t.Errorf("the index of %s must list %s", role, p)
			}
		}
		for _, p := range paths {
			if s.Others[0].Path == p || s.Others[1].Path == p {
				continue // served by another package
			}
			r, _ := http.NewRequestWithContext(t.Context(), "GET", srv.URL+p, nil)
			r.Header.Set("Authorization", "Bearer "+role)
			w, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = w.Body.Close()
			if w.StatusCode != http.StatusOK {
				t.Errorf("the index of %s lists %s, which is answered %d", role, p, w.StatusCode)
			}
		}
	}
	if w := (request{role: "nobody", method: "GET", path: "/"}).do(s); w.Code != http.StatusUnauthorized {
		t.Errorf("index without authentication: %d; want 401", w.Code)
	}
	if w := (request{method: "GET", path: "/", as: "kari"}).do(s); w.Code != http.StatusForbidden {
		t.Errorf("impersonation: %d %s; want 403", w.Code, w.Body)
	}
}

func TestRequestsForTheIndex(t *testing.T) {
	for accept, want := range map[string]bool{
		"application/json, */*": true, "application/json": true, "": false, "*/*": false,
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": false, "text/html, application/json": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", accept)
		if asksForIndex(r) != want {
			t.Errorf("Accept: %s: %t", accept, !want)
		}
	}
	if r := httptest.NewRequest("POST", "/", strings.NewReader("{}")); asksForIndex(r) {
		t.Error("a POST must not get the index")
	}
}
