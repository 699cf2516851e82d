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

// recent is how long a Job that has failed is trouble.
const recent = 24 * time.Hour

// IsWork tells whether objects of a kind make pods. A PodTemplate makes none.
func IsWork(k state.Kind) bool {
	return k.Row() != nil && k.Row().Template != nil && k != state.PodTemplates
}

// IsKnown tells whether a workload is one that people know: a ReplicaSet's Deployment tells of it.
func IsKnown(o state.Object) bool {
	return IsWork(state.KindOf(o)) && metav1.GetControllerOfNoCopy(o) == nil
}

// A Work is what a workload says of itself: its finding, and whether it has fewer ready pods
// than it wants.
type Work struct {
	Finding
	Short bool
	Ended bool // a Job: the one before it is not its CronJob's newest any more
}

// WorkOf returns what a workload, or a rollout of a boot configuration, says of itself.
func WorkOf(o state.Object) (w Work) {
	if o == nil {
		return w
	}
	p := ProgressOf(o)
	w.Short = p.Ready < p.Wanted
	switch o := o.(type) {
	case *fleet.FirmwareRollout:
		if o.Status.Phase == fleet.RolloutStopped {
			w.Cause, w.Message = FirmwareRolloutStopped, o.Status.Sentence
			for _, c := range o.Status.Conditions {
				if c.Type == "Stopped" {
					w.Since = c.LastTransitionTime.UTC()
				}
			}
		}
	case *batchv1.Job:
		w.Ended = state.JobEnd(o) != nil
		if c := state.JobCondition(o, batchv1.JobFailed); c != nil {
			w.Cause, w.Message, w.Since = JobFailed, c.Message, c.LastTransitionTime.UTC()
			w.Until = w.Since.Add(recent)
		}
	}
	rs, ok := o.(*appsv1.ReplicaSet)
	if made := ok && metav1.GetControllerOfNoCopy(rs) != nil; !made && !w.Ended { // else its Deployment says it
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

// mayNotMake tells whether a condition is that no pods may be made: of a Job it is called
// FailedCreate, of a Deployment whose ReplicaSet may not be made Progressing.
func mayNotMake(c Condition) bool {
	failed := c.Type == string(appsv1.ReplicaSetReplicaFailure) || c.Type == "FailedCreate"
	return failed && c.Status == corev1.ConditionTrue || c.Type == string(appsv1.DeploymentProgressing) &&
		c.Reason == "ReplicaSetCreateError"
}

// Workload returns what is wrong with a workload itself. A CronJob has the trouble of its Jobs:
// that one may not make pods, and that the newest which has ended has failed.
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
