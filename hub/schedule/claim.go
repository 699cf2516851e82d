package schedule

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// claims are the restrictions that a pod's persistent volumes put on its nodes.
type claims struct {
	problem        string          // why no node is possible, in Kubernetes' words
	nodes          map[string]bool // the nodes that the volumes name; nil: any node
	exclusiveUsers []*corev1.Pod   // placed pods with exclusive use of one of its volumes
}

// claimsOf looks up a pod's volumes. A volume that does not exist yet will be on the node of the
// first pod that uses the claim. That pod is often placed in the same pass.
func claimsOf(s state.Snapshot, pod *corev1.Pod) (out claims) {
	for name := range state.ClaimsOf(pod) {
		c := s.Claim(pod.Namespace, name)
		switch {
		case c == nil:
			out.problem = fmt.Sprintf("persistentvolumeclaim %q not found", name)
		case c.DeletionTimestamp != nil:
			out.problem = fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
		case c.Status.Phase == corev1.ClaimLost:
			out.problem = fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name,
				c.Spec.VolumeName)
		case c.Spec.VolumeName != "" && state.VolumeOf(s, c) == nil, c.Spec.VolumeName == "" && !state.IsLocal(s, c):
			out.problem = "pod has unbound immediate PersistentVolumeClaims"
		}
		if out.problem != "" {
			return out
		}
		node := ""
		if v := state.VolumeOf(s, c); v != nil {
			node = state.NodeOfVolume(v)
		} else if first := state.FirstConsumer(s, c); first != nil {
			node = first.Spec.NodeName
		} else {
			continue
		}
		if out.nodes == nil {
			out.nodes = map[string]bool{}
		}
		out.nodes[node] = true
		if !slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) {
			continue
		}
		for other := range s.PodsUsingClaim(c.Namespace, c.Name) {
			if other.Spec.NodeName != "" && !state.Terminated(other) {
				out.exclusiveUsers = append(out.exclusiveUsers, other)
			}
		}
	}
	return out
}

// against returns why a node is not possible once the pods in gone have left it; Fits if it is
// possible.
func (c claims) against(node string, gone ...*corev1.Pod) Reason {
	switch {
	case c.used(node, gone):
		return VolumeInUse
	case c.elsewhere(node):
		return VolumeElsewhere
	}
	return Fits
}

// used tells whether a node has a pod, not in gone, with exclusive use of a volume.
func (c claims) used(node string, gone []*corev1.Pod) bool {
	return slices.ContainsFunc(c.exclusiveUsers, func(p *corev1.Pod) bool {
		return p.Spec.NodeName == node && !slices.ContainsFunc(gone, func(g *corev1.Pod) bool {
			return g.Namespace == p.Namespace && g.Name == p.Name
		})
	})
}

// elsewhere tells whether a volume is on another node.
func (c claims) elsewhere(node string) bool {
	return c.nodes != nil && (len(c.nodes) > 1 || !c.nodes[node])
}

// sameClaim tells whether two versions of a claim allow the same nodes.
func sameClaim(a, b *corev1.PersistentVolumeClaim) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.Spec.VolumeName == b.Spec.VolumeName && a.Status.Phase == b.Status.Phase &&
		state.ClassOf(a) == state.ClassOf(b) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil)
}
