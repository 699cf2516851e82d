package hardware

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/shared/fleet"
)

// Software is the part of a node's description that does not come from its hardware.
type Software struct {
	Engine string // name and version, such as docker://20.10.24
	// Arch is the GOARCH of the engine's containers, since a 32-bit system may have a 64-bit
	// kernel; empty: unknown.
	Arch  string
	Agent string // version of the agent
}

// NodeStatus returns the part of a Kubernetes node status that comes from hardware: capacity,
// allocatable, addresses, nodeInfo and extended resources. The caller adds conditions, images and
// volumes. It is a pure function.
func NodeStatus(r Report, l Limits, s Software, offered ...Resource) corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(r.Capacity.CPUs, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.Capacity.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.Capacity.Ephemeral, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(r.Capacity.Pods, resource.DecimalSI),
	}
	for size, bytes := range r.Capacity.HugePages {
		capacity[hugePagesName(size)] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	for _, x := range offered {
		capacity[x.Name] = *resource.NewQuantity(x.Amount(), resource.DecimalSI)
	}
	swap := r.Capacity.Swap
	return corev1.NodeStatus{
		Capacity:    capacity,
		Allocatable: allocatable(capacity, l),
		Addresses:   r.Addresses,
		NodeInfo: corev1.NodeSystemInfo{
			MachineID:               r.Host.OSMachineID,
			SystemUUID:              r.Host.SystemUUID,
			BootID:                  r.Host.BootID,
			KernelVersion:           r.Host.Kernel,
			OSImage:                 r.Host.Image,
			OperatingSystem:         r.Host.OS,
			Architecture:            s.Arch,
			ContainerRuntimeVersion: s.Engine,
			KubeletVersion:          s.Agent,
			Swap:                    &corev1.NodeSwapStatus{Capacity: &swap},
		},
	}
}

// hugePagesName returns the resource of a huge page size, such as hugepages-2Mi.
func hugePagesName(size int64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}

// allocatable returns the capacity minus reservations and eviction thresholds, at least 0.
func allocatable(capacity corev1.ResourceList, l Limits) corev1.ResourceList {
	signals := map[corev1.ResourceName]string{
		corev1.ResourceMemory:           fleet.SignalMemoryAvailable,
		corev1.ResourceEphemeralStorage: fleet.SignalNodeFsAvailable,
	}
	out := corev1.ResourceList{}
	for name, total := range capacity {
		rest := total.DeepCopy()
		rest.Sub(l.System[name])
		rest.Sub(l.Agent[name])
		if name == corev1.ResourceMemory { // reserved huge pages cannot be used as normal memory
			for other, bytes := range capacity {
				if strings.HasPrefix(string(other), corev1.ResourceHugePagesPrefix) {
					rest.Sub(bytes)
				}
			}
		}
		if t, ok := l.Hard.of(signals[name]); ok {
			rest.Sub(*resource.NewQuantity(t.Of(total.Value()), resource.BinarySI))
		}
		if rest.Sign() < 0 {
			rest = *resource.NewQuantity(0, total.Format)
		}
		out[name] = rest
	}
	return out
}
