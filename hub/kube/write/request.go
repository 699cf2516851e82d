// Package write computes the changes of a request: create, replace, patch, apply, delete, scale,
// bind and evict. It also computes managedFields.
//
// Each change is a pure function from a snapshot and a time to a Step, which has the changes and
// the answer. The package reads no requests and stores nothing: package kube does both, through the
// control loop. Package admission has the rules for objects' fields.
package write

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// A Request has everything that a change depends on.
type Request struct {
	Resource  *resource.Resource
	Sub       *resource.Sub // nil for the resource itself
	Namespace string
	Name      string // "" for a creation
	Verb      string

	User, Role string
	Allow      func(verb, resource string) bool // whether the role allows a verb on a resource
	MayCreate  func() error                     // why the user may not create such an object

	Manager         string // manager of the changed fields
	Force           bool   // takes fields over from other managers
	Dry             bool   // a dry run changes nothing
	FieldValidation string // how unknown fields are handled

	Settings admission.Settings
	Managers *Managers
}

// sub returns the name of the subresource, or "" for the resource itself.
func (r *Request) sub() string {
	if r.Sub == nil {
		return ""
	}
	return r.Sub.Name
}

// A Step is the result of a request on one snapshot.
type Step struct {
	Changes  []state.Change
	Result   state.Object // the object of the answer
	Created  bool
	Warnings []string
	Audit    string // details for the audit
	// dependsOn has the objects that the step has read.
	dependsOn map[state.Key]state.Object
	// from is the snapshot in which the step has read all objects of the consulted kinds.
	from      state.Snapshot
	consulted []state.Kind
}

// ValidOn reports whether the step would be the same on a later snapshot.
func (st *Step) ValidOn(s state.Snapshot) bool {
	for k, o := range st.dependsOn {
		if s.Get(k) != o {
			return false
		}
	}
	for _, k := range st.consulted {
		if !s.SameObjects(st.from, k) {
			return false
		}
	}
	return st.dependsOn != nil
}

// Stable reports whether the step's dependencies are known. Otherwise the step is made again on
// each snapshot.
func (st *Step) Stable() bool { return st.dependsOn != nil }

// key returns the key of the request's object.
func (r *Request) key() state.Key {
	return state.Key{Kind: r.Resource.State, Namespace: r.Namespace, Name: r.Name}
}

// live returns the request's object, or nil if it does not exist.
func (r *Request) live(s state.Snapshot) state.Object { return s.Get(r.key()) }

// missing returns NotFound for the request's object.
func (r *Request) missing() error { return r.Resource.NotFound(r.Name) }

// checkUID refuses a request whose UID differs from the object's.
func (r *Request) checkUID(live state.Object, uid types.UID) error {
	if uid == "" || uid == live.GetUID() {
		return nil
	}
	//lint:ignore ST1005 the words of Kubernetes
	return apierrors.NewConflict(r.Resource.GroupResource(), r.Name, fmt.Errorf(
		"Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, live.GetUID()))
}

func (r *Request) invalid(errs ...*field.Error) error {
	return apierrors.NewInvalid(r.Resource.GroupVersionKind.GroupKind(), r.Name, errs)
}

// reason returns the reason that is stored with the changes.
func (r *Request) reason(verb string, o state.Object) string {
	what := r.Resource.Singular
	if r.Sub != nil {
		what = r.Sub.Name + " of " + what
	}
	return fmt.Sprintf("%s %s %s: asked by %s", verb, what, state.Display(o), r.User)
}

var errModified = errors.New(
	"the object has been modified; please apply your changes to the latest version and try again")

// anyVersion reports whether a resourceVersion matches every version. Kubernetes parses it as a
// number, so "" equals "0".
func anyVersion(rv string) bool { return rv == "" || rv == "0" }

// Place checks an object's name and namespace against the path, and sets missing ones.
func (r *Request) Place(o state.Object) error {
	if r.Resource.Namespaced {
		switch o.GetNamespace() {
		case "":
			o.SetNamespace(r.Namespace)
		case r.Namespace:
		default:
			return apierrors.NewBadRequest(
				"the namespace of the provided object does not match the namespace sent on the request")
		}
	} else {
		o.SetNamespace("")
	}
	if r.Name != "" {
		switch o.GetName() {
		case "":
			if r.Verb == "update" { // the object of an update must have its name
				return apierrors.NewBadRequest(fmt.Sprintf(
					"the name of the object (%s based on URL) was undeterminable: name must be provided", r.Name))
			}
			o.SetName(r.Name)
		case r.Name:
		default:
			return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)",
				o.GetName(), r.Name))
		}
	}
	return nil
}
