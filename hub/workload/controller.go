package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

var controllerKind = corev1.SchemeGroupVersion.WithKind("ReplicationController")

// controller keeps the pods of a ReplicationController, as those of a ReplicaSet. orphans
// are pods that it may adopt.
func (p *pass) controller(k state.Key, orphans []state.Object, turn bool) {
	rc, ok := p.s.Get(k).(*corev1.ReplicationController)
	if !ok {
		return
	}
	r := keeper{pass: p, owner: rc, kind: controllerKind, source: "replication-controller", rs: asReplicaSet(rc)}
	r.with = func(st *appsv1.ReplicaSetStatus) state.Object {
		next := rc.DeepCopy()
		next.Status = corev1.ReplicationControllerStatus{
			Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas, ReadyReplicas: st.ReadyReplicas,
			AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration,
		}
		for _, c := range st.Conditions {
			next.Status.Conditions = append(next.Status.Conditions, corev1.ReplicationControllerCondition{
				Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
		}
		return next
	}
	r.keep(k, orphans, turn)
}

// asReplicaSet is the ReplicaSet that would keep the same pods.
func asReplicaSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: rc.ObjectMeta, Spec: appsv1.ReplicaSetSpec{Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds}}
	rs.Spec.Selector = selectorOf(rc)
	if t := rc.Spec.Template; t != nil {
		rs.Spec.Template = *t
	}
	st := rc.Status
	rs.Status = appsv1.ReplicaSetStatus{
		Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas, ReadyReplicas: st.ReadyReplicas,
		AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration,
	}
	for _, c := range st.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
	}
	return rs
}

// selectorOf is nil, which selects nothing, where there is none: an empty one would
// select everything.
func selectorOf(rc *corev1.ReplicationController) *metav1.LabelSelector {
	if len(rc.Spec.Selector) == 0 {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}
}
