package diagnose

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// recent is how long a failed Job counts as a problem.
const recent = 24 * time.Hour

// IsWork tells whether objects of a kind create pods. A PodTemplate does not.
func IsWork(k state.Kind) bool {
	return k.Row() != nil && k.Row().Template != nil && k != state.PodTemplates
}

// IsKnown tells whether users know a workload. They do not know a Deployment's ReplicaSet: the
// Deployment reports for it.
func IsKnown(o state.Object) bool {
	return IsWork(state.KindOf(o)) && metav1.GetControllerOfNoCopy(o) == nil
}

// A Work is the finding of a workload, and whether it has fewer ready pods than it wants.
type Work struct {
	Finding
	Short bool
	Ended bool // a Job of a CronJob that has a newer Job
}

// stopped is the problem of a rollout that has stopped.
func (w *Work) stopped(st fleet.FirmwareRolloutStatus, cause fleet.IncidentCause) {
	if st.Phase != fleet.RolloutStopped {
		return
	}
	w.Cause, w.Message = cause, st.Sentence
	for _, c := range st.Conditions {
		if c.Type == "Stopped" {
			w.Since = c.LastTransitionTime.UTC()
		}
	}
}

// WorkOf returns the problem of a workload or of a rollout.
func WorkOf(o state.Object) (w Work) {
	if o == nil {
		return w
	}
	p := ProgressOf(o)
	w.Short = p.Ready < p.Wanted
	switch o := o.(type) {
	case *fleet.FirmwareRollout:
		w.stopped(o.Status, FirmwareRolloutStopped)
	case *fleet.AgentRollout:
		w.stopped(o.Status, AgentRolloutStopped)
	case *batchv1.Job:
		w.Ended = state.JobEnd(o) != nil
		if c := state.JobCondition(o, batchv1.JobFailed); c != nil {
			w.Cause, w.Message, w.Since = JobFailed, c.Message, c.LastTransitionTime.UTC()
			w.Until = w.Since.Add(recent)
		}
	}
	rs, ok := o.(*appsv1.ReplicaSet)
	if made := ok && metav1.GetControllerOfNoCopy(rs) != nil; !made && !w.Ended { // its Deployment reports it
		for _, c := range Conditions(o) {
			if mayNotMake(c) {
				w.Cause, w.Message, w.Since = CannotMakePods, c.Message, c.Since.UTC()
			}
		}
	}
	if w.Cause != "" {
		w.About = fleet.IncidentObject{Kind: state.KindOf(o).Row().Name, Namespace: o.GetNamespace(), Name: o.GetName()}
	}
	return w
}

// mayNotMake tells whether a condition means that pods cannot be created: FailedCreate, or
// Progressing of a Deployment whose ReplicaSet cannot be created.
func mayNotMake(c Condition) bool {
	failed := c.Type == string(appsv1.ReplicaSetReplicaFailure) || c.Type == "FailedCreate"
	return failed && c.Status == corev1.ConditionTrue || c.Type == string(appsv1.DeploymentProgressing) &&
		c.Reason == "ReplicaSetCreateError"
}

// Workload returns the problems of a workload itself. A CronJob has the problems of its Jobs: a Job
// cannot create pods, or the newest finished Job has failed.
func Workload(s state.Snapshot, o state.Object) (all []Finding) {
	add := func(f Finding) {
		if f.Cause != "" {
			f.About = fleet.IncidentObject{Kind: state.KindOf(o).Row().Name, Namespace: o.GetNamespace(), Name: o.GetName()}
			all = append(all, f)
		}
	}
	if _, ok := o.(*batchv1.CronJob); !ok {
		add(WorkOf(o).Finding)
		return all
	}
	var newest *batchv1.Job
	for d := range s.Owned(o.GetUID(), state.Jobs) {
		j := d.(*batchv1.Job)
		w := WorkOf(j)
		if w.Cause == CannotMakePods {
			add(w.Finding)
		}
		if w.Ended && (newest == nil || newest.CreationTimestamp.Before(&j.CreationTimestamp)) {
			newest = j
		}
	}
	if newest != nil {
		add(WorkOf(newest).Finding)
	}
	return all
}
