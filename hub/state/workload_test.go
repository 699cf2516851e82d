package state

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsOfAWorkload(t *testing.T) {
	s := Empty("x", time.Time{})
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		s, _ = Apply(s, []Change{Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}, "")})
	}
	for _, c := range []struct {
		o    Object
		want int
	}{
		{&appsv1.Deployment{Status: appsv1.DeploymentStatus{Replicas: 3}}, 3},
		{&appsv1.ReplicaSet{Status: appsv1.ReplicaSetStatus{Replicas: 3}}, 3},
		{&corev1.ReplicationController{Status: corev1.ReplicationControllerStatus{Replicas: 3}}, 3},
		{&appsv1.StatefulSet{Status: appsv1.StatefulSetStatus{Replicas: 3}}, 3},
		{&appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{CurrentNumberScheduled: 3}}, 3},
		{&batchv1.Job{Status: batchv1.JobStatus{Active: 1, Terminating: new(int32(1)), Succeeded: 2, Failed: 1}}, 5},
		{&batchv1.Job{Status: batchv1.JobStatus{Succeeded: 100_000}}, 7}, // most of its pods were removed
		{&corev1.Pod{}, 0},
		{nil, 0},
	} {
		if got := PodsOf(s, c.o); got != c.want {
			t.Errorf("%T has %d pods, want %d", c.o, got, c.want)
		}
	}
}
