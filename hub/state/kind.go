package state

import (
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Kind names a kind of object by its plural, as it stands in API paths.
type Kind string

// The names by which rules speak of kinds. What a kind is stands in its row alone.
const (
	ConfigMaps           Kind = "configmaps"
	ControllerRevisions  Kind = "controllerrevisions"
	CronJobs             Kind = "cronjobs"
	DaemonSets           Kind = "daemonsets"
	Deployments          Kind = "deployments"
	Events               Kind = "events"
	Jobs                 Kind = "jobs"
	Leases               Kind = "leases"
	Losses               Kind = "losses"
	Namespaces           Kind = "namespaces"
	Nodes                Kind = "nodes"
	Volumes              Kind = "persistentvolumes"
	Claims               Kind = "persistentvolumeclaims"
	PodDisruptionBudgets Kind = "poddisruptionbudgets"
	Pods                 Kind = "pods"
	PodTemplates         Kind = "podtemplates"
	ReplicaSets          Kind = "replicasets"
	Controllers          Kind = "replicationcontrollers"
	Secrets              Kind = "secrets"
	Sites                Kind = "sites"
	StatefulSets         Kind = "statefulsets"
	StorageClasses       Kind = "storageclasses"
	RuntimeClasses       Kind = "runtimeclasses"
	BoardProfiles        Kind = "boardprofiles"
	FirmwareRollouts     Kind = "firmwarerollouts"
	DeviceReports        Kind = "devicereports"
	Incidents            Kind = "incidents"
	Records              Kind = "records"
	Dismissals           Kind = "dismissals"
	Advertisements       Kind = "advertisements"
	Services             Kind = "services"
	Endpoints            Kind = "endpoints"
	EndpointSlices       Kind = "endpointslices"
	ServiceAccounts      Kind = "serviceaccounts"
	PriorityClasses      Kind = "priorityclasses"
	ResourceQuotas       Kind = "resourcequotas"
	LimitRanges          Kind = "limitranges"
	JoinRequests         Kind = "certificatesigningrequests"
)

// Kinds returns every kind, always in the same order.
func Kinds() []Kind { return names }

// Row returns what is said of the kind, nil for a stranger.
func (k Kind) Row() *Row {
	if i := k.index(); i >= 0 {
		return &kinds[i]
	}
	return nil
}

// Namespaced tells whether objects of the kind live in a namespace.
func (k Kind) Namespaced() bool {
	r := k.Row()
	return r == nil || r.Namespaced
}

// Served tells whether the API shows objects of the kind. The others are the hub's own.
func (k Kind) Served() bool {
	r := k.Row()
	return r == nil || r.Group != nil
}

// GroupVersionKind is how the API calls the kind, empty for what it does not serve.
func (k Kind) GroupVersionKind() schema.GroupVersionKind {
	if r := k.Row(); r != nil && r.Group != nil {
		return r.Group.WithKind(r.Name)
	}
	return schema.GroupVersionKind{}
}

// KindNamed returns the kind that a reference calls so ("Pod"), "" for a stranger.
func KindNamed(name string) Kind { return byName[name] }

// An Object is anything that the hub keeps. One that is in a Snapshot is never
// changed: whoever wants a change makes a DeepCopy.
type Object interface {
	metav1.Object
	runtime.Object
}

// New returns an empty object of the kind.
func New(k Kind) (Object, error) {
	if r := k.Row(); r != nil {
		return r.New(), nil
	}
	return nil, fmt.Errorf("kind %q is not one that the hub keeps", k)
}

// KindOf returns the kind of an object, "" for a stranger.
func KindOf(o Object) Kind { return byType[reflect.TypeOf(o)] }

// What is looked up all the time, made of the rows.
var (
	names, indexes, byType, byName = lookups()

	nodesTable = Nodes.index()
)

func lookups() (names []Kind, indexes map[Kind]int, byType map[reflect.Type]Kind, byName map[string]Kind) {
	indexes, byType, byName = map[Kind]int{}, map[reflect.Type]Kind{}, map[string]Kind{}
	for i, r := range kinds {
		names = append(names, r.Kind)
		indexes[r.Kind], byType[reflect.TypeOf(r.New())] = i, r.Kind
		if r.Group != nil {
			byName[r.Name] = r.Kind
		}
	}
	return names, indexes, byType, byName
}

// index is the place of the kind's row and of its table, -1 for a stranger.
func (k Kind) index() int {
	if i, ok := indexes[k]; ok {
		return i
	}
	return -1
}

// A Key names one object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// KeyOf returns the key of an object.
func KeyOf(o Object) Key { return Key{KindOf(o), o.GetNamespace(), o.GetName()} }

func (k Key) String() string {
	if k.Namespace == "" {
		return string(k.Kind) + "/" + k.Name
	}
	return string(k.Kind) + "/" + k.Namespace + "/" + k.Name
}

// path is a key's place in its kind's table: by namespace, then by name.
func path(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "\x00" + name
}
