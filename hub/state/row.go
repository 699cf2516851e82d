package state

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Row holds the properties of one kind. The store, the API with its discovery and scheme, the
// roles, the events and the garbage collection derive from it. The deciders define the meaning of a
// kind's objects.
type Row struct {
	Kind       Kind   // plural name
	Group      *Group // its API group; nil: internal to the hub, not served
	Name       string // singular name in the API, such as Pod
	Also       *Group // a second group that serves the kind in its own form
	Namespaced bool
	Absent     string  // why the API serves the kind only as an empty list
	Published  string  // why only the hub writes objects of the kind
	Needs      Feature // the feature without which a hub does not serve the kind
	Short      []string
	All        bool // part of `kubectl get all`
	Verbs      []string
	Subs       []Sub

	// The verbs of the roles. An operator also has a viewer's verbs; an administrator has all
	// verbs.
	Viewer, Operator []string

	CreateOnUpdate bool // an update of a missing object creates it
	Conditional    bool // an update must have a resourceVersion
	Orphans        bool // by default, deleting an object keeps its dependents
	Sealed         bool // encrypted in the database and in backups
	Expendable     bool // new objects are not stored while the disk is full
	Proto          bool // stored as protobuf, because a start reads all of them and there may be very many
	Consulted      bool // admission reads objects of the kind to complete or refuse other objects

	New      func() Object                        // nil: the kind is not stored
	Default  func(Object)                         // sets a new object's fields that depend on its uid
	List     func() runtime.Object                // for groups without a scheme of their own
	Status   func(o, from Object)                 // copies the status of from; nil clears it
	Spec     func(Object) any                     // the part of an object that metadata.generation covers
	Pod      func(Object) *corev1.PodSpec         // the pod spec of an object that is itself a pod
	Template func(Object) *corev1.PodTemplateSpec // the template of an object that creates pods
	Fields   map[string]func(Object) string       // field selectors beside name and namespace
}

// A Sub is a subresource.
type Sub struct {
	Name  string
	Group *Group // nil: the group of the resource
	Kind  string
	Needs Feature
	Verbs []string
	Below bool // the API serves all paths below the subresource

	Viewer, Operator []string // as in a Row
}

// A Feature is an optional ability of a hub.
type Feature string

// The features.
const (
	Logs    Feature = "logs"
	Streams Feature = "streams"
	Metrics Feature = "metrics"
)

// A Group is a version of an API group.
type Group struct {
	schema.GroupVersion
	AddToScheme func(*runtime.Scheme) error // registers its Go types; nil: the rows' types
	Plain       bool                        // its kinds have no protobuf form
}

// Row fields that many kinds share.
var (
	everything = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	singly     = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	readOnly   = []string{"get", "list", "watch"}
	amend      = []string{"get", "list", "patch", "update", "watch"}
	endOnly    = []string{"delete", "deletecollection", "get", "list", "watch"}
	deletion   = []string{"delete", "deletecollection"}
	modify     = []string{"get", "patch", "update"}
	connect    = []string{"create", "get"}
	ask        = []string{"create", "delete", "get", "patch", "update"}
	getOnly    = []string{"get"}
	createOnly = []string{"create"}
	updateOnly = []string{"update"}
	change     = []string{"patch", "update"}
	write      = []string{"create", "delete", "deletecollection", "patch", "update"}
)

// statusSub is the status subresource, which the hub or a device writes. operator are the verbs of
// operators, for kinds whose status a device writes.
func statusSub(operator ...string) Sub {
	return Sub{Name: "status", Verbs: modify, Viewer: getOnly, Operator: operator}
}

// scaleSub is the scale subresource of a workload.
func scaleSub() Sub {
	return Sub{Name: "scale", Group: &autoscaling, Kind: "Scale", Verbs: modify, Viewer: getOnly, Operator: change}
}

// fresh returns an empty object of type T.
func fresh[T any, P interface {
	*T
	Object
}]() Object {
	return P(new(T))
}

// status returns a Row.Status that copies the field to which at points.
func status[P interface {
	Object
	DeepCopy() P
}, S any](at func(P) *S) func(o, from Object) {
	return func(o, from Object) {
		var s S
		if from, ok := from.(P); ok {
			s = *at(from.DeepCopy())
		}
		*at(o.(P)) = s
	}
}

// of turns a function on a kind's own type into one on any Object.
func of[P Object, V any](f func(P) V) func(Object) V {
	return func(o Object) V { return f(o.(P)) }
}

// SetStatus copies the status of from to o; nil clears it. Kinds without a status do not change.
func SetStatus(o, from Object) {
	if r := KindOf(o).Row(); r != nil && r.Status != nil {
		r.Status(o, from)
	}
}

// SpecOf returns the part of an object that metadata.generation covers, nil for kinds without a
// generation.
func SpecOf(o Object) any {
	if r := KindOf(o).Row(); r != nil && r.Spec != nil {
		return r.Spec(o)
	}
	return nil
}

// TemplateOf returns the pod template of a workload, nil for other objects.
func TemplateOf(o Object) *corev1.PodTemplateSpec {
	if r := KindOf(o).Row(); r != nil && r.Template != nil {
		return r.Template(o)
	}
	return nil
}

// PodSpecOf returns the pod spec of an object or of its template, nil if it has none.
func PodSpecOf(o Object) *corev1.PodSpec {
	if r := KindOf(o).Row(); r != nil && r.Pod != nil {
		return r.Pod(o)
	}
	if t := TemplateOf(o); t != nil {
		return &t.Spec
	}
	return nil
}
