package kube

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/state"
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
	plain      bool // it has no protobuf form
	empty      bool // it is a list that is always empty
	row        *state.Row
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

// served returns every resource that this hub serves, in the order of discovery.
func served(c Config) (list []*resource) {
	for _, k := range state.Served() {
		if !c.has(k.Needs) {
			continue
		}
		r := &resource{
			GroupVersionKind: k.GroupVersionKind(), plural: string(k.Kind), singular: strings.ToLower(k.Name), short: k.Short,
			namespaced: k.Namespaced, verbs: k.Verbs, generation: k.Spec != nil, plain: k.In.Plain, empty: k.Empty(), row: k.Row,
		}
		if k.New != nil || r.empty {
			r.kind = k.Kind
		}
		if k.All {
			r.categories = []string{"all"}
		}
		for _, s := range k.Subs {
			if c.has(s.Needs) {
				r.subs = append(r.subs, subOf(s))
			}
		}
		list = append(list, r)
	}
	return list
}

func subOf(s state.Sub) sub {
	out := sub{name: s.Name, verbs: s.Verbs}
	if s.Group != nil {
		out.kind = s.Group.WithKind(s.Kind)
	}
	return out
}

// has tells whether the hub has what a resource needs.
func (c Config) has(p state.Part) bool {
	switch p {
	case state.Logs:
		return c.Logs != nil
	case state.Streams:
		return c.Streams != nil
	case state.Metrics:
		return c.Metrics != nil
	}
	return true
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
