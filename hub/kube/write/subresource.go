package write

import (
	"errors"
	"slices"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// withConditions returns a request with sent's conditions and no other part of sent. The hub sets
// the conditions' times, because expiry counts from them.
func withConditions(live, sent *certv1.CertificateSigningRequest, now time.Time) state.Object {
	next := live.DeepCopy()
	next.Status.Conditions = nil
	for _, c := range sent.DeepCopy().Status.Conditions {
		c.LastUpdateTime, c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(time.Second)),
			metav1.NewTime(now.UTC().Truncate(time.Second))
		for _, have := range live.Status.Conditions {
			if have.Type == c.Type && have.Status == c.Status {
				c.LastUpdateTime, c.LastTransitionTime = have.LastUpdateTime, have.LastTransitionTime
			}
		}
		next.Status.Conditions = append(next.Status.Conditions, c)
	}
	next.ManagedFields = sent.ManagedFields
	return next
}

// withEphemeral returns a pod with the ephemeral containers of next.
func withEphemeral(live, next *corev1.Pod) *corev1.Pod {
	with := live.DeepCopy()
	with.ResourceVersion = next.ResourceVersion
	with.Spec.EphemeralContainers = next.Spec.EphemeralContainers
	with.ManagedFields = next.ManagedFields
	return with
}

// mayDebug refuses ephemeral containers if the agent is too old, because it would ignore them
// silently.
func (r *Request) mayDebug(s state.Snapshot, next, live *corev1.Pod) error {
	if len(next.Spec.EphemeralContainers) <= len(live.Spec.EphemeralContainers) {
		return nil
	}
	n := s.Node(live.Spec.NodeName)
	if n == nil || n.Status.NodeInfo.KubeletVersion == "" ||
		slices.Contains(n.Status.DeclaredFeatures, fleet.FeatureEphemeralContainers) {
		return nil
	}
	return apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, errors.New(
		"the agent of node "+n.Name+" does not support ephemeral containers: update flotilla-device there, or use "+
			"kubectl exec, or kubectl debug --copy-to"))
}
