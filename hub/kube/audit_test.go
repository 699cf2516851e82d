package kube

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReadingsOfSecretsAndRefusalsAreAudited(t *testing.T) {
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"a":"b"}}`
	for _, tt := range []struct{ name, role, method, path, body, want string }{
		{"one secret", "admin", "GET", ns + "/secrets/s", "", "admin get secrets default/s done"},
		{"a missing secret", "admin", "GET", ns + "/secrets/none", "", "admin get secrets default/none refused"},
		{"all secrets of a namespace", "operator", "GET", ns + "/secrets", "", "operator list secrets default/ done"},
		{"all", "operator", "GET", "/api/v1/secrets", "", "operator list secrets done"},
		{"all secrets as a table", "operator", "GET", "/api/v1/secrets?limit=1", "", "operator list secrets done"},
		{"a watch", "operator", "GET", "/api/v1/secrets?watch=1&timeoutSeconds=1&resourceVersion=1", "", "operator watch secrets done"},
		{"a dry run that returns a secret", "admin", "PATCH", ns + "/secrets/s?dryRun=All", `{"metadata":{"labels":{"a":"b"}}}`, "admin patch secrets default/s dry run done"},
		{"a viewer's refused reading", "viewer", "GET", ns + "/secrets/s", "", "viewer get secrets default/s refused"},
		{"a viewer's write", "viewer", "DELETE", ns + "/pods/kiosk-1", "", "viewer delete pods default/kiosk-1 refused"},
		{"a viewer's dry run", "viewer", "DELETE", ns + "/pods/kiosk-1?dryRun=All", "", "viewer delete pods default/kiosk-1 refused"},
		{"a viewer's eviction", "viewer", "POST", ns + "/pods/kiosk-1/eviction", "", "viewer create pods/eviction default/kiosk-1 refused"},
		{"no authentication", "nonsense", "GET", "/api/v1/nodes", "", " get nodes refused"},
		{"no authentication, at an unknown path", "nonsense", "POST", "/apis/x/y/z", "", " create z refused"},
		{"impersonation", "admin", "GET", "/api/v1/nodes", "impersonate", "admin get nodes refused"},
		{"an object that is not a secret", "viewer", "GET", "/api/v1/nodes", "", ""},
		{"a missing object", "viewer", "GET", "/api/v1/nodes/none", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(seeded())
			send(t, s, "POST", ns+"/secrets", "", secret, 201, nil)
			var kept auditing
			s.Audit = &kept
			r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
			r.Header.Set("Authorization", "Bearer "+tt.role)
			if r.Method == http.MethodPatch {
				r.Header.Set("Content-Type", mp)
			}
			if tt.body == "impersonate" {
				r.Header.Set("Impersonate-User", "root")
			}
			s.ServeHTTP(httptest.NewRecorder(), r)
			if got := strings.Join(kept.lines, "\n"); got != tt.want {
				t.Errorf("the audit has %q, want %q", got, tt.want)
			}
		})
	}
}

// A change carries the name of its user.
func TestAChangeHasTheNameOfItsUser(t *testing.T) {
	f := seeded()
	s := newServer(f)
	var kept auditing
	s.Audit = &kept
	f.history = nil
	send(t, s, "POST", ns+"/configmaps", "", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"c-"}}`,
		201, nil)
	if len(f.history) != 1 || f.history[0].Change.By != "admin" {
		t.Fatalf("the changes are %+v, want one by admin", f.history)
	}
	if name := f.history[0].Key.Name; len(kept.rows) != 1 || kept.rows[0].Name != name || !strings.HasPrefix(name, "c-") {
		t.Errorf("the change has the reason %q of %s", kept.lines, name)
	}
}

// The deletion of a collection is one record without names of objects.
func TestADeletedCollectionIsOneRecord(t *testing.T) {
	s := newServer(seeded())
	for _, name := range []string{"one", "two"} {
		send(t, s, "POST", ns+"/configmaps", "", `{"metadata":{"name":"`+name+`"}}`, 201, nil)
	}
	var kept auditing
	s.Audit = &kept
	send(t, s, "DELETE", ns+"/configmaps", "", "", 200, nil)
	if got, want := strings.Join(kept.lines, "\n"), "admin deletecollection configmaps default/ done"; got != want {
		t.Errorf("the audit has %q, want %q", got, want)
	}
}
