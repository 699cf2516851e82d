package kube

import (
	"strings"
	"testing"
)

func TestParsePath(t *testing.T) {
	for _, c := range []struct {
		name, path string
		want       target
		bad        bool
	}{
		{name: "the core group's root", path: "/api", want: target{root: "api"}},
		{name: "a trailing slash changes nothing", path: "/apis/", want: target{root: "apis"}},
		{name: "a group", path: "/apis/apps", want: target{root: "apis", group: "apps"}},
		{name: "a group's version", path: "/apis/apps/v1", want: target{root: "apis", group: "apps", version: "v1"}},
		{name: "a list over all namespaces", path: "/api/v1/pods", want: target{root: "api", version: "v1", resource: "pods"}},
		{name: "a namespace itself", path: "/api/v1/namespaces/a", want: target{root: "api", version: "v1", resource: "namespaces", name: "a"}},
		{name: "a namespace's status", path: "/api/v1/namespaces/a/status", want: target{root: "api", version: "v1", resource: "namespaces", name: "a", sub: "status"}},
		{name: "a namespace's finalize", path: "/api/v1/namespaces/a/finalize", want: target{root: "api", version: "v1", resource: "namespaces", name: "a", sub: "finalize"}},
		{name: "a list in a namespace", path: "/api/v1/namespaces/a/pods", want: target{root: "api", version: "v1", namespace: "a", resource: "pods"}},
		{name: "an object in a namespace", path: "/apis/apps/v1/namespaces/a/deployments/web", want: target{root: "apis", group: "apps", version: "v1", namespace: "a", resource: "deployments", name: "web"}},
		{name: "a subresource", path: "/apis/apps/v1/namespaces/a/deployments/web/scale", want: target{root: "apis", group: "apps", version: "v1", namespace: "a", resource: "deployments", name: "web", sub: "scale"}},
		{name: "a node's subresource", path: "/api/v1/nodes/n/status", want: target{root: "api", version: "v1", resource: "nodes", name: "n", sub: "status"}},
		{name: "an escaped colon in a name", path: "/api/v1/nodes/a%3Ab", want: target{root: "api", version: "v1", resource: "nodes", name: "a:b"}},
		{name: "OpenAPI has its own paths", path: "/openapi/v3/apis/apps/v1", want: target{root: "openapi"}},
		{name: "too many segments", path: "/api/v1/namespaces/a/pods/p/log/x", bad: true},
		{name: "an empty segment", path: "/api//v1/pods", bad: true},
		{name: "an escaped slash", path: "/api/v1/nodes/a%2Fb", bad: true},
		{name: "a parent directory", path: "/api/v1/nodes/%2e%2e", bad: true},
		{name: "a broken escape", path: "/api/v1/nodes/%zz", bad: true},
		{name: "another root", path: "/metrics", bad: true},
		{name: "nothing", path: "", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := parsePath(c.path)
			if ok == c.bad || ok && got != c.want {
				t.Errorf("parsePath(%q) = %+v, %v; want %+v, %v", c.path, got, ok, c.want, !c.bad)
			}
		})
	}
}

// Whatever the path, its parts contain no slash and no parent directory, and a name follows a
// resource.
func FuzzParsePath(f *testing.F) {
	for _, p := range []string{"/api/v1/namespaces/a/pods/p/log", "/apis/apps/v1", "/api/v1/nodes/a%3Ab", "/api//",
		"/%61pi/v1", "/api/v1/nodes/%2e%2e"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		got, ok := parsePath(path)
		if !ok {
			return
		}
		for _, part := range []string{got.root, got.group, got.version, got.namespace, got.resource, got.name, got.sub} {
			if strings.ContainsAny(part, "/\x00") || part == "." || part == ".." {
				t.Errorf("parsePath(%q) has the invalid part %q", path, part)
			}
		}
		if got.name != "" && got.resource == "" || got.sub != "" && got.name == "" || got.namespace != "" &&
			got.resource == "" {
			t.Errorf("parsePath(%q) = %+v: a name without a resource", path, got)
		}
	})
}
