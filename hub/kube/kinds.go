package kube

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// setStatus gives an object the status of another of its kind, nil for none.
// Kinds without the subresource keep theirs.
func setStatus(o, from state.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		o.Status = status(from, func(p *corev1.Pod) corev1.PodStatus { return p.Status })
	case *corev1.Node:
		o.Status = status(from, func(n *corev1.Node) corev1.NodeStatus { return n.Status })
	case *corev1.Namespace:
		o.Status = status(from, func(n *corev1.Namespace) corev1.NamespaceStatus { return n.Status })
	case *appsv1.Deployment:
		o.Status = status(from, func(d *appsv1.Deployment) appsv1.DeploymentStatus { return d.Status })
	case *appsv1.ReplicaSet:
		o.Status = status(from, func(r *appsv1.ReplicaSet) appsv1.ReplicaSetStatus { return r.Status })
	case *appsv1.DaemonSet:
		o.Status = status(from, func(d *appsv1.DaemonSet) appsv1.DaemonSetStatus { return d.Status })
	case *policyv1.PodDisruptionBudget:
		o.Status = status(from, func(b *policyv1.PodDisruptionBudget) policyv1.PodDisruptionBudgetStatus { return b.Status })
	case *fleet.Site:
		o.Status = status(from, func(s *fleet.Site) fleet.SiteStatus { return s.Status })
	}
}

// status returns the status of an object, deeply copied, or the zero one.
func status[T any, O interface {
	state.Object
	DeepCopy() O
}](from state.Object, get func(O) T) (zero T) {
	if o, ok := from.(O); ok {
		return get(o.DeepCopy())
	}
	return zero
}

// specOf returns what metadata.generation counts the changes of.
func specOf(o state.Object) any {
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Spec
	case *appsv1.Deployment:
		// Kubernetes counts a deployment's annotations too.
		return []any{o.Spec, o.Annotations}
	case *appsv1.ReplicaSet:
		return o.Spec
	case *appsv1.DaemonSet:
		return o.Spec
	case *policyv1.PodDisruptionBudget:
		return o.Spec
	case *fleet.Site:
		return o.Spec
	case *fleet.BoardProfile:
		return o.Spec
	}
	return nil
}

// same tells whether writing next over live would change nothing but times in
// managedFields.
func same(live, next state.Object) bool {
	a, b := live.GetManagedFields(), next.GetManagedFields()
	if !sameManagers(a, b) {
		return false
	}
	next = shallow(next)
	next.SetManagedFields(a)
	next.SetResourceVersion(live.GetResourceVersion())
	live = shallow(live)
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
