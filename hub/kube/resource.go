package kube

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A resource is one kind as it is served under one path.
type resource struct {
	schema.GroupVersionKind
	kind       state.Kind // where it is kept; "" for what is not
	plural     string
	singular   string
	short      []string
	categories []string
	namespaced bool
	verbs      []string
	subs       []sub
	generation bool // metadata.generation counts the changes of its spec
}

// A sub is a subresource. Without a kind of its own it is of its resource's.
type sub struct {
	name  string
	kind  schema.GroupVersionKind
	verbs []string
}

func (r *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.plural}
}

func (r *resource) listKind() schema.GroupVersionKind {
	return r.GroupVersion().WithKind(r.Kind + "List")
}

func (r *resource) sub(name string) *sub {
	i := slices.IndexFunc(r.subs, func(s sub) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return &r.subs[i]
}

var (
	everything = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	singly     = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	readOnly   = []string{"get", "list", "watch"}
	modify     = []string{"get", "patch", "update"}
	createOnly = []string{"create"}
	connect    = []string{"create", "get"}

	statusSub   = sub{name: "status", verbs: modify}
	scaleSub    = sub{name: "scale", kind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, verbs: modify}
	evictionSub = sub{name: "eviction", kind: schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, verbs: createOnly}
	bindingSub  = sub{name: "binding", kind: schema.GroupVersionKind{Version: "v1", Kind: "Binding"}, verbs: createOnly}
	logSub      = sub{name: "log", verbs: []string{"get"}}
	execSub     = sub{name: "exec", kind: schema.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"}, verbs: connect}
	attachSub   = sub{name: "attach", kind: schema.GroupVersionKind{Version: "v1", Kind: "PodAttachOptions"}, verbs: connect}
	forwardSub  = sub{name: "portforward", kind: schema.GroupVersionKind{Version: "v1", Kind: "PodPortForwardOptions"}, verbs: connect}
	proxySub    = sub{name: "proxy", kind: schema.GroupVersionKind{Version: "v1", Kind: "NodeProxyOptions"}, verbs: []string{"get"}} // the agent's log
	finalizeSub = sub{name: "finalize", verbs: []string{"update"}}
)

// Kinds that are served as the empty list. Nothing implements them, but tools ask for
// them all the time, and say so when they are not there.
const (
	services  state.Kind = "services"
	customs   state.Kind = "customresourcedefinitions"
	extension            = "apiextensions.k8s.io"
)

// empty tells whether a kind is served as the empty list.
func empty(k state.Kind) bool { return k == services || k == customs }

// served returns every resource that this hub serves, in the order of discovery.
func served(c Config) []*resource {
	all := []string{"all"}
	core := schema.GroupVersion{Version: "v1"}
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	nodes := []sub{statusSub}
	pods := []sub{statusSub, evictionSub, bindingSub}
	if c.Logs != nil {
		nodes = append(nodes, proxySub)
		pods = append(pods, logSub)
	}
	if c.Streams != nil {
		pods = append(pods, execSub, attachSub, forwardSub)
	}
	list := []*resource{
		{GroupVersionKind: core.WithKind("ConfigMap"), kind: state.ConfigMaps, short: []string{"cm"}, verbs: everything},
		{GroupVersionKind: core.WithKind("Event"), kind: state.Events, short: []string{"ev"}, verbs: everything},
		{GroupVersionKind: core.WithKind("Namespace"), kind: state.Namespaces, short: []string{"ns"}, verbs: singly, subs: []sub{statusSub, finalizeSub}},
		{GroupVersionKind: core.WithKind("Node"), kind: state.Nodes, short: []string{"no"}, verbs: everything, subs: nodes},
		{GroupVersionKind: core.WithKind("Pod"), kind: state.Pods, short: []string{"po"}, categories: all, verbs: everything, subs: pods, generation: true},
		{GroupVersionKind: core.WithKind("Secret"), kind: state.Secrets, verbs: everything},
		{GroupVersionKind: core.WithKind("Service"), kind: services, short: []string{"svc"}, categories: all, verbs: readOnly},
		{GroupVersionKind: apps.WithKind("ControllerRevision"), kind: state.ControllerRevisions, verbs: everything},
		{GroupVersionKind: apps.WithKind("DaemonSet"), kind: state.DaemonSets, short: []string{"ds"}, categories: all, verbs: everything, subs: []sub{statusSub}, generation: true},
		{GroupVersionKind: apps.WithKind("Deployment"), kind: state.Deployments, short: []string{"deploy"}, categories: all, verbs: everything, subs: []sub{statusSub, scaleSub}, generation: true},
		{GroupVersionKind: apps.WithKind("ReplicaSet"), kind: state.ReplicaSets, short: []string{"rs"}, categories: all, verbs: everything, subs: []sub{statusSub, scaleSub}, generation: true},
		{GroupVersionKind: gvk("coordination.k8s.io", "v1", "Lease"), kind: state.Leases, verbs: everything},
		{GroupVersionKind: gvk("policy", "v1", "PodDisruptionBudget"), kind: state.PodDisruptionBudgets, short: []string{"pdb"}, verbs: everything, subs: []sub{statusSub}, generation: true},
		{GroupVersionKind: gvk("events.k8s.io", "v1", "Event"), kind: state.Events, short: []string{"ev"}, verbs: everything},
		{GroupVersionKind: fleetGV.WithKind("Site"), kind: state.Sites, verbs: everything, subs: []sub{statusSub}, generation: true},
		{GroupVersionKind: fleetGV.WithKind("BoardProfile"), kind: state.BoardProfiles, short: []string{"bp"}, verbs: everything, generation: true},
		{GroupVersionKind: gvk(extension, "v1", "CustomResourceDefinition"), kind: customs, short: []string{"crd", "crds"}, verbs: readOnly},
		{GroupVersionKind: gvk("authentication.k8s.io", "v1", "SelfSubjectReview"), plural: "selfsubjectreviews", verbs: createOnly},
		{GroupVersionKind: gvk("authentication.k8s.io", "v1beta1", "SelfSubjectReview"), plural: "selfsubjectreviews", verbs: createOnly},
		{GroupVersionKind: gvk("authorization.k8s.io", "v1", "SelfSubjectAccessReview"), plural: "selfsubjectaccessreviews", verbs: createOnly},
		{GroupVersionKind: gvk("authorization.k8s.io", "v1", "SelfSubjectRulesReview"), plural: "selfsubjectrulesreviews", verbs: createOnly},
	}
	if c.Metrics != nil {
		look := []string{"get", "list"}
		list = append(list,
			&resource{GroupVersionKind: gvk("metrics.k8s.io", "v1beta1", "NodeMetrics"), plural: "nodes", verbs: look},
			&resource{GroupVersionKind: gvk("metrics.k8s.io", "v1beta1", "PodMetrics"), plural: "pods", namespaced: true, verbs: look})
	}
	for _, r := range list {
		r.singular = strings.ToLower(r.Kind)
		if r.kind != "" {
			r.plural, r.namespaced = string(r.kind), r.kind != customs && r.kind.Namespaced()
		}
	}
	return list
}

func gvk(group, version, kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

// find returns the resource that a path names, nil if there is none.
func (s *Server) find(t target) *resource {
	for _, r := range s.resources {
		if r.plural == t.resource && r.Group == t.group && r.Version == t.version {
			return r
		}
	}
	return nil
}

// plain tells whether a kind has no protobuf form: Flotilla's own have none.
func (r *resource) plain() bool { return r.Group == fleet.Group || r.Group == extension }
