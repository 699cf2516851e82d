package main

import (
	"slices"
	"strings"

	"flotilla.dev/hub/state"
)

// A resource is one that the hub serves, with the methods of its paths.
type resource struct {
	version    string // "v1", "apps/v1"
	plural     string
	namespaced bool
	verbs      []string // of the collection and of one object
	subs       map[string][]string
	plain      bool // it has no protobuf form

	// Those that upstream's documents do not have, or not as we serve them, are made
	// after a resource of v1: like is its plural, likeKind its kind,
	// kind our own.
	like, likeKind, kind string
}

// absent is a version of which upstream has no document, because a version that
// Kubernetes calls better has taken its place; discovery alone tells of it.
const absent = "authentication.k8s.io/v1beta1"

var served = resources()

// resources returns what discovery tells of, whatever a hub needs for it.
func resources() (all []resource) {
	for _, k := range state.Served() {
		r := resource{version: k.In.String(), plural: string(k.Kind), namespaced: k.Namespaced, verbs: k.Verbs,
			subs: map[string][]string{}, plain: k.In.Plain}
		if r.version == absent {
			continue
		}
		for _, s := range k.Subs {
			r.subs[s.Name] = s.Verbs
			if s.Below {
				r.subs[s.Name+"/{path}"] = s.Verbs
			}
		}
		if !upstream(k.In) {
			r.kind, r.like, r.likeKind = k.Name, string(state.Nodes), "Node"
			if k.Namespaced {
				r.like, r.likeKind = string(state.Pods), "Pod"
			}
		}
		all = append(all, r)
	}
	return all
}

// upstream tells whether Kubernetes' documents have a group: not those that other
// servers serve there.
func upstream(g *state.Group) bool { return !g.Plain && g.Group != "metrics.k8s.io" }

// root is the path below which a version's resources are.
func root(version string) string {
	if strings.Contains(version, "/") {
		return "/apis/" + version
	}
	return "/api/" + version
}

// paths returns the paths of a resource and the methods that are served on each.
func (r resource) paths() map[string][]string {
	out := map[string][]string{}
	at := root(r.version)
	if r.namespaced {
		if r.has("list") {
			out[at+"/"+r.plural] = []string{"get"}
		}
		at += "/namespaces/{namespace}"
	}
	at += "/" + r.plural
	for _, v := range []struct{ verb, method, below string }{
		{"list", "get", ""}, {"create", "post", ""}, {"deletecollection", "delete", ""},
		{"get", "get", "/{name}"}, {"update", "put", "/{name}"}, {"patch", "patch", "/{name}"},
		{"delete", "delete", "/{name}"},
	} {
		if r.has(v.verb) {
			out[at+v.below] = append(out[at+v.below], v.method)
		}
	}
	methods := map[string]string{"get": "get", "update": "put", "patch": "patch", "create": "post", "delete": "delete"}
	for sub, verbs := range r.subs {
		for _, verb := range verbs {
			out[at+"/{name}/"+sub] = append(out[at+"/{name}/"+sub], methods[verb])
		}
	}
	return out
}

func (r resource) has(verb string) bool { return slices.Contains(r.verbs, verb) }
