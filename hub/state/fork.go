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

// ForkPod is a copy of a pod to make its next version of, of which only the status is another:
// metadata and conditions are the copy's own. The rest both share; a device says it as a whole.
func ForkPod(p *corev1.Pod) *corev1.Pod {
	next := *p
	p.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	next.Status.Conditions = slices.Clone(p.Status.Conditions)
	return &next
}
