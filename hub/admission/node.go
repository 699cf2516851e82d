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
	l.blocks(n.Spec.PodCIDRs, spec.Child("podCIDRs"))
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

// stillTainted gives taints that are there already the time at which they were added: who writes
// them again, as an apply does that knows nothing of it, makes no toleration count anew.
func stillTainted(n *corev1.Node, old state.Object) {
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

// blocks checks a node's blocks of addresses: one of each family at most, because the
// device makes one network with them, written as the block and with room for pods.
func (l *list) blocks(cidrs []string, p *field.Path) {
	families := map[bool]bool{}
	for i, cidr := range cidrs {
		errs := validation.IsValidCIDRForLegacyField(p.Index(i), cidr, false, nil)
		l.all(errs)
		block, err := netip.ParsePrefix(cidr)
		switch {
		case len(errs) > 0 || err != nil:
			continue
		case block != block.Masked():
			l.invalid(p.Index(i), cidr, fmt.Sprintf("must be the block itself: %s", block.Masked()))
		case block.Addr().BitLen()-block.Bits() < 3:
			l.invalid(p.Index(i), cidr, "must have 8 addresses or more: the network and the bridge need some themselves")
		case families[block.Addr().Is4()]:
			l.invalid(p.Index(i), cidr, "may specify no more than one CIDR for each IP family")
		}
		families[block.Addr().Is4()] = true
	}
}

// wholeOnNode tells whether a node has only whole ones of a resource.
func wholeOnNode(name corev1.ResourceName) bool {
	return name == corev1.ResourcePods || !isNative(name)
}

// Named warns of a pod, or pods of a template, that name their node themselves and will not run
// there as things are: no scheduler looks at them, so nothing else would say so before they are
// gone.
func Named(o state.Object, s state.Snapshot) []string {
	spec, p := podSpecOf(o)
	if spec == nil || spec.NodeName == "" {
		return nil
	}
	switch n := s.Node(spec.NodeName); {
	case n == nil:
		return []string{fmt.Sprintf("%s: no node is called %q: the pod is removed unless one of that name joins",
			p.Child("nodeName"), spec.NodeName)}
	case !state.NodeFits(spec, n):
		return []string{fmt.Sprintf(
			"%s: node %q does not match the pod's nodeSelector or required node affinity: the pod fails with NodeAffinity",
			p.Child("nodeName"), n.Name)}
	}
	return nil
}
