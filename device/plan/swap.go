package plan

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// SwapBehavior is the kubelet's memorySwap.swapBehavior (KEP-2400).
type SwapBehavior string

// Swap behaviors.
const (
	NoSwap      SwapBehavior = "NoSwap"
	LimitedSwap SwapBehavior = "LimitedSwap"
)

// ParseSwapBehavior parses a flag's value.
func ParseSwapBehavior(s string) (SwapBehavior, error) {
	switch b := SwapBehavior(s); b {
	case NoSwap, LimitedSwap:
		return b, nil
	case "UnlimitedSwap":
		return "", fmt.Errorf("%q was taken out of Kubernetes: use LimitedSwap", s)
	}
	return "", fmt.Errorf("%q is not a swap behavior: use NoSwap or LimitedSwap", s)
}

// swapOf is a container's swap in bytes. A burstable pod gets the share of the node's swap that its
// memory request has of the node's memory. A container gets no swap without a memory request, with
// a limit equal to the request, or in a system-critical pod.
func swapOf(pod *corev1.Pod, c *corev1.Container, node Facts) int64 {
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	if _, has := c.Resources.Requests[corev1.ResourceMemory]; !has {
		request = limit
	}
	if node.SwapUse != LimitedSwap || podspec.QOSClass(pod) != corev1.PodQOSBurstable ||
		podspec.Priority(pod) >= podspec.SystemCritical ||
		request <= 0 || request == limit || node.Memory <= 0 || request > node.Memory {
		return 0
	}
	return int64(math.Floor(float64(request) / float64(node.Memory) * float64(node.Swap)))
}

// limitSwap sets a container's swap limit. Engines limit swap only together with memory, so a
// missing memory limit becomes the node's memory. With cgroup v1 the kernel limits only the sum of
// memory and swap, so limitSwap sets no limit there.
func limitSwap(spec *engine.Spec, pod *corev1.Pod, c *corev1.Container, node Facts, info engine.Info) {
	if node.Swap <= 0 || node.Memory <= 0 || !info.CgroupV2 || !info.MemLimit || !info.SwapLimit {
		return
	}
	if spec.MemoryBytes <= 0 {
		spec.MemoryBytes = node.Memory
	}
	spec.SwapBytes = swapOf(pod, c, node)
}

// SwapCondition says whether the swap of containers is limited. It returns false if the device has
// no swap, or if its swap is unknown.
func SwapCondition(node Facts, info engine.Info) (corev1.NodeCondition, bool) {
	c := corev1.NodeCondition{Type: fleet.ConditionSwapLimits, Status: corev1.ConditionFalse}
	if node.Swap <= 0 || info.Name == "" {
		return c, false
	}
	has := fmt.Sprintf("the device has %d MiB of swap", node.Swap>>20)
	switch {
	case !info.MemLimit:
		c.Reason, c.Message = "MemoryControllerDisabled",
			has+", and the kernel limits neither memory nor swap of containers: see MemoryLimits, or switch swap off"
	case !info.SwapLimit:
		c.Reason, c.Message = "SwapAccountingDisabled",
			has+", and the kernel does not limit what containers use of it: boot with swapaccount=1, or switch swap off"
	case !info.CgroupV2 && node.SwapUse == LimitedSwap:
		c.Reason, c.Message = "CgroupV1",
			has+", and --swap-behavior LimitedSwap needs cgroup v2: containers with a memory limit get no swap, others "+
				"are not limited; boot with systemd.unified_cgroup_hierarchy=1"
	case !info.CgroupV2:
		c.Reason, c.Message = "CgroupV1",
			has+", and with cgroup v1 only containers with a memory limit are limited: boot with "+
				"systemd.unified_cgroup_hierarchy=1, or switch swap off"
	case node.SwapUse == LimitedSwap:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, string(LimitedSwap),
			has+"; containers of burstable pods get the share of their memory request"
	default:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, string(NoSwap), has+"; containers get no swap"
	}
	return c, true
}
