package diagnose

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A Condition is a condition of any kind of object.
type Condition struct {
	Type            string
	Status          corev1.ConditionStatus
	Reason, Message string
	Since           metav1.Time
}

// Conditions returns the conditions of a node, a pod or a workload.
func Conditions(o state.Object) (all []Condition) {
	add := func(t string, status corev1.ConditionStatus, reason, message string, since metav1.Time) {
		all = append(all, Condition{t, status, reason, message, since})
	}
	switch o := o.(type) {
	case *corev1.Node:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	case *corev1.Pod:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	case *appsv1.Deployment:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	case *appsv1.StatefulSet:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	case *appsv1.DaemonSet:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	case *appsv1.ReplicaSet:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	case *corev1.ReplicationController:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	case *batchv1.Job:
		for _, c := range o.Status.Conditions {
			add(string(c.Type), c.Status, c.Reason, c.Message, c.LastTransitionTime)
		}
	}
	return all
}
