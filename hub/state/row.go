package state

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Row is all that sets a kind apart from the others, in one place: the store, the
// API with its discovery, documents and scheme, the roles, the events and the garbage
// collection derive from it. What a kind's objects mean is said by rules elsewhere.
type Row struct {
	Kind       Kind   // its plural
	Group      *Group // under which it is kept; nil: the hub's own, which is not served
	Name       string // as the API calls one, such as Pod
	Also       *Group // another that shows it too, in that one's own shape
	Namespaced bool
	Absent     string  // why none is ever there: it is served as an empty list
	Published  string  // why nobody but the hub makes or changes one
	Needs      Feature // what a hub must have to serve it
	Short      []string
	All        bool // `kubectl get all` shows it
	Verbs      []string
	Subs       []Sub

	// What roles may do to it; an operator may also what a viewer may, an
	// administrator everything.
	Viewer, Operator []string

	CreateOnUpdate bool // an update of one that is not there creates it
	Conditional    bool // an update must say which version it replaces
	Orphans        bool // who deletes one and says nothing of what it owns keeps that
	Sealed         bool // it is unreadable in the database and in backups
	Expendable     bool // new ones are left out while the disk is full
	Proto          bool // it is stored in Kubernetes' protobuf form: there may be very many, all read at a start
	Consulted      bool // what is made is completed or refused by what they say

	New      func() Object                        // nil: objects of it are not kept
	Default  func(Object)                         // gives a new one what follows from its uid
	List     func() runtime.Object                // where the group has no scheme of its own
	Status   func(o, from Object)                 // gives o the status of another, nil for none
	Spec     func(Object) any                     // what metadata.generation counts the changes of
	Pod      func(Object) *corev1.PodSpec         // of what runs as it is
	Template func(Object) *corev1.PodTemplateSpec // of what makes pods
	Fields   map[string]func(Object) string       // what can be selected by, beside name and namespace
}

// A Sub is a subresource.
type Sub struct {
	Name  string
	Group *Group // nil: what it takes and gives is of its resource's kind
	Kind  string
	Needs Feature
	Verbs []string
	Below bool // with all paths below it

	Viewer, Operator []string // as in a Row
}

// A Feature is something that not every hub has.
type Feature string

// The parts.
const (
	Logs    Feature = "logs"
	Streams Feature = "streams"
	Metrics Feature = "metrics"
)

// A Group is a version of an API group.
type Group struct {
	schema.GroupVersion
	AddToScheme func(*runtime.Scheme) error // its types in Go; nil: those of its rows
	Plain       bool                        // its kinds have no protobuf form
}

// Row fields of the same form for many kinds.
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

// statusSub is the status that the hub or a device writes; operators may where it
// is a device's.
func statusSub(operator ...string) Sub {
	return Sub{Name: "status", Verbs: modify, Viewer: getOnly, Operator: operator}
}

// scaleSub is how many pods a workload wants.
func scaleSub() Sub {
	return Sub{Name: "scale", Group: &autoscaling, Kind: "Scale", Verbs: modify, Viewer: getOnly, Operator: change}
}

// fresh makes an empty object of type T.
func fresh[T any, P interface {
	*T
	Object
}]() Object {
	return P(new(T))
}

// status copies what a kind keeps where at says.
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

// of lets a function of a kind's own type be asked about any object of the kind.
func of[P Object, V any](f func(P) V) func(Object) V {
	return func(o Object) V { return f(o.(P)) }
}

// SetStatus gives an object the status of another of its kind, nil for none. Kinds
// without a status keep what they have.
func SetStatus(o, from Object) {
	if r := KindOf(o).Row(); r != nil && r.Status != nil {
		r.Status(o, from)
	}
}

// SpecOf returns what metadata.generation counts the changes of, nil for kinds
// that have no generation.
func SpecOf(o Object) any {
	if r := KindOf(o).Row(); r != nil && r.Spec != nil {
		return r.Spec(o)
	}
	return nil
}

// TemplateOf returns what a workload makes pods of, nil if it makes none.
func TemplateOf(o Object) *corev1.PodTemplateSpec {
	if r := KindOf(o).Row(); r != nil && r.Template != nil {
		return r.Template(o)
	}
	return nil
}

// PodSpecOf returns the pod spec in an object, its own or that of its template; nil
// if it has none.
func PodSpecOf(o Object) *corev1.PodSpec {
	if r := KindOf(o).Row(); r != nil && r.Pod != nil {
		return r.Pod(o)
	}
	if t := TemplateOf(o); t != nil {
		return &t.Spec
	}
	return nil
}
