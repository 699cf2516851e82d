package resource

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"flotilla.dev/hub/state"
)

// Scheme has the types of every served kind.
var Scheme = NewScheme()

// Decoders of request bodies. A strict decoder returns the object together with a strict-decoding
// error.
var (
	StrictJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, Scheme, Scheme,
		json.SerializerOptions{Strict: true})
	ProtoCodec = protobuf.NewSerializer(Scheme, Scheme)
)

// NewScheme returns the types of every served kind.
func NewScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, g := range state.Groups() {
		if g.AddToScheme != nil {
			utilruntime.Must(g.AddToScheme(s))
		}
	}
	for _, r := range state.Served() {
		if r.List != nil { // the kind is in the hub's own group
			metav1.AddToGroupVersion(s, r.In.GroupVersion)
			s.AddKnownTypeWithName(r.GroupVersionKind(), r.New())
			s.AddKnownTypeWithName(r.In.WithKind(r.Name+"List"), r.List())
		}
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	s.AddKnownTypes(metav1.SchemeGroupVersion, &metav1.DeleteOptions{}) // each group has this kind too
	return s
}
