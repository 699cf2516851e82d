package kube

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// permit tells why a pod may not be evicted now. It counts for itself, on the
// snapshot that the eviction is going to change: with one writer, no two
// evictions can count on the same pod.
func permit(s state.Snapshot, p *corev1.Pod) error {
	var budget *policyv1.PodDisruptionBudget
	for b := range state.Each[*policyv1.PodDisruptionBudget](s, state.PodDisruptionBudgets, p.Namespace) {
		sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !sel.Matches(labels.Set(p.Labels)) {
			continue
		}
		if budget != nil {
			//lint:ignore ST1005 the words of Kubernetes
			return apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."))
		}
		budget = b
	}
	if budget == nil {
		return nil
	}
	healthy, want, err := count(s, budget)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("count the pods of disruption budget %s: %w", budget.Name, err))
	}
	if !ready(p) {
		// A pod that does not work disrupts nobody: it may go if the budget says so,
		// or if all that are needed work without it.
		always := budget.Spec.UnhealthyPodEvictionPolicy != nil && *budget.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
		if always || healthy >= want && want > 0 {
			return nil
		}
	}
	if healthy > want {
		return nil
	}
	e := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	e.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget.Name, want, healthy),
	}}
	return e
}

// count returns how many of a budget's pods work, and how many have to.
func count(s state.Snapshot, b *policyv1.PodDisruptionBudget) (healthy, want int, err error) {
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return 0, 0, err
	}
	pods, expected := 0, 0
	owners := map[string]bool{}
	for p := range s.Pods(b.Namespace) {
		if !sel.Matches(labels.Set(p.Labels)) || state.Terminated(p) {
			continue
		}
		pods++
		if p.DeletionTimestamp == nil && ready(p) {
			healthy++
		}
		owner := metav1.GetControllerOf(p)
		if owner == nil {
			expected++
			continue
		}
		if !owners[string(owner.UID)] {
			owners[string(owner.UID)] = true
			expected += wanted(s.ByUID(owner.UID))
		}
	}
	switch {
	case b.Spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, expected, true)
		return healthy, max(0, expected-n), err
	case b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String:
		n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, expected, true)
		return healthy, n, err
	case b.Spec.MinAvailable != nil:
		return healthy, b.Spec.MinAvailable.IntValue(), nil
	}
	return healthy, max(0, expected-1), nil
}

// wanted returns how many pods a controller wants.
func wanted(o state.Object) int {
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		return int(replicas(o.Spec.Replicas))
	case *appsv1.DaemonSet:
		return int(o.Status.DesiredNumberScheduled)
	}
	return 0
}

func ready(p *corev1.Pod) bool {
	c := state.PodCondition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}
