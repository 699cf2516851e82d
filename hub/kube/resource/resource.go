// Package resource is the table of the API's resources. It also selects, shows and encodes their
// objects: subresources, forms and media types, selections, lists and tables.
//
// It answers no request and changes nothing: package kube answers, package write makes changes, and
// package watch streams them. Package table has the columns of tables.
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

// A Resource is one kind as it is served at one path.
type Resource struct {
	schema.GroupVersionKind
	State      state.Kind // kind in the state; "" if not stored
	Plural     string
	Singular   string
	Short      []string
	Categories []string
	Namespaced bool
	Verbs      []string
	Subs       []Sub
	Generation bool // metadata.generation counts changes of the spec
	Plain      bool // has no protobuf form
	Empty      bool // the list is always empty
	Row        *state.Row
}

// A Sub is a subresource. Without its own kind it has its resource's.
type Sub struct {
	Name  string
	Kind  schema.GroupVersionKind
	Verbs []string
}

// GroupResource returns the resource's name in errors.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// ListKind returns the kind of lists of its objects.
func (r *Resource) ListKind() schema.GroupVersionKind {
	return r.GroupVersion().WithKind(r.Kind + "List")
}

// Sub returns the named subresource, or nil.
func (r *Resource) Sub(name string) *Sub {
	i := slices.IndexFunc(r.Subs, func(s Sub) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Subs[i]
}

// Served returns the resources of a hub in the order of discovery. has reports whether the hub has
// a feature.
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

// TypeMeta returns the kind that objects have.
func (r *Resource) TypeMeta() metav1.TypeMeta {
	return metav1.TypeMeta{Kind: r.Kind, APIVersion: r.GroupVersion().String()}
}

// NodeLease reports whether the objects of a namespace are the nodes' leases, which the hub keeps
// in memory.
func (r *Resource) NodeLease(namespace string) bool {
	return r.State == state.Leases && namespace == corev1.NamespaceNodeLease
}

// NotFound returns the error about a missing object.
func (r *Resource) NotFound(name string) error {
	return apierrors.NewNotFound(r.GroupResource(), name)
}

// Media returns the encodings of a resource's objects.
func (r *Resource) Media() []string {
	if r.Plain {
		return []string{MediaJSON, MediaYAML}
	}
	return []string{MediaJSON, MediaYAML, MediaProto}
}
