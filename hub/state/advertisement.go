package state

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Of what the hub says of itself, and of what it publishes in every namespace.
const (
	HubName        = "hub"              // of the only advertisement
	APIService     = "kubernetes"       // in the namespace default
	DefaultAccount = "default"          // in every namespace
	RootConfigMap  = "kube-root-ca.crt" // in every namespace
	RootKey        = "ca.crt"           // of its data
)

// An Advertisement is what the hub says of itself, and shows to nobody as it is: where
// its API is, and by which authority to know it. There is one.
type Advertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Address string `json:"address,omitempty"` // IPv4 or IPv6; "": none is known
	Port    int32  `json:"port,omitempty"`
	Root    string `json:"root,omitempty"` // certificates, PEM
}

// DeepCopyObject implements runtime.Object.
func (a *Advertisement) DeepCopyObject() runtime.Object {
	out := *a
	a.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// Advertisement returns what the hub says of itself, nil if nothing yet.
func (s Snapshot) Advertisement() *Advertisement {
	return get[*Advertisement](s, Key{Kind: Advertisements, Name: HubName})
}
