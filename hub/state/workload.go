package state

import (
	"maps"
	"slices"

	"github.com/robfig/cron/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The labels of a Job's pods from before Kubernetes gave them a prefix. Clients still use them.
const (
	oldJobUID  = "controller-uid"
	oldJobName = "job-name"
)

// defaultJob sets the selector of a Job. As in Kubernetes, a Job without labels gets those of its
// pods.
func defaultJob(j *batchv1.Job) {
	selectOwnPods(j)
	if len(j.Labels) == 0 {
		j.Labels = maps.Clone(j.Spec.Template.Labels)
	}
}

// selectOwnPods makes a Job select exactly its own pods, by its uid. A Job with manualSelector
// keeps its selector.
func selectOwnPods(j *batchv1.Job) {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return
	}
	uid := string(j.UID)
	t := &j.Spec.Template
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	t.Labels[batchv1.ControllerUidLabel], t.Labels[oldJobUID] = uid, uid
	t.Labels[batchv1.JobNameLabel], t.Labels[oldJobName] = j.Name, j.Name
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = uid
}

// JobCondition returns the Job's condition of the type if it is True, nil otherwise.
func JobCondition(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	i := slices.IndexFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
	if i < 0 {
		return nil
	}
	return &j.Status.Conditions[i]
}

// JobEnd returns the condition that ended a Job, Complete or Failed; nil if the Job has not ended.
func JobEnd(j *batchv1.Job) *batchv1.JobCondition {
	if c := JobCondition(j, batchv1.JobComplete); c != nil {
		return c
	}
	return JobCondition(j, batchv1.JobFailed)
}

// Schedule parses a CronJob's schedule: five fields or a name such as @daily, in its time zone or
// the hub's.
func Schedule(c *batchv1.CronJobSpec) (cron.Schedule, error) {
	text := c.Schedule
	if c.TimeZone != nil {
		text = "TZ=" + *c.TimeZone + " " + text
	}
	return cron.ParseStandard(text)
}

// PodUnreachable is a condition that Kubernetes does not have, of StatefulSets and of Deployments
// with the strategy Recreate: the device of a pod is unreachable, so the pod is not replaced.
const PodUnreachable appsv1.StatefulSetConditionType = "PodUnreachable"

// RolloutBlocked is a condition of StatefulSets that Kubernetes does not have: the newest revision
// waits because a pod of an older revision does not become ready.
const RolloutBlocked appsv1.StatefulSetConditionType = "RolloutBlocked"

// Replicas returns how many pods a workload requests, 0 for a kind without replicas.
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

// LargeSet is the largest number of objects that are walked at each change of one of them. Larger
// sets are walked from time to time; otherwise the hub would be busy while all of them are
// replaced.
const LargeSet = 1000

// PodsOf returns how many pods a workload has according to its status. For a Job it is an upper
// bound, because ended pods count.
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
