package kube

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// permit tells why a pod may not be evicted now. The budget is counted on the snapshot
// that the eviction is going to change: with one writer, no two evictions can count on the
// same pod.
func permit(s state.Snapshot, p *corev1.Pod, now time.Time) error {
	h := state.HoldOn(s, p, now)
	switch {
	case h == nil:
		return nil
	case h.Several:
		//lint:ignore ST1005 the words of Kubernetes
		return apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."))
	}
	e := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: h.String()}}
	return e
}
