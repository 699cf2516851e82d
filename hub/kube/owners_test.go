package kube

import (
	"strings"
	"testing"
)

// The garbage collector deletes an object whose owner is missing. So a user who may change an
// object but not delete it cannot set its owners, for example an operator on a site.
func TestOwnersNeedTheRightToDelete(t *testing.T) {
	const site, maps = "/apis/flotilla.dev/v1alpha1/sites/oslo", "/api/v1/namespaces/default/configmaps/m"
	const owned = `"metadata":{"name":"oslo","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"00000000-0000-0000-0000-000000000001"}]}`
	const whole = `{"apiVersion":"flotilla.dev/v1alpha1","kind":"Site",` + owned + `}`
	for _, tt := range []struct {
		name, role, method, path, kind, body string
		code                                 int
	}{
		{"an operator patches a site's owners", "operator", "PATCH", site, mp, "{" + owned + "}", 403},
		{"an operator applies a site's owners", "operator", "PATCH", site + "?fieldManager=m", ssa, whole, 403},
		{"an operator replaces a site with owners", "operator", "PUT", site, "application/json", whole, 403},
		{"an operator changes a site that has an owner", "operator", "PATCH", site + "2", mp, `{"metadata":{"labels":{"a":"b"}}}`, 200},
		{"an operator removes the owner", "operator", "PATCH", site + "2", mp, `{"metadata":{"ownerReferences":null}}`, 403},
		{"an administrator sets an owner", "admin", "PATCH", site, mp, "{" + owned + "}", 200},
		{"an operator sets owners of an object that operators may delete", "operator", "PATCH", maps, mp, strings.Replace("{"+owned+"}", "oslo", "m", 1), 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(seeded())
			for path, body := range map[string]string{
				"/apis/flotilla.dev/v1alpha1/sites": `{"apiVersion":"flotilla.dev/v1alpha1","kind":"Site","metadata":{"name":"oslo"}}`, "/apis/flotilla.dev/v1alpha1/sites?": strings.Replace(whole, "oslo", "oslo2", 1),
				"/api/v1/namespaces/default/configmaps": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"}}`,
			} {
				if w := (request{method: "POST", path: path, contentType: "application/json", body: body}).do(s); w.Code != 201 &&
					w.Code != 409 {
					t.Fatal(w.Body)
				}
			}
			w := request{role: tt.role, method: tt.method, path: tt.path, contentType: tt.kind, body: tt.body}.do(s)
			if w.Code != tt.code || tt.code == 403 &&
				!strings.Contains(w.Body.String(), "cannot set an ownerRef on a resource you can't delete") {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.code)
			}
		})
	}
}
