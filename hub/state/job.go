package state

import (
	"maps"
	"slices"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The labels that a Job gave its pods before they had a prefix; clients still ask for them.
const (
	oldJobUID  = "controller-uid"
	oldJobName = "job-name"
)

// bornJob makes a Job find its pods, and gives one without labels those of its pods, as
// Kubernetes does: by them clients list it.
func bornJob(j *batchv1.Job) {
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
