package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// paths maps each path to its HTTP methods, sorted.
type paths map[string][]string

func (p paths) add(path, method string) {
	if !slices.Contains(p[path], method) {
		p[path] = append(p[path], method)
		slices.Sort(p[path])
	}
}

// methods maps each verb to its HTTP method, and to whether it names an object.
var methods = map[string]struct {
	method string
	named  bool
}{
	"get": {"get", true}, "list": {"get", false}, "watch": {"get", false}, "create": {"post", false}, "update": {"put", true},
	"patch": {"patch", true}, "delete": {"delete", true}, "deletecollection": {"delete", false},
}

// entry adds the paths and methods of a resource or subresource in discovery.
func (p paths) entry(gv, name string, namespaced bool, verbs []string) {
	resource, sub, _ := strings.Cut(name, "/")
	root := "/apis/" + gv
	if !strings.Contains(gv, "/") {
		root = "/api/" + gv
	}
	at := root
	if namespaced {
		at += "/namespaces/{namespace}"
	}
	for _, v := range verbs {
		m, ok := methods[v]
		switch {
		case !ok:
			p.add(gv+" "+name, "unknown verb "+v)
		case sub != "":
			p.add(at+"/"+resource+"/{name}/"+sub, m.method)
			if sub == "proxy" { // proxy serves all paths below it
				p.add(at+"/"+resource+"/{name}/proxy/{path}", m.method)
			}
		case m.named:
			p.add(at+"/"+resource+"/{name}", m.method)
		default:
			p.add(at+"/"+resource, m.method)
			if namespaced && m.method == "get" {
				p.add(root+"/"+resource, m.method)
			}
		}
	}
}

func read(t *testing.T, h http.Handler, path, accept string, into any) {
	t.Helper()
	w := request{method: "GET", path: path, accept: accept}.do(h)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s; want 200", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
}

// Both forms of discovery, the OpenAPI documents and the hub's answers agree on paths and methods.
func TestDiscoveryAndOpenAPIAndRoutingAgree(t *testing.T) {
	f := seeded()
	s := New(Config{Fleet: f, Leases: f, Logs: f, Metrics: f, Streams: struct{ Streams }{}, Access: fakeAccess{},
		Settings: fakeSettings})
	const beta = "authentication.k8s.io/v1beta1" // for kubectl 1.27; the OpenAPI documents no longer have it

	older := paths{}
	var groups metav1.APIGroupList
	read(t, s, "/apis", "", &groups)
	versions := []string{"v1"}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			versions = append(versions, v.GroupVersion)
		}
	}
	for _, gv := range versions {
		path := "/apis/" + gv
		if gv == "v1" {
			path = "/api/v1"
		}
		var list metav1.APIResourceList
		read(t, s, path, "", &list)
		for _, r := range list.APIResources {
			older.entry(gv, r.Name, r.Namespaced, r.Verbs)
		}
	}

	aggregated := paths{}
	for _, root := range []string{"/api", "/apis"} {
		var list apidiscoveryv2.APIGroupDiscoveryList
		read(t, s, root, agg, &list)
		for _, g := range list.Items {
			for _, v := range g.Versions {
				gv := strings.TrimPrefix(g.Name+"/"+v.Version, "/")
				for _, r := range v.Resources {
					namespaced := r.Scope == apidiscoveryv2.ScopeNamespace
					aggregated.entry(gv, r.Resource, namespaced, r.Verbs)
					for _, sub := range r.Subresources {
						aggregated.entry(gv, r.Resource+"/"+sub.Subresource, namespaced, sub.Verbs)
					}
				}
			}
		}
	}
	compare(t, "the older discovery", older, "the aggregated discovery", aggregated)

	documents := paths{}
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	read(t, s, "/openapi/v3", "", &index)
	document := func(url string) {
		var doc struct{ Paths map[string]map[string]any }
		read(t, s, url, "", &doc)
		for path, item := range doc.Paths {
			for method := range item {
				if method != "parameters" {
					documents.add(path, method)
				}
			}
		}
	}
	for _, d := range index.Paths {
		document(d.ServerRelativeURL)
	}
	maps.DeleteFunc(older, func(path string, _ []string) bool { return strings.Contains(path, beta) })
	compare(t, "discovery", older, "OpenAPI 3", documents)
	documents = paths{}
	document("/openapi/v2")
	compare(t, "discovery", older, "OpenAPI 2", documents)

	for path, served := range older {
		for _, method := range []string{"get", "put", "post", "patch", "delete"} {
			at := strings.NewReplacer("{namespace}", "nowhere", "{name}", "nothing", "{path}", "logs").Replace(path)
			w := request{method: strings.ToUpper(method), path: at, body: "not an object"}.do(s)
			var st metav1.Status
			_ = json.Unmarshal(w.Body.Bytes(), &st) // an answer of another type has no reason
			routed := w.Code != http.StatusMethodNotAllowed && !(w.Code == http.StatusNotFound && st.Reason == "")
			if routed != slices.Contains(served, method) {
				t.Errorf("%s %s is answered %d %s; listed in discovery: %v", method, path, w.Code, w.Body, served)
			}
		}
	}
}

func compare(t *testing.T, a string, have paths, b string, want paths) {
	t.Helper()
	all := maps.Clone(have)
	maps.Copy(all, want)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if !slices.Equal(have[path], want[path]) {
			t.Errorf("%s: %s lists %v, %s lists %v", path, a, fmt.Sprint(have[path]), b, want[path])
		}
	}
}
