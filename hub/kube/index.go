package kube

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/kube/openapi"
	"flotilla.dev/hub/kube/resource"
)

// asksForIndex reports whether a request of / wants the list of paths, as `kubectl get --raw /`
// does, and not the page.
func asksForIndex(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		strings.Contains(accept, resource.MediaJSON) && !strings.Contains(accept, "text/html")
}

// index lists the paths that the client may use, as kube-apiserver does.
func (c *call) index() error {
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.noImpersonation(); err != nil {
		return err
	}
	b, err := json.MarshalIndent(metav1.RootPaths{Paths: c.paths()}, "", "  ")
	if err == nil {
		c.send(http.StatusOK, b, resource.MediaJSON)
	}
	return err
}

// paths returns the mounted paths, and the groups, checks and documents below them. It does not
// list objects.
func (c *call) paths() []string {
	all := slices.Clone(openapi.Paths)
	for _, p := range slices.Concat(apiPaths, healthPaths) {
		if !strings.HasSuffix(p, "/*") && !strings.HasSuffix(p, "/") {
			all = append(all, p)
		}
	}
	for _, gv := range c.versions() {
		if gv.Group == "" {
			all = append(all, "/api/"+gv.Version)
			continue
		}
		all = append(all, "/apis/"+gv.Group, "/apis/"+gv.String())
	}
	for _, at := range healthPaths {
		for _, check := range c.health.checks {
			if check.ready && at != "/readyz" {
				continue
			}
			all = append(all, at+"/"+check.name)
		}
	}
	for _, o := range c.Others {
		if c.Allow(c.user.Role, o.Verb, o.Resource) {
			all = append(all, o.Path)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
