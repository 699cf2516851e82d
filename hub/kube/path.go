package kube

import (
	"net/url"
	"strings"
)

// A target is what a request's path names. With no resource it is the discovery
// document of the group and version, of the group, or (root) of everything.
type target struct {
	root      string // api, apis, openapi
	group     string
	version   string
	namespace string
	resource  string // plural
	name      string
	sub       string // subresource
	below     string // what is behind a proxy
}

// parsePath reads an escaped path below /api, /apis or /openapi. A path that no
// resource can have is not ok.
func parsePath(escaped string) (t target, ok bool) {
	if !strings.HasPrefix(escaped, "/") {
		return target{}, false
	}
	var parts []string
	for part := range strings.SplitSeq(strings.Trim(escaped, "/"), "/") {
		plain, err := url.PathUnescape(part)
		if err != nil || plain == "" || plain == "." || plain == ".." || strings.ContainsAny(plain, "/\x00") {
			return target{}, false
		}
		parts = append(parts, plain)
	}
	if len(parts) == 0 {
		return target{}, false
	}
	take := func(into *string) {
		if len(parts) > 0 {
			*into, parts = parts[0], parts[1:]
		}
	}
	switch take(&t.root); t.root {
	case "openapi":
		return t, true
	case "api":
		take(&t.version)
	case "apis":
		take(&t.group)
		take(&t.version)
	default:
		return target{}, false
	}
	// /namespaces/{name} is the namespace itself; with a resource behind it, that
	// resource's. A namespace's own subresources are told apart by their names.
	if len(parts) > 2 && parts[0] == "namespaces" && (len(parts) > 3 || parts[2] != "status" && parts[2] != "finalize") {
		t.namespace, parts = parts[1], parts[2:]
	}
	take(&t.resource)
	take(&t.name)
	take(&t.sub)
	if t.sub == "proxy" {
		t.below, parts = strings.Join(parts, "/"), nil
	}
	return t, len(parts) == 0
}
