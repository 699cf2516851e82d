package kube

import (
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The API itself answers a request to the Service kubernetes, with the sender's rights.
func TestServiceProxy(t *testing.T) {
	f := seeded()
	f.put(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 8443}}},
	})
	srv := mounted(newServer(f))
	defer srv.Close()
	const svc = ns + "/services/"
	for _, tt := range []struct {
		name, role, method, path string
		code                     int
		want                     string
	}{
		{"the version", "viewer", "GET", "https:kubernetes:443/proxy/version", 200, kubernetesVersion},
		{"the index", "viewer", "GET", "https:kubernetes:https/proxy", 200, `"/apis/apps/v1"`},
		{"the health checks", "viewer", "GET", "https:kubernetes:/proxy/readyz?verbose", 200, "readyz check passed"},
		{"a check", "viewer", "GET", "https:kubernetes:8443/proxy/livez/ping", 200, "ok"},
		{"a list, with its query", "viewer", "GET", "https:kubernetes:443/proxy/api/v1/nodes?limit=1", 200, `"continue"`},
		{"a list without the right", "viewer", "GET", "https:kubernetes:443/proxy" + ns + "/secrets", 403, `User \"viewer\" cannot list resource \"secrets\"`},
		{"a deletion with the right", "operator", "DELETE", "https:kubernetes:443/proxy" + ns + "/pods/kiosk-2", 200, `"kiosk-2"`},
		{"a deletion without the right", "viewer", "DELETE", "https:kubernetes:443/proxy" + ns + "/pods/kiosk-1", 403, "services/proxy"},
		{"a document", "viewer", "GET", "https:kubernetes:443/proxy/openapi/v3", 200, `"paths"`},
		{"a path outside of the API", "viewer", "GET", "https:kubernetes:443/proxy/settings", 404, "page not found"},
		{"the proxy through itself", "viewer", "GET", "https:kubernetes:443/proxy" + svc + "https:kubernetes:443/proxy/version", 400, "cannot proxy the API again"},
		{"an escaped path", "viewer", "GET", "https:kubernetes:443/proxy/api/v1/nodes/a%2Fb", 404, "page not found"},
		{"without https", "viewer", "GET", "kubernetes:443/proxy/version", 400, "use https:kubernetes:443"},
		{"another port", "viewer", "GET", "https:kubernetes:80/proxy/version", 503, "no service port"},
		{"another service", "viewer", "GET", "https:dashboard:443/proxy/", 404, `services \"dashboard\" not found`},
		{"no authentication", "nobody", "GET", "https:kubernetes:443/proxy/version", 401, "Unauthorized"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL+svc+tt.path, strings.NewReader(""))
			if err != nil {
				t.Fatal(err)
			}
			if tt.role != "nobody" {
				r.Header.Set("Authorization", "Bearer "+tt.role)
			}
			got, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = got.Body.Close() }()
			body, _ := io.ReadAll(got.Body)
			if got.StatusCode != tt.code || !strings.Contains(string(body), tt.want) {
				t.Errorf("%d %s, want %d %q", got.StatusCode, body, tt.code, tt.want)
			}
		})
	}
}
