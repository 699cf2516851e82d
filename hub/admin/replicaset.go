package admin

import (
	"cmp"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// bareReplicaSets are those that no Deployment has made: of the others the Deployment tells.
func bareReplicaSets(found []*appsv1.ReplicaSet) (bare []*appsv1.ReplicaSet) {
	for _, rs := range found {
		if metav1.GetControllerOfNoCopy(rs) == nil {
			bare = append(bare, rs)
		}
	}
	return bare
}

func replicaSetRow(rs *appsv1.ReplicaSet, now time.Time) workloadRow {
	wanted := state.Replicas(rs)
	st := rs.Status
	r := workloadRow{
		Name: rs.Name, Namespace: rs.Namespace, Href: ownerHref(rs.Namespace, "replicaset", rs.Name), Ready: st.ReadyReplicas, Wanted: wanted,
		Updated: st.FullyLabeledReplicas, Available: st.AvailableReplicas, Images: images(rs.Spec.Template), Age: at(rs.CreationTimestamp.Time, now), Pill: pill{"ok", "Complete"},
	}
	for _, c := range st.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			r.Pill, r.Why = pill{"bad", "Stuck"}, cmp.Or(c.Message, c.Reason)
			return r
		}
	}
	switch {
	case wanted == 0 && st.Replicas == 0:
		r.Pill = pill{"idle", "Scaled to none"}
	case st.AvailableReplicas < wanted:
		r.Pill, r.Why = pill{"warn", "Incomplete"}, fmt.Sprintf("%d of %d pods are available.", st.AvailableReplicas, wanted)
	}
	return r
}
