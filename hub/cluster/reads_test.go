package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A standby answers reads of what the database contains; the leader answers all other requests.
func TestAStandbyAnswersReads(t *testing.T) {
	for _, c := range []struct{ method, path, verb, resource string }{
		{"GET", "/api/v1/pods", "list", "pods"},
		{"HEAD", "/api/v1/pods", "list", "pods"},
		{"GET", "/api/v1/namespaces/default/pods", "list", "pods"},
		{"GET", "/api/v1/namespaces/default/pods/a", "get", "pods"},
		{"GET", "/api/v1/namespaces/default/pods?watch=0", "list", "pods"},
		{"GET", "/api/v1/namespaces", "list", "namespaces"},
		{"GET", "/api/v1/namespaces/default", "get", "namespaces"},
		{"GET", "/apis/apps/v1/deployments", "list", "deployments"},
		{"GET", "/apis/apps/v1/namespaces/default/deployments/a", "get", "deployments"},
		{"GET", "/apis/events.k8s.io/v1/events", "list", "events"},

		{"GET", "/api/v1/namespaces/default/pods?watch=true", "", ""},
		{"GET", "/api/v1/pods?watch=1&resourceVersion=7", "", ""},
		{"POST", "/api/v1/namespaces/default/pods", "", ""},
		{"DELETE", "/api/v1/namespaces/default/pods/a", "", ""},
		{"GET", "/api/v1/namespaces/default/pods/a/log", "", ""},
		{"GET", "/api/v1/namespaces/default/pods/a/exec", "", ""},
		{"GET", "/api/v1/namespaces/default/secrets", "", ""},
		{"GET", "/api/v1/namespaces/default/secrets/a", "", ""},
		{"GET", "/api/v1/nodes", "", ""},
		{"GET", "/api/v1/nodes/a", "", ""},
		{"GET", "/apis/coordination.k8s.io/v1/leases", "", ""},
		{"GET", "/apis/metrics.k8s.io/v1beta1/pods", "", ""},
		{"GET", "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/a", "", ""},
		{"GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", ""},
		{"GET", "/api/v1", "", ""},
		{"GET", "/api", "", ""},
		{"GET", "/apis/apps/v1", "", ""},
		{"GET", "/", "", ""},
		{"GET", "/pods", "", ""},
		{"GET", "/api/v1/namespaces/default/pods/", "", ""},
		{"GET", "/api/v1/namespaces/default/secrets%2Fpods", "", ""},
		{"GET", "/api/v1/namespaces/default/pods/%2e%2e%2fsecrets", "", ""},
		{"GET", "/api/v1//pods", "", ""},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		if verb, resource := readOf(r); verb != c.verb || resource != c.resource {
			t.Errorf("%s %s: %q %q, want %q %q", c.method, c.path, verb, resource, c.verb, c.resource)
		}
	}
	for _, header := range []string{"Impersonate-User", "impersonate-group", "Upgrade"} {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
		r.Header.Set(header, "x")
		if verb, _ := readOf(r); verb != "" {
			t.Errorf("a standby must forward a request with %s", header)
		}
	}
}
