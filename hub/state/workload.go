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

// The labels that a Job gave its pods before they had a prefix; clients still ask for them.
const (
	oldJobUID  = "controller-uid"
	oldJobName = "job-name"
)

// defaultJob makes a Job find its pods, and gives one without labels those of its pods, as
// Kubernetes does: by them clients list it.
func defaultJob(j *batchv1.Job) {
	selectOwnPods(j)
	if len(j.Labels) == 0 {
		j.Labels = maps.Clone(j.Spec.Template.Labels)
	}
}

// selectOwnPods makes a Job find the pods that it makes, and no others: by its uid. One
// with manualSelector says itself how.
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

// JobCondition returns the Job's condition of the type if it is True, nil if not.
func JobCondition(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	i := slices.IndexFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
	if i < 0 {
		return nil
	}
	return &j.Status.Conditions[i]
}

// JobEnd returns the condition by which a Job has ended: Complete or Failed; nil: it goes on.
func JobEnd(j *batchv1.Job) *batchv1.JobCondition {
	if c := JobCondition(j, batchv1.JobComplete); c != nil {
		return c
	}
	return JobCondition(j, batchv1.JobFailed)
}

// Schedule reads when a CronJob is to start: five fields, or a name such as @daily, in the
// time zone that it names or in the hub's own.
func Schedule(c *batchv1.CronJobSpec) (cron.Schedule, error) {
	text := c.Schedule
	if c.TimeZone != nil {
		text = "TZ=" + *c.TimeZone + " " + text
	}
	return cron.ParseStandard(text)
}

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

// LargeSet is how many objects are walked whenever something becomes of one. More are walked once in a
// while: the hub would do nothing else while they are all replaced.
const LargeSet = 1000

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
