package kube

import (
	appsv1 "k8s.io/api/apps/v1"
	authnv1 "k8s.io/api/authentication/v1"
	authnv1beta1 "k8s.io/api/authentication/v1beta1"
	authzv1 "k8s.io/api/authorization/v1"
	scalev1 "k8s.io/api/autoscaling/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/shared/fleet"
)

var fleetGV = schema.GroupVersion{Group: fleet.Group, Version: fleet.Version}

// scheme knows the types of every kind that is served.
var scheme = newScheme()

// Decoders of request bodies. A strict one returns the object together with what
// was wrong with it.
var (
	strictYAML = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	strictJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})
	protoCodec = protobuf.NewSerializer(scheme, scheme)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, coordv1.AddToScheme, policyv1.AddToScheme, eventsv1.AddToScheme,
		authnv1.AddToScheme, authnv1beta1.AddToScheme, authzv1.AddToScheme, scalev1.AddToScheme, metricsv1beta1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	s.AddKnownTypes(fleetGV, &fleet.Site{}, &fleet.SiteList{}, &fleet.BoardProfile{}, &fleet.BoardProfileList{})
	metav1.AddToGroupVersion(s, fleetGV)
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return s
}
