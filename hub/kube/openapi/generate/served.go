package main

import (
	"slices"
	"strings"

	"flotilla.dev/hub/state"
)

// A resource is a resource that the hub serves, with the methods of its paths.
type resource struct {
	version    string // "v1", "apps/v1"
	plural     string
	namespaced bool
	verbs      []string // verbs of the collection and of one object
	subs       map[string][]string
	plain      bool // has no protobuf form

	// If upstream's documents lack this resource or serve it differently, it is made from a v1
	// resource with the plural like and the kind likeKind; kind is this resource's own.
	like, likeKind, kind string
}

// absent is a version without an upstream document, because Kubernetes has replaced it. Only
// discovery lists it.
const absent = "authentication.k8s.io/v1beta1"

var served = resources()

// resources returns the resources of a hub that has all parts.
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

// upstream reports whether Kubernetes' documents contain a group. They lack groups of other
// servers.
func upstream(g *state.Group) bool { return !g.Plain && g.Group != "metrics.k8s.io" }

// root returns the path below which a version's resources are.
func root(version string) string {
	if strings.Contains(version, "/") {
		return "/apis/" + version
	}
	return "/api/" + version
}

// paths returns the paths of a resource with each path's methods.
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
