package diagnose

import (
	"cmp"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

// A Stage is the state of a workload's pods.
type Stage string

// The stages. Stuck is a problem; Incomplete and the two stages that change pods are in progress.
const (
	Complete    Stage = "Complete"
	None        Stage = "None" // the workload wants no pod
	Paused      Stage = "Paused"
	Incomplete  Stage = "Incomplete" // pods are missing
	RollingOut  Stage = "Rolling out"
	ScalingDown Stage = "Scaling down"
	Stuck       Stage = "Stuck"
)

// A Progress is how many pods a workload wants and has.
type Progress struct {
	Stage
	Wanted, Ready, Available int32
	Updated, Target          int32  // pods of the newest version, and how many are wanted
	Extra                    int32  // surplus pods
	Condition, Message       string // if Stuck: the condition and its message
}

// stuck holds the conditions that mean Stuck, with their status.
var stuck = map[string]corev1.ConditionStatus{
	string(appsv1.DeploymentProgressing):    corev1.ConditionFalse,
	string(appsv1.ReplicaSetReplicaFailure): corev1.ConditionTrue,
	string(state.PodUnreachable):            corev1.ConditionTrue,
	string(state.RolloutBlocked):            corev1.ConditionTrue,
}

// IsStuck tells whether a condition of a workload means that it makes no progress.
func IsStuck(c Condition) bool { return c.Status != "" && stuck[c.Type] == c.Status }

// ProgressOf returns the progress of a workload that keeps pods running. For Jobs see JobProgress,
// for CronJobs CronJobProgress.
func ProgressOf(o state.Object) (p Progress) {
	var all int32
	unseen, paused, ordered, rolls := false, false, false, false
	switch o := o.(type) {
	case *appsv1.Deployment:
		st := o.Status
		p.Wanted, p.Ready, p.Available, p.Updated, all = state.Replicas(o), st.ReadyReplicas, st.AvailableReplicas,
			st.UpdatedReplicas, st.Replicas
		p.Target, unseen, paused, rolls = p.Wanted, st.ObservedGeneration < o.Generation, o.Spec.Paused, true
	case *appsv1.StatefulSet:
		st := o.Status
		p.Wanted, p.Ready, p.Available, p.Updated, all = state.Replicas(o), st.ReadyReplicas, st.AvailableReplicas,
			st.UpdatedReplicas, st.Replicas
		p.Target, unseen, ordered = p.Wanted, st.ObservedGeneration < o.Generation, true
		if u := o.Spec.UpdateStrategy; u.Type == appsv1.OnDeleteStatefulSetStrategyType {
			p.Target = 0
		} else if u.RollingUpdate != nil {
			p.Target -= min(ptr.Deref(u.RollingUpdate.Partition, 0), p.Wanted)
		}
	case *appsv1.DaemonSet:
		st := o.Status
		p.Wanted, p.Ready, p.Available, p.Updated = st.DesiredNumberScheduled, st.NumberReady, st.NumberAvailable,
			st.UpdatedNumberScheduled
		p.Target, all = p.Wanted, p.Wanted
	case *appsv1.ReplicaSet:
		st := o.Status
		p.Wanted, p.Ready, p.Available, p.Updated, all = state.Replicas(o), st.ReadyReplicas, st.AvailableReplicas,
			st.FullyLabeledReplicas, st.Replicas
	case *corev1.ReplicationController:
		st := o.Status
		p.Wanted, p.Ready, p.Available, p.Updated, all = state.Replicas(o), st.ReadyReplicas, st.AvailableReplicas,
			st.FullyLabeledReplicas, st.Replicas
	default:
		return p
	}
	p.Extra = max(0, all-p.Wanted)
	for _, c := range Conditions(o) {
		if IsStuck(c) {
			p.Stage, p.Condition, p.Message = Stuck, c.Type, cmp.Or(c.Message, c.Reason)
			return p
		}
	}
	switch {
	case paused:
		p.Stage = Paused
	case p.Wanted == 0 && all == 0:
		p.Stage = None
	case ordered && p.Available < p.Wanted: // the next version waits for older pods
		p.Stage = Incomplete
	case unseen || p.Updated < p.Target:
		p.Stage = RollingOut
	case p.Available < p.Wanted:
		p.Stage = Incomplete
	case p.Extra > 0 && rolls:
		p.Stage = RollingOut // old pods are still stopping
	case p.Extra > 0:
		p.Stage = ScalingDown
	default:
		p.Stage = Complete
	}
	return p
}
