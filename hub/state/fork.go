package state

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Fork is a copy of a node to make its next version of. Metadata, spec and
// conditions are the copy's own; of the rest of its status, which only a device
// changes, and that as a whole, both share what they point to. Objects in a
// snapshot never change, and the feed keeps several versions of each: whole copies
// were most of what a starting fleet took.
func Fork(n *corev1.Node) *corev1.Node {
	next := *n
	n.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	n.Spec.DeepCopyInto(&next.Spec)
	next.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &next
}
