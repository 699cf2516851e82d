package state

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// PodUnreachable is a condition of a StatefulSet, and of a Deployment that recreates, that is ours: a pod of
// it is on a device that does not answer, and no other is made in its place.
const PodUnreachable appsv1.StatefulSetConditionType = "PodUnreachable"

// RolloutBlocked is a condition of a StatefulSet that is ours: its newest revision waits for a pod of an older one
// that does not become ready.
const RolloutBlocked appsv1.StatefulSetConditionType = "RolloutBlocked"

// Replicas is how many pods a workload with a number of its own asks for; 0: it has none.
func Replicas(o Object) int32 {
	n := new(int32)
	switch o := o.(type) {
	case *appsv1.Deployment:
		n = o.Spec.Replicas
	case *appsv1.StatefulSet:
		n = o.Spec.Replicas
	case *appsv1.ReplicaSet:
		n = o.Spec.Replicas
	case *corev1.ReplicationController:
		n = o.Spec.Replicas
	}
	return max(ptr.Deref(n, 1), 0)
}
