package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authzv1 "k8s.io/api/authorization/v1"

	"flotilla.dev/hub/kube/resource"
)

// requestOf returns a request of the verb. It names a missing object, so that an allowed request
// changes nothing.
func requestOf(r *resource.Resource, sub, verb string) request {
	q := request{path: "/apis/" + r.Group + "/" + r.Version, body: "not an object", contentType: resource.MediaJSON}
	if r.Group == "" {
		q.path = "/api/" + r.Version
	}
	if r.Namespaced {
		q.path += "/namespaces/nowhere"
	}
	q.path += "/" + r.Plural
	if sub != "" || slices.Contains([]string{"get", "update", "patch", "delete"}, verb) {
		q.path += "/nothing"
	}
	if sub != "" {
		q.path += "/" + sub
	}
	q.method = map[string]string{
		"get": http.MethodGet, "list": http.MethodGet, "watch": http.MethodGet, "create": http.MethodPost, "update": http.MethodPut,
		"patch": http.MethodPatch, "delete": http.MethodDelete, "deletecollection": http.MethodDelete,
	}[verb]
	if verb == "watch" {
		q.path += "?watch=true&resourceVersion=no"
	}
	return q
}

// Enforcement, SelfSubjectAccessReview and SelfSubjectRulesReview agree for every role, resource,
// subresource and verb.
func TestReviewsMatchEnforcement(t *testing.T) {
	f := seeded()
	c := Config{Fleet: f, Leases: f, Logs: f, Metrics: f, Streams: struct{ Streams }{}, Access: fakeAccess{},
		Settings: fakeSettings}
	s := New(c)
	before := f.Snapshot().Revision
	allowed := map[string]int{}
	for _, role := range []string{"admin", "operator", "viewer"} {
		var mine authzv1.SelfSubjectRulesReview
		w := request{role: role, method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
			body: `{"spec":{"namespace":"default"}}`}.do(s)
		if err := json.Unmarshal(w.Body.Bytes(), &mine); err != nil || w.Code != 201 {
			t.Fatalf("%s: rules review: %d %s", role, w.Code, w.Body)
		}
		for _, r := range s.resources {
			for sub, verbs := range ways(r) {
				what := strings.TrimSuffix(r.Plural+"/"+sub, "/")
				for _, verb := range verbs {
					name := fmt.Sprintf("%s %s %s.%s", role, verb, what, r.Group)
					q := requestOf(r, sub, verb)
					q.role = role
					w := q.do(s)
					may := w.Code != http.StatusForbidden
					if w.Code == http.StatusOK && verb != "list" && verb != "deletecollection" || w.Code >= 500 ||
						w.Code == http.StatusMethodNotAllowed {
						t.Errorf("%s: %d %s", name, w.Code, w.Body)
					}
					if may {
						allowed[role]++
					}
					body := fmt.Sprintf(`{"spec":{"resourceAttributes":{"verb":%q,"group":%q,"resource":%q,"subresource":%q}}}`, verb,
						r.Group, r.Plural, sub)
					var one authzv1.SelfSubjectAccessReview
					w = request{role: role, method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
						body: body}.do(s)
					if err := json.Unmarshal(w.Body.Bytes(), &one); err != nil || one.Status.Allowed != may {
						t.Errorf("%s: allowed %v, but the access review says %s", name, may, w.Body)
					}
					listed := slices.ContainsFunc(mine.Status.ResourceRules, func(rule authzv1.ResourceRule) bool {
						return slices.Contains(rule.APIGroups, r.Group) && slices.Contains(rule.Resources, what) &&
							slices.Contains(rule.Verbs, verb)
					})
					if listed != may {
						t.Errorf("%s: allowed %v, but listed in the rules review %v", name, may, listed)
					}
				}
			}
		}
	}
	if !(allowed["admin"] > allowed["operator"] && allowed["operator"] > allowed["viewer"] && allowed["viewer"] > 20) {
		t.Errorf("numbers of allowed verbs: %v", allowed)
	}
	if after := f.Snapshot().Revision; after != before {
		t.Errorf("reviews must not change the fleet: revision %d became %d", before, after)
	}
}

// ways returns the verbs of a resource (key "") and of its subresources.
func ways(r *resource.Resource) map[string][]string {
	m := map[string][]string{"": r.Verbs}
	for _, s := range r.Subs {
		m[s.Name] = s.Verbs
	}
	return m
}

// A server-side apply that creates an object needs the right to create it. Nobody may create
// objects that only the hub creates.
func TestAnApplyThatCreatesNeedsTheRightToCreate(t *testing.T) {
	const site = `{"apiVersion":"flotilla.dev/v1alpha1","kind":"Site","metadata":{"name":"%s"},"spec":{"description":"%s"}}`
	const sites, volumes = "/apis/flotilla.dev/v1alpha1/sites", "/api/v1/persistentvolumes"
	s := newServer(seeded())
	for _, c := range []struct {
		role, path, body string
		code             int
		says             string
	}{
		{"operator", sites + "/new", fmt.Sprintf(site, "new", "x"), 403, `cannot create resource \"sites\"`},
		{"admin", sites + "/new", fmt.Sprintf(site, "new", "x"), 201, ""},
		{"operator", sites + "/new", fmt.Sprintf(site, "new", "y"), 409, ""}, // the site exists, and another manager owns its description
		{"admin", volumes + "/mine", `{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"mine"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"persistentVolumeReclaimPolicy":"Retain","local":{"path":"persistent/x"},"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["pi-1"]}]}]}}}}`, 405, "the hub creates persistent volumes"},
	} {
		w := request{method: "PATCH", path: c.path + "?fieldManager=" + c.role, contentType: "application/apply-patch+yaml",
			body: c.body, role: c.role}.do(s)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s applies %s: %d %s; want %d with %q", c.role, c.path, w.Code, w.Body, c.code, c.says)
		}
	}
}
