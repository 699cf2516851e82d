package state

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/shared/fleet"
)

// A Kind names a kind of object by its plural, as it stands in API paths.
type Kind string

// The kinds that the hub keeps. Records is our own and is not served.
const (
	ConfigMaps           Kind = "configmaps"
	ControllerRevisions  Kind = "controllerrevisions"
	DaemonSets           Kind = "daemonsets"
	Deployments          Kind = "deployments"
	Events               Kind = "events"
	Leases               Kind = "leases"
	Namespaces           Kind = "namespaces"
	Nodes                Kind = "nodes"
	PodDisruptionBudgets Kind = "poddisruptionbudgets"
	Pods                 Kind = "pods"
	ReplicaSets          Kind = "replicasets"
	Secrets              Kind = "secrets"
	Sites                Kind = "sites"
	BoardProfiles        Kind = "boardprofiles"
	Records              Kind = "records"
)

// kinds is every kind in the order of their tables.
var kinds = [...]Kind{
	ConfigMaps, ControllerRevisions, DaemonSets, Deployments, Events, Leases, Namespaces, Nodes,
	PodDisruptionBudgets, Pods, ReplicaSets, Secrets, Sites, BoardProfiles, Records,
}

// nodesTable is the place of the nodes' table.
var nodesTable = Nodes.index()

// Kinds returns every kind, always in the same order.
func Kinds() []Kind { return kinds[:] }

func (k Kind) index() int {
	for i, have := range kinds {
		if have == k {
			return i
		}
	}
	return -1
}

// Namespaced tells whether objects of the kind live in a namespace.
func (k Kind) Namespaced() bool {
	switch k {
	case Nodes, Namespaces, Sites, BoardProfiles, Records:
		return false
	}
	return true
}

// An Object is anything that the hub keeps. One that is in a Snapshot is never
// changed: whoever wants a change makes a DeepCopy.
type Object interface {
	metav1.Object
	runtime.Object
}

// New returns an empty object of the kind.
func New(k Kind) (Object, error) {
	switch k {
	case ConfigMaps:
		return &corev1.ConfigMap{}, nil
	case ControllerRevisions:
		return &appsv1.ControllerRevision{}, nil
	case DaemonSets:
		return &appsv1.DaemonSet{}, nil
	case Deployments:
		return &appsv1.Deployment{}, nil
	case Events:
		return &corev1.Event{}, nil
	case Leases:
		return &coordv1.Lease{}, nil
	case Namespaces:
		return &corev1.Namespace{}, nil
	case Nodes:
		return &corev1.Node{}, nil
	case PodDisruptionBudgets:
		return &policyv1.PodDisruptionBudget{}, nil
	case Pods:
		return &corev1.Pod{}, nil
	case ReplicaSets:
		return &appsv1.ReplicaSet{}, nil
	case Secrets:
		return &corev1.Secret{}, nil
	case Sites:
		return &fleet.Site{}, nil
	case BoardProfiles:
		return &fleet.BoardProfile{}, nil
	case Records:
		return &Record{}, nil
	}
	return nil, fmt.Errorf("kind %q is not one that the hub keeps", k)
}

// KindOf returns the kind of an object, "" for a stranger.
func KindOf(o Object) Kind {
	switch o.(type) {
	case *corev1.ConfigMap:
		return ConfigMaps
	case *appsv1.ControllerRevision:
		return ControllerRevisions
	case *appsv1.DaemonSet:
		return DaemonSets
	case *appsv1.Deployment:
		return Deployments
	case *corev1.Event:
		return Events
	case *coordv1.Lease:
		return Leases
	case *corev1.Namespace:
		return Namespaces
	case *corev1.Node:
		return Nodes
	case *policyv1.PodDisruptionBudget:
		return PodDisruptionBudgets
	case *corev1.Pod:
		return Pods
	case *appsv1.ReplicaSet:
		return ReplicaSets
	case *corev1.Secret:
		return Secrets
	case *fleet.Site:
		return Sites
	case *fleet.BoardProfile:
		return BoardProfiles
	case *Record:
		return Records
	}
	return ""
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
