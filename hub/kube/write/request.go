// Package write says what a request to change something comes to: creating, replacing, patching,
// applying, deleting, scaling, binding and evicting, and who owns which field.
//
// Each is a pure function from a snapshot and a moment to a Step, the changes and what is
// answered. Package write reads no request and commits nothing: hub/kube does, with the control
// loop as the only writer. What an object's fields may be is package admission's rule.
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

// A Request is a request to change an object, as far as what it comes to depends on it.
type Request struct {
	Resource  *resource.Resource
	Sub       *resource.Sub // nil: the resource itself
	Namespace string
	Name      string // "" where the object is created
	Verb      string

	User, Role string
	Allow      func(verb, resource string) bool // whether the role does
	MayCreate  func() error                     // why the user may not create such an object

	Manager         string // who owns the fields that are set
	Force           bool   // take them from others
	Dry             bool   // do everything, but change nothing
	FieldValidation string // what is to be done about unknown fields

	Settings admission.Settings
	Managers *Managers
}

// sub is the name of the subresource, "" for the resource itself.
func (r *Request) sub() string {
	if r.Sub == nil {
		return ""
	}
	return r.Sub.Name
}

// A Step is what a request comes to, on one snapshot.
type Step struct {
	Changes  []state.Change
	Result   state.Object // what is answered
	Created  bool
	Warnings []string
	Audit    string // what the audit is to say beside it
	// base are the objects that the step was made from: while they stand, so does it.
	base map[state.Key]state.Object
	// from is where it looked at all of some kinds: while they are the same, so is what it says.
	from      state.Snapshot
	consulted []state.Kind
}

// Stands tells whether the step is the same on a later snapshot.
func (st *Step) Stands(s state.Snapshot) bool {
	for k, o := range st.base {
		if s.Get(k) != o {
			return false
		}
	}
	for _, k := range st.consulted {
		if !s.SameObjects(st.from, k) {
			return false
		}
	}
	return st.base != nil
}

// Stable tells whether the step knows what it was made from: any other is made anew on each
// snapshot.
func (st *Step) Stable() bool { return st.base != nil }

// key is where the object of the request is kept.
func (r *Request) key() state.Key {
	return state.Key{Kind: r.Resource.State, Namespace: r.Namespace, Name: r.Name}
}

// live is the object of the request, nil if it is not there.
func (r *Request) live(s state.Snapshot) state.Object { return s.Get(r.key()) }

// missing is the answer where it is not there.
func (r *Request) missing() error { return r.Resource.NotFound(r.Name) }

// otherThan refuses what is meant for an object of that name with another UID.
func (r *Request) otherThan(live state.Object, uid types.UID) error {
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

// why is the sentence that tells of a write.
func (r *Request) why(verb string, o state.Object) string {
	what := r.Resource.Singular
	if r.Sub != nil {
		what = r.Sub.Name + " of " + what
	}
	return fmt.Sprintf("%s %s %s: asked by %s", verb, what, state.Display(o), r.User)
}

var errModified = errors.New(
	"the object has been modified; please apply your changes to the latest version and try again")

// anyVersion tells whether the resourceVersion of an object that is sent asks for none: Kubernetes
// reads it as a number, and none of an object is 0.
func anyVersion(rv string) bool { return rv == "" || rv == "0" }

// Place checks an object's name and namespace against the path, and fills in
// what the path says.
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
			if r.Verb == "update" { // what is sent takes the whole place: it has to say whose
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
