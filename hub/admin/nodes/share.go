package nodes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A share is how much of a resource a node's pods request.
type share struct {
	Name                          string
	Capacity, Allocatable, Wanted string
	Percent                       int    // of the allocatable amount; may exceed 100
	Used                          string // "": not measured
	UsedPercent                   int    // of the allocatable amount, as in kubectl top
}

// uses adds the amount that is used.
func (s share) uses(name corev1.ResourceName, u wire.Usage, n *corev1.Node) share {
	used, ok := u.Node[name]
	if !ok {
		return s
	}
	s.Used = format.Amount(name, used)
	have := n.Status.Allocatable[name]
	if f := have.AsApproximateFloat64(); f > 0 {
		s.UsedPercent = int(100 * used.AsApproximateFloat64() / f)
	}
	return s
}

func shareOf(name corev1.ResourceName, u state.Usage, n *corev1.Node) share {
	capacity, allocatable, wanted := n.Status.Capacity[name], n.Status.Allocatable[name], u.Requests[name]
	if name == corev1.ResourcePods {
		wanted = *resource.NewQuantity(u.Pods, resource.DecimalSI)
	}
	s := share{Name: string(name), Capacity: format.Amount(name, capacity),
		Allocatable: format.Amount(name, allocatable), Wanted: format.Amount(name, wanted)}
	if have := allocatable.AsApproximateFloat64(); have > 0 {
		s.Percent = int(100 * wanted.AsApproximateFloat64() / have)
	}
	return s
}
