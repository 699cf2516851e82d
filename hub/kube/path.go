package kube

import (
	"net/url"
	"strings"
)

// A target is what a request's path names. Without a resource it is a discovery document: of the
// group and version, of the group, or of all (root).
type target struct {
	root      string // api, apis, openapi
	group     string
	version   string
	namespace string
	resource  string // plural
	name      string
	sub       string // subresource
	below     string // the path behind a proxy
}

// parsePath reads an escaped path below /api, /apis or /openapi; not ok if no resource can have it.
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
	// /namespaces/{name} is the namespace itself; with a resource behind it, a path in the
	// namespace. A namespace's own subresources are known by name.
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
