package main

import "strings"

// A resource is one that the hub serves, with the methods of its paths. It must say
// what discovery in package kube says.
type resource struct {
	version    string // "v1", "apps/v1"
	plural     string
	namespaced bool
	verbs      string // of the collection and of one object
	subs       map[string]string

	// Those that upstream's documents do not have, or not as we serve them, are made
	// after a resource of v1: like is its plural, likeKind its kind,
	// kind our own.
	like, likeKind, kind string
}

const (
	everything = "create delete deletecollection get list patch update"
	singly     = "create delete get list patch update"
	readOnly   = "get list"
	modify     = "get patch update"
	connect    = "create get"
)

var status = map[string]string{"status": modify}

var served = []resource{
	{version: "v1", plural: "configmaps", namespaced: true, verbs: everything},
	{version: "v1", plural: "events", namespaced: true, verbs: everything},
	{version: "v1", plural: "namespaces", verbs: singly, subs: map[string]string{"status": modify, "finalize": "update"}},
	{version: "v1", plural: "nodes", verbs: everything, subs: map[string]string{"status": modify, "proxy": "get", "proxy/{path}": "get"}},
	{version: "v1", plural: "pods", namespaced: true, verbs: everything, subs: map[string]string{
		"status": modify, "log": "get", "binding": "create", "eviction": "create", "exec": connect, "attach": connect, "portforward": connect}},
	{version: "v1", plural: "secrets", namespaced: true, verbs: everything},
	{version: "v1", plural: "services", namespaced: true, verbs: readOnly},
	{version: "apps/v1", plural: "controllerrevisions", namespaced: true, verbs: everything},
	{version: "apps/v1", plural: "daemonsets", namespaced: true, verbs: everything, subs: status},
	{version: "apps/v1", plural: "deployments", namespaced: true, verbs: everything, subs: map[string]string{"status": modify, "scale": modify}},
	{version: "apps/v1", plural: "replicasets", namespaced: true, verbs: everything, subs: map[string]string{"status": modify, "scale": modify}},
	{version: "coordination.k8s.io/v1", plural: "leases", namespaced: true, verbs: everything},
	{version: "policy/v1", plural: "poddisruptionbudgets", namespaced: true, verbs: everything, subs: status},
	{version: "events.k8s.io/v1", plural: "events", namespaced: true, verbs: everything},
	{version: "authentication.k8s.io/v1", plural: "selfsubjectreviews", verbs: "create"},
	{version: "authorization.k8s.io/v1", plural: "selfsubjectaccessreviews", verbs: "create"},
	{version: "authorization.k8s.io/v1", plural: "selfsubjectrulesreviews", verbs: "create"},

	{version: "flotilla.dev/v1alpha1", plural: "sites", verbs: everything, subs: status, like: "nodes", kind: "Site", likeKind: "Node"},
	{version: "flotilla.dev/v1alpha1", plural: "boardprofiles", verbs: everything, like: "nodes", kind: "BoardProfile", likeKind: "Node"},
	{version: "metrics.k8s.io/v1beta1", plural: "nodes", verbs: readOnly, like: "nodes", kind: "NodeMetrics", likeKind: "Node"},
	{version: "metrics.k8s.io/v1beta1", plural: "pods", namespaced: true, verbs: readOnly, like: "pods", kind: "PodMetrics", likeKind: "Pod"},
	{version: "apiextensions.k8s.io/v1", plural: "customresourcedefinitions", verbs: readOnly, like: "nodes", kind: "CustomResourceDefinition", likeKind: "Node"},
}

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
		{"get", "get", "/{name}"}, {"update", "put", "/{name}"}, {"patch", "patch", "/{name}"}, {"delete", "delete", "/{name}"},
	} {
		if r.has(v.verb) {
			out[at+v.below] = append(out[at+v.below], v.method)
		}
	}
	methods := map[string]string{"get": "get", "update": "put", "patch": "patch", "create": "post"}
	for sub, verbs := range r.subs {
		for _, verb := range strings.Fields(verbs) {
			out[at+"/{name}/"+sub] = append(out[at+"/{name}/"+sub], methods[verb])
		}
	}
	return out
}

// plain tells whether the resource has no protobuf form, as package kube says.
func (r resource) plain() bool { return r.kind != "" && !strings.HasPrefix(r.version, "metrics.") }

func (r resource) has(verb string) bool {
	for _, v := range strings.Fields(r.verbs) {
		if v == verb {
			return true
		}
	}
	return false
}
