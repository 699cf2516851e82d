package state

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Large is how many objects are walked whenever something becomes of one. More are walked once in a
// while: the hub would do nothing else while they are all replaced.
const Large = 1000

// PodsOf is how many pods a workload has, as its status says: of a Job at most, as those that have
// ended are among them for as long as they are kept.
func PodsOf(s Snapshot, o Object) int {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return int(o.Status.Replicas)
	case *appsv1.ReplicaSet:
		return int(o.Status.Replicas)
	case *corev1.ReplicationController:
		return int(o.Status.Replicas)
	case *appsv1.StatefulSet:
		return int(o.Status.Replicas)
	case *appsv1.DaemonSet:
		return int(o.Status.CurrentNumberScheduled)
	case *batchv1.Job:
		st := &o.Status
		return min(int(st.Active)+int(ptr.Deref(st.Terminating, 0))+int(st.Succeeded)+int(st.Failed), s.Len(Pods))
	}
	return 0
}
