package table

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

func init() {
	show(state.Deployments, columns("Name Ready Up-to-date Available Age (w)Containers (w)Images (w)Selector"), deploymentCells)
	show(state.ReplicaSets, columns("Name Desired(i) Current(i) Ready(i) Age (w)Containers (w)Images (w)Selector"), replicaSetCells)
	show(state.DaemonSets, columns("Name", "Desired(i)", "Current(i)", "Ready(i)", "Up-to-date(i)", "Available(i)",
		"Node Selector", "Age", "(w)Containers", "(w)Images", "(w)Selector"), daemonSetCells)
	show(state.ControllerRevisions, columns("Name Controller Revision Age"), revisionCells)
	show(state.PodDisruptionBudgets, columns("Name", "Min Available", "Max Unavailable", "Allowed Disruptions(i)", "Age"), budgetCells)
}

func deploymentCells(obj state.Object, o *Options) []any {
	d := obj.(*appsv1.Deployment)
	selector := "<invalid>"
	if s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
		selector = s.String()
	}
	names, images := containers(d.Spec.Template.Spec.Containers)
	return []any{
		d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, replicas(d.Spec.Replicas)),
		int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), age(d.CreationTimestamp, o),
		names, images, selector,
	}
}

func replicaSetCells(obj state.Object, o *Options) []any {
	r := obj.(*appsv1.ReplicaSet)
	names, images := containers(r.Spec.Template.Spec.Containers)
	return []any{
		r.Name, int64(replicas(r.Spec.Replicas)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
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

func revisionCells(obj state.Object, o *Options) []any {
	r := obj.(*appsv1.ControllerRevision)
	controller := "<none>"
	if ref := metav1.GetControllerOf(r); ref != nil {
		gv, _ := schema.ParseGroupVersion(ref.APIVersion) // a bad one has no group to show
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

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func containers(list []corev1.Container) (names, images string) {
	var n, i []string
	for _, c := range list {
		n, i = append(n, c.Name), append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
