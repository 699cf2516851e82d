package state

import (
	"fmt"
	"reflect"
	"slices"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	authnv1 "k8s.io/api/authentication/v1"
	authnv1beta1 "k8s.io/api/authentication/v1beta1"
	authzv1 "k8s.io/api/authorization/v1"
	scalev1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	certv1 "k8s.io/api/certificates/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/shared/fleet"
)

// A Kind is the plural name of a kind, as in API paths.
type Kind string

// The kinds that rules name. All other facts about a kind are in its Row.
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
	AgentRollouts        Kind = "agentrollouts"
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

// Kinds returns every kind in a fixed order.
func Kinds() []Kind { return names }

// Row returns the row of the kind, nil for an unknown kind.
func (k Kind) Row() *Row {
	if i := k.index(); i >= 0 {
		return &kinds[i]
	}
	return nil
}

// Namespaced tells whether objects of the kind have a namespace.
func (k Kind) Namespaced() bool {
	r := k.Row()
	return r == nil || r.Namespaced
}

// Served tells whether the API serves the kind. All other kinds are internal to the hub.
func (k Kind) Served() bool {
	r := k.Row()
	return r == nil || r.Group != nil
}

// GroupVersionKind returns the kind's name in the API, empty for an internal kind.
func (k Kind) GroupVersionKind() schema.GroupVersionKind {
	if r := k.Row(); r != nil && r.Group != nil {
		return r.Group.WithKind(r.Name)
	}
	return schema.GroupVersionKind{}
}

// KindNamed returns the kind with the singular name ("Pod"), "" if it is unknown.
func KindNamed(name string) Kind { return byName[name] }

// An Object is anything that the hub stores. An object in a Snapshot never changes: to change it,
// make a DeepCopy.
type Object interface {
	metav1.Object
	runtime.Object
}

// New returns an empty object of the kind.
func New(k Kind) (Object, error) {
	if r := k.Row(); r != nil {
		return r.New(), nil
	}
	return nil, fmt.Errorf("unknown kind %q", k)
}

// KindOf returns the kind of an object, "" if it is unknown.
func KindOf(o Object) Kind { return byType[reflect.TypeOf(o)] }

// Lookup tables made from the rows.
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

// index returns the index of the kind's row and table, -1 for an unknown kind.
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

// path returns an object's key in the table of its kind: namespace, then name.
func path(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "\x00" + name
}

// The groups of the API.
var (
	core           = Group{GroupVersion: corev1.SchemeGroupVersion, AddToScheme: corev1.AddToScheme}
	apps           = Group{GroupVersion: appsv1.SchemeGroupVersion, AddToScheme: appsv1.AddToScheme}
	batch          = Group{GroupVersion: batchv1.SchemeGroupVersion, AddToScheme: batchv1.AddToScheme}
	certificates   = Group{GroupVersion: certv1.SchemeGroupVersion, AddToScheme: certv1.AddToScheme}
	coordination   = Group{GroupVersion: coordv1.SchemeGroupVersion, AddToScheme: coordv1.AddToScheme}
	discovery      = Group{GroupVersion: discoveryv1.SchemeGroupVersion, AddToScheme: discoveryv1.AddToScheme}
	networking     = Group{GroupVersion: networkingv1.SchemeGroupVersion, AddToScheme: networkingv1.AddToScheme}
	runtimes       = Group{GroupVersion: nodev1.SchemeGroupVersion, AddToScheme: nodev1.AddToScheme}
	policies       = Group{GroupVersion: policyv1.SchemeGroupVersion, AddToScheme: policyv1.AddToScheme}
	scheduling     = Group{GroupVersion: schedulingv1.SchemeGroupVersion, AddToScheme: schedulingv1.AddToScheme}
	storage        = Group{GroupVersion: storagev1.SchemeGroupVersion, AddToScheme: storagev1.AddToScheme}
	newEvents      = Group{GroupVersion: eventsv1.SchemeGroupVersion, AddToScheme: eventsv1.AddToScheme}
	flotilla       = Group{GroupVersion: schema.GroupVersion{Group: fleet.Group, Version: fleet.Version}, Plain: true}
	extensions     = Group{GroupVersion: schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}, Plain: true}
	authentication = Group{GroupVersion: authnv1.SchemeGroupVersion, AddToScheme: authnv1.AddToScheme}
	oldReview      = Group{GroupVersion: authnv1beta1.SchemeGroupVersion, AddToScheme: authnv1beta1.AddToScheme}
	authorization  = Group{GroupVersion: authzv1.SchemeGroupVersion, AddToScheme: authzv1.AddToScheme}
	usage          = Group{GroupVersion: metricsv1beta1.SchemeGroupVersion, AddToScheme: metricsv1beta1.AddToScheme}
	// only for subresources
	autoscaling = Group{GroupVersion: scalev1.SchemeGroupVersion, AddToScheme: scalev1.AddToScheme}
)

// groups is every group in the order of discovery.
var groups = []*Group{
	&core, &apps, &batch, &certificates, &coordination, &discovery, &networking, &runtimes, &policies, &scheduling,
	&storage, &newEvents, &flotilla, &extensions,
	&authentication, &oldReview, &authorization, &usage, &autoscaling,
}

// Groups returns every served version of a group.
func Groups() []*Group { return groups }

// Kinds that the API serves but does not store. A kind with Absent is served as an empty list:
// kubectl and other tools list it often, and fail on a 404.
var notStored = [...]Row{
	{Kind: "ingresses", Group: &networking, Name: "Ingress", Namespaced: true, Short: []string{"ing"}, Verbs: readOnly,
		Viewer: readOnly,
		Absent: "ingresses are not implemented, as there are no services: the list is always empty; publish a pod's port " +
			"with hostPort"},
	{Kind: "customresourcedefinitions", Group: &extensions, Name: "CustomResourceDefinition",
		Short: []string{"crd", "crds"}, Verbs: readOnly, Viewer: readOnly,
		Absent: "custom resources are not implemented: the list is always empty"},

	{
		Kind: "selfsubjectreviews", Group: &authentication, Also: &oldReview, Name: "SelfSubjectReview", Verbs: createOnly,
		Viewer: createOnly,
	},
	{
		Kind: "selfsubjectaccessreviews", Group: &authorization, Name: "SelfSubjectAccessReview", Verbs: createOnly,
		Viewer: createOnly,
	},
	{
		Kind: "selfsubjectrulesreviews", Group: &authorization, Name: "SelfSubjectRulesReview", Verbs: createOnly,
		Viewer: createOnly,
	},
	{Kind: "subjectaccessreviews", Group: &authorization, Name: "SubjectAccessReview", Verbs: createOnly},
	{
		Kind: "localsubjectaccessreviews", Group: &authorization, Name: "LocalSubjectAccessReview", Namespaced: true,
		Verbs: createOnly,
	},

	{Kind: Nodes, Group: &usage, Name: "NodeMetrics", Needs: Metrics, Verbs: []string{"get", "list"}},
	{Kind: Pods, Group: &usage, Name: "PodMetrics", Namespaced: true, Needs: Metrics, Verbs: []string{"get", "list"}},
}

// A Resource is a kind under one of its API groups.
type Resource struct {
	*Row
	In *Group
}

// GroupVersionKind returns the resource's name in the API.
func (r Resource) GroupVersionKind() schema.GroupVersionKind { return r.In.WithKind(r.Name) }

// Empty tells whether the resource is served as an empty list.
func (r Resource) Empty() bool { return r.Absent != "" }

// Served returns all served resources in the order of discovery.
func Served() (all []Resource) {
	for _, rows := range [][]Row{kinds[:], notStored[:]} {
		for i := range rows {
			for _, in := range []*Group{rows[i].Group, rows[i].Also} {
				if in != nil {
					all = append(all, Resource{&rows[i], in})
				}
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return slices.Index(groups, all[i].In) < slices.Index(groups, all[j].In) })
	return all
}
