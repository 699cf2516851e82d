package kube

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// withEphemeral is a pod with the ephemeral containers of another version of it.
func withEphemeral(live, next *corev1.Pod) *corev1.Pod {
	with := live.DeepCopy()
	with.ResourceVersion = next.ResourceVersion
	with.Spec.EphemeralContainers = next.Spec.EphemeralContainers
	with.ManagedFields = next.ManagedFields
	return with
}

// mayDebug says why a pod gets no ephemeral containers: an agent that is older than
// they are leaves them out without a word.
func (c *call) mayDebug(s state.Snapshot, next, live *corev1.Pod) error {
	if len(next.Spec.EphemeralContainers) <= len(live.Spec.EphemeralContainers) {
		return nil
	}
	n := s.Node(live.Spec.NodeName)
	if n == nil || n.Status.NodeInfo.KubeletVersion == "" || slices.Contains(n.Status.DeclaredFeatures, fleet.FeatureEphemeralContainers) {
		return nil
	}
	return apierrors.NewForbidden(c.res.GroupResource(), c.name, errors.New(
		"the agent of node "+n.Name+" does not know ephemeral containers: update flotilla-device there, or use kubectl exec, or kubectl debug --copy-to"))
}
