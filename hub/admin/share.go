package admin

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A share is how much of a resource the pods of a node ask for.
type share struct {
	Name                          string
	Capacity, Allocatable, Wanted string
	Percent                       int    // of the allocatable; above 100: more than there is
	Used                          string // "": not measured
	UsedPercent                   int    // of the allocatable, as kubectl top counts
}

// uses adds what is used of it.
func (s share) uses(name corev1.ResourceName, u wire.Usage, n *corev1.Node) share {
	used, ok := u.Node[name]
	if !ok {
		return s
	}
	s.Used = amount(name, used)
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
	s := share{Name: string(name), Capacity: amount(name, capacity), Allocatable: amount(name, allocatable), Wanted: amount(name, wanted)}
	if have := allocatable.AsApproximateFloat64(); have > 0 {
		s.Percent = int(100 * wanted.AsApproximateFloat64() / have)
	}
	return s
}

// amount writes a quantity for people: bytes in binary units, cpus as a decimal.
func amount(name corev1.ResourceName, q resource.Quantity) string {
	switch name {
	case corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage:
		return bytesOf(q.Value())
	case corev1.ResourceCPU:
		return strconv.FormatFloat(float64(q.MilliValue())/1000, 'f', -1, 64)
	}
	return q.String()
}

// bytesOf is a number of bytes in binary units.
func bytesOf(n int64) string {
	v, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 && v > -1024 {
			break
		}
		v, unit = v/1024, next
	}
	if unit == "B" || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + unit
}
