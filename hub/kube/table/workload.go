package table

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

func init() {
	show(state.Deployments, columns("Name Ready Up-to-date Available Age (w)Containers (w)Images (w)Selector"),
		deploymentCells)
	show(state.ReplicaSets, columns("Name Desired(i) Current(i) Ready(i) Age (w)Containers (w)Images (w)Selector"),
		replicaSetCells)
	show(state.DaemonSets, columns("Name", "Desired(i)", "Current(i)", "Ready(i)", "Up-to-date(i)", "Available(i)",
		"Node Selector", "Age", "(w)Containers", "(w)Images", "(w)Selector"), daemonSetCells)
	show(state.StatefulSets, columns("Name Ready Age (w)Containers (w)Images"), statefulSetCells)
	show(state.Controllers, columns("Name Desired(i) Current(i) Ready(i) Age (w)Containers (w)Images (w)Selector"),
		controllerCells)
	show(state.PodTemplates, columns("Name", "Containers", "Images", "Pod Labels"), podTemplateCells)
	show(state.Jobs, columns("Name Status Completions Duration Age (w)Containers (w)Images (w)Selector"), jobCells)
	show(state.CronJobs, columns("Name", "Schedule", "Timezone", "Suspend(b)", "Active(i)", "Last Schedule", "Age",
		"(w)Containers", "(w)Images", "(w)Selector"), cronJobCells)
	show(state.ControllerRevisions, columns("Name Controller Revision Age"), revisionCells)
	show(state.PodDisruptionBudgets, columns("Name", "Min Available", "Max Unavailable", "Allowed Disruptions(i)", "Age"),
		budgetCells)
}

func deploymentCells(obj state.Object, o *Options) []any {
	d := obj.(*appsv1.Deployment)
	selector := "<invalid>"
	if s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
		selector = s.String()
	}
	names, images := containers(d.Spec.Template.Spec.Containers)
	return []any{
		d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, state.Replicas(d)),
		int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), age(d.CreationTimestamp, o),
		names, images, selector,
	}
}

func replicaSetCells(obj state.Object, o *Options) []any {
	r := obj.(*appsv1.ReplicaSet)
	names, images := containers(r.Spec.Template.Spec.Containers)
	return []any{
		r.Name, int64(state.Replicas(r)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
		age(r.CreationTimestamp, o), names, images, metav1.FormatLabelSelector(r.Spec.Selector),
	}
}

func daemonSetCells(obj state.Object, o *Options) []any {
	d := obj.(*appsv1.DaemonSet)
	names, images := containers(d.Spec.Template.Spec.Containers)
	return []any{
		d.Name, int64(d.Status.DesiredNumberScheduled), int64(d.Status.CurrentNumberScheduled), int64(d.Status.NumberReady),
		int64(d.Status.UpdatedNumberScheduled), int64(d.Status.NumberAvailable),
		labels.FormatLabels(d.Spec.Template.Spec.NodeSelector), age(d.CreationTimestamp, o),
		names, images, metav1.FormatLabelSelector(d.Spec.Selector),
	}
}

func statefulSetCells(obj state.Object, o *Options) []any {
	s := obj.(*appsv1.StatefulSet)
	names, images := containers(s.Spec.Template.Spec.Containers)
	return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, state.Replicas(s)), age(s.CreationTimestamp, o),
		names, images}
}

func controllerCells(obj state.Object, o *Options) []any {
	c := obj.(*corev1.ReplicationController)
	var names, images string
	if c.Spec.Template != nil {
		names, images = containers(c.Spec.Template.Spec.Containers)
	}
	return []any{
		c.Name, int64(state.Replicas(c)), int64(c.Status.Replicas), int64(c.Status.ReadyReplicas),
		age(c.CreationTimestamp, o), names, images, labels.FormatLabels(c.Spec.Selector),
	}
}

func podTemplateCells(obj state.Object, _ *Options) []any {
	t := obj.(*corev1.PodTemplate)
	names, images := containers(t.Template.Spec.Containers)
	return []any{t.Name, names, images, labels.FormatLabels(t.Template.Labels)}
}

func jobCells(obj state.Object, o *Options) []any {
	j := obj.(*batchv1.Job)
	selector := "<none>"
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && j.Spec.Selector != nil {
		selector = s.String()
	}
	names, images := containers(j.Spec.Template.Spec.Containers)
	return []any{j.Name, jobStatus(j), completions(j), jobDuration(j, o), age(j.CreationTimestamp, o), names, images,
		selector}
}

// jobStatus returns kubectl's word for the state of a Job.
func jobStatus(j *batchv1.Job) string {
	for _, c := range []struct {
		t    batchv1.JobConditionType
		word string
	}{{batchv1.JobComplete, "Complete"}, {batchv1.JobFailed, "Failed"}} {
		if state.JobCondition(j, c.t) != nil {
			return c.word
		}
	}
	switch {
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case state.JobCondition(j, batchv1.JobSuspended) != nil:
		return "Suspended"
	case state.JobCondition(j, batchv1.JobFailureTarget) != nil:
		return "FailureTarget"
	case state.JobCondition(j, batchv1.JobSuccessCriteriaMet) != nil:
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func completions(j *batchv1.Job) string {
	switch n := j.Spec.Parallelism; {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case n != nil && *n > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, *n)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func jobDuration(j *batchv1.Job, o *Options) string {
	switch {
	case j.Status.StartTime == nil:
		return ""
	case j.Status.CompletionTime == nil:
		return age(*j.Status.StartTime, o)
	}
	return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
}

func cronJobCells(obj state.Object, o *Options) []any {
	c := obj.(*batchv1.CronJob)
	last, zone := "<none>", "<none>"
	if c.Status.LastScheduleTime != nil {
		last = age(*c.Status.LastScheduleTime, o)
	}
	if c.Spec.TimeZone != nil {
		zone = *c.Spec.TimeZone
	}
	names, images := containers(c.Spec.JobTemplate.Spec.Template.Spec.Containers)
	return []any{
		c.Name, c.Spec.Schedule, zone, c.Spec.Suspend != nil && *c.Spec.Suspend, int64(len(c.Status.Active)), last,
		age(c.CreationTimestamp, o), names, images, metav1.FormatLabelSelector(c.Spec.JobTemplate.Spec.Selector),
	}
}

func revisionCells(obj state.Object, o *Options) []any {
	r := obj.(*appsv1.ControllerRevision)
	controller := "<none>"
	if ref := metav1.GetControllerOf(r); ref != nil {
		gv, _ := schema.ParseGroupVersion(ref.APIVersion) // an invalid one has no group to show
		controller = strings.ToLower(gv.WithKind(ref.Kind).GroupKind().String()) + "/" + ref.Name
	}
	return []any{r.Name, controller, r.Revision, age(r.CreationTimestamp, o)}
}

func budgetCells(obj state.Object, o *Options) []any {
	b := obj.(*policyv1.PodDisruptionBudget)
	return []any{
		b.Name, orNA(b.Spec.MinAvailable), orNA(b.Spec.MaxUnavailable), int64(b.Status.DisruptionsAllowed),
		age(b.CreationTimestamp, o),
	}
}

func orNA(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

func containers(list []corev1.Container) (names, images string) {
	var n, i []string
	for _, c := range list {
		n, i = append(n, c.Name), append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
