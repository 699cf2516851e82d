// Package resource is the table of what the API serves, and how objects of it are selected,
// shown and encoded: resources and their subresources, forms and media types, selections, lists
// and tables.
//
// It answers no request and changes nothing: hub/kube does the first, hub/kube/write says what a
// change comes to, hub/kube/watch streams changes. The columns of tables are hub/kube/table's.
package resource

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/state"
)

// A Resource is one kind as it is served under one path.
type Resource struct {
	schema.GroupVersionKind
	State      state.Kind // where it is kept; "" for what is not
	Plural     string
	Singular   string
	Short      []string
	Categories []string
	Namespaced bool
	Verbs      []string
	Subs       []Sub
	Generation bool // metadata.generation counts the changes of its spec
	Plain      bool // it has no protobuf form
	Empty      bool // it is a list that is always empty
	Row        *state.Row
}

// A Sub is a subresource. Without a kind of its own it is of its resource's.
type Sub struct {
	Name  string
	Kind  schema.GroupVersionKind
	Verbs []string
}

// GroupResource names the resource in errors.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// ListKind is the kind of a list of such objects.
func (r *Resource) ListKind() schema.GroupVersionKind {
	return r.GroupVersion().WithKind(r.Kind + "List")
}

// Sub returns the subresource of that name, nil if there is none.
func (r *Resource) Sub(name string) *Sub {
	i := slices.IndexFunc(r.Subs, func(s Sub) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Subs[i]
}

// Served returns every resource of a hub that has those parts, in the order of discovery.
func Served(has func(state.Feature) bool) (list []*Resource) {
	for _, k := range state.Served() {
		if !has(k.Needs) {
			continue
		}
		r := &Resource{
			GroupVersionKind: k.GroupVersionKind(), Plural: string(k.Kind), Singular: strings.ToLower(k.Name), Short: k.Short,
			Namespaced: k.Namespaced, Verbs: k.Verbs, Generation: k.Spec != nil, Plain: k.In.Plain, Empty: k.Empty(), Row: k.Row,
		}
		if k.New != nil || r.Empty {
			r.State = k.Kind
		}
		if k.All {
			r.Categories = []string{"all"}
		}
		for _, s := range k.Subs {
			if has(s.Needs) {
				r.Subs = append(r.Subs, subOf(s))
			}
		}
		list = append(list, r)
	}
	return list
}

func subOf(s state.Sub) Sub {
	out := Sub{Name: s.Name, Verbs: s.Verbs}
	if s.Group != nil {
		out.Kind = s.Group.WithKind(s.Kind)
	}
	return out
}

// TypeMeta says in an object that it is of this kind.
func (r *Resource) TypeMeta() metav1.TypeMeta {
	return metav1.TypeMeta{Kind: r.Kind, APIVersion: r.GroupVersion().String()}
}

// NodeLease tells whether the objects of a namespace are the leases that the hub keeps in
// memory: they say when each node was last heard of.
func (r *Resource) NodeLease(namespace string) bool {
	return r.State == state.Leases && namespace == corev1.NamespaceNodeLease
}

// NotFound is the answer to a request about an object that is not there.
func (r *Resource) NotFound(name string) error {
	return apierrors.NewNotFound(r.GroupResource(), name)
}

// Media returns the encodings that a resource's objects have.
func (r *Resource) Media() []string {
	if r.Plain {
		return []string{MediaJSON, MediaYAML}
	}
	return []string{MediaJSON, MediaYAML, MediaProto}
}
