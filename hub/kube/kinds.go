package kube

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// same tells whether writing next over live would change nothing but times in
// managedFields.
func same(live, next state.Object) bool {
	a, b := live.GetManagedFields(), next.GetManagedFields()
	if !sameManagers(a, b) {
		return false
	}
	next = resource.Shallow(next)
	next.SetManagedFields(a)
	next.SetResourceVersion(live.GetResourceVersion())
	live = resource.Shallow(live)
	live.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return equality.Semantic.DeepEqual(live, next)
}

func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		x.Time, y.Time = nil, nil
		if !equality.Semantic.DeepEqual(x, y) {
			return false
		}
	}
	return true
}
