package admission

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

func (l *list) node(n *corev1.Node) {
	if order, ok := n.Annotations[state.DrainAnnotation]; ok {
		if _, err := state.ParseDrainOrder(order); err != nil {
			l.invalid(field.NewPath("metadata", "annotations").Key(state.DrainAnnotation), order, err.Error())
		}
	}
	spec := field.NewPath("spec")
	l.taints(n.Spec.Taints, spec.Child("taints"))
	l.nodeCIDRs(n.Spec.PodCIDRs, spec.Child("podCIDRs"))
	if c := n.Spec.PodCIDR; c != "" && (len(n.Spec.PodCIDRs) == 0 || n.Spec.PodCIDRs[0] != c) {
		l.invalid(spec.Child("podCIDR"), c, "must be the first of podCIDRs")
	}
	status := field.NewPath("status")
	for _, name := range sortedKeys(n.Status.Capacity) {
		at := status.Child("capacity").Key(string(name))
		l.each(at, string(name), validation.IsQualifiedName(string(name)))
		l.quantity(at, n.Status.Capacity[name], wholeOnNode(name))
	}
	for _, name := range sortedKeys(n.Status.Allocatable) {
		at, q := status.Child("allocatable").Key(string(name)), n.Status.Allocatable[name]
		l.quantity(at, q, wholeOnNode(name))
		if capacity := n.Status.Capacity[name]; capacity.Sign() >= 0 && q.Cmp(capacity) > 0 {
			l.invalid(at, q.String(), fmt.Sprintf("must be less than or equal to the capacity of %s", capacity.String()))
		}
	}
	seen := map[corev1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			l.duplicate(status.Child("addresses").Index(i), a)
		}
		seen[a] = true
	}
}

// keepTaintTimes keeps the time of existing taints. A client that applies the same taints without
// times must not restart tolerationSeconds.
func keepTaintTimes(n *corev1.Node, old state.Object) {
	was, ok := old.(*corev1.Node)
	if !ok {
		return
	}
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if at := slices.IndexFunc(was.Spec.Taints, func(had corev1.Taint) bool {
			return state.SameTaint(had, *t)
		}); at >= 0 && t.TimeAdded == nil {
			t.TimeAdded = was.Spec.Taints[at].TimeAdded
		}
	}
}

// nodeCIDRs checks a node's CIDRs: at most one per IP family, since the device creates one network.
// Each must be the address of a block, and the block large enough for pods.
func (l *list) nodeCIDRs(cidrs []string, p *field.Path) {
	families := map[bool]bool{}
	for i, cidr := range cidrs {
		errs := validation.IsValidCIDRForLegacyField(p.Index(i), cidr, false, nil)
		l.all(errs)
		block, err := netip.ParsePrefix(cidr)
		switch {
		case len(errs) > 0 || err != nil:
			continue
		case block != block.Masked():
			l.invalid(p.Index(i), cidr, fmt.Sprintf("must be the network address of the block: %s", block.Masked()))
		case block.Addr().BitLen()-block.Bits() < 3:
			l.invalid(p.Index(i), cidr, "must have 8 addresses or more: the network and the bridge need some of them")
		case families[block.Addr().Is4()]:
			l.invalid(p.Index(i), cidr, "may specify no more than one CIDR for each IP family")
		}
		families[block.Addr().Is4()] = true
	}
}

// wholeOnNode reports whether a node can have only whole units of a resource.
func wholeOnNode(name corev1.ResourceName) bool {
	return name == corev1.ResourcePods || !isNative(name)
}

// NodeNameWarnings warns about pods with a nodeName that cannot run on that node now. The scheduler
// does not check such pods, so the user would get no other message before the pods are removed.
func NodeNameWarnings(o state.Object, s state.Snapshot) []string {
	spec, p := podSpecOf(o)
	if spec == nil || spec.NodeName == "" {
		return nil
	}
	switch n := s.Node(spec.NodeName); {
	case n == nil:
		return []string{fmt.Sprintf("%s: node %q does not exist: the pod is removed unless a node of that name joins",
			p.Child("nodeName"), spec.NodeName)}
	case !state.NodeFits(spec, n):
		return []string{fmt.Sprintf(
			"%s: node %q does not match the pod's nodeSelector or required node affinity: the pod fails with NodeAffinity",
			p.Child("nodeName"), n.Name)}
	}
	return nil
}
