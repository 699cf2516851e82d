package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

// The cases are those of KEP-2400 and of the kubelet's container_manager tests, with 4 GiB of
// memory and 1 GiB of swap.
func TestSwapOfContainers(t *testing.T) {
	v2 := engine.Info{Name: "docker", MemLimit: true, SwapLimit: true, CgroupV2: true}
	v1, uncounted, unlimited := v2, v2, v2
	v1.CgroupV2, uncounted.SwapLimit, unlimited.MemLimit = false, false, false
	of := func(change func(*corev1.Pod), request, limit string) corev1.Pod {
		p := memoryPod("p", request, limit)
		if change != nil {
			change(&p)
		}
		return p
	}
	const all = 4 << 30
	for _, c := range []struct {
		name          string
		pod           corev1.Pod
		use           SwapBehavior
		swap          int64
		info          engine.Info
		memory, swaps int64 // the limits that the engine gets
	}{
		{"a quarter of the memory is a quarter of the swap", of(nil, "1Gi", "2Gi"), LimitedSwap, 1 << 30, v2, 2 << 30, 256 << 20},
		{"a request without a limit", of(nil, "1Gi", ""), LimitedSwap, 1 << 30, v2, all, 256 << 20},
		{"a request of all memory", of(nil, "4Gi", ""), LimitedSwap, 1 << 30, v2, all, 1 << 30},
		{"a request of more than all memory", of(nil, "5Gi", ""), LimitedSwap, 1 << 30, v2, all, 0},
		{"the share is rounded down", of(nil, "3", "1Gi"), LimitedSwap, 1 << 30, v2, 1 << 30, 0},
		{"best effort", of(nil, "", ""), LimitedSwap, 1 << 30, v2, all, 0},
		{"guaranteed", of(func(p *corev1.Pod) {
			r := p.Spec.Containers[0].Resources
			r.Requests[corev1.ResourceCPU], r.Limits[corev1.ResourceCPU] = resource.MustParse("1"),
				resource.MustParse("1")
		}, "1Gi", "1Gi"), LimitedSwap, 1 << 30, v2, 1 << 30, 0},
		{"a burstable container whose request equals its limit", of(func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"})
		}, "1Gi", "1Gi"), LimitedSwap, 1 << 30, v2, 1 << 30, 0},
		{"a limit replaces a missing request", of(func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"})
		}, "", "1Gi"), LimitedSwap, 1 << 30, v2, 1 << 30, 0},
		{"a container without a request, burstable by another container", of(func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, memoryPod("x", "1Gi", "2Gi").Spec.Containers[0])
		}, "", ""), LimitedSwap, 1 << 30, v2, all, 0},
		{"a system-critical pod", of(func(p *corev1.Pod) { n := int32(podspec.SystemCritical); p.Spec.Priority = &n }, "1Gi", "2Gi"), LimitedSwap, 1 << 30, v2, 2 << 30, 0},
		{"nearly critical", of(func(p *corev1.Pod) { n := int32(podspec.SystemCritical - 1); p.Spec.Priority = &n }, "1Gi", "2Gi"), LimitedSwap, 1 << 30, v2, 2 << 30, 256 << 20},
		{"NoSwap", of(nil, "1Gi", "2Gi"), NoSwap, 1 << 30, v2, 2 << 30, 0},
		{"NoSwap without a limit: the memory limit is the node's memory", of(nil, "1Gi", ""), NoSwap, 1 << 30, v2, all, 0},
		{"the default is NoSwap", of(nil, "", ""), "", 1 << 30, v2, all, 0},
		{"a device without swap", of(nil, "1Gi", ""), LimitedSwap, 0, v2, 0, 0},
		{"cgroup v1", of(nil, "1Gi", "2Gi"), LimitedSwap, 1 << 30, v1, 2 << 30, 0},
		{"cgroup v1 without a limit", of(nil, "1Gi", ""), LimitedSwap, 1 << 30, v1, 0, 0},
		{"a kernel that does not count swap", of(nil, "1Gi", ""), LimitedSwap, 1 << 30, uncounted, 0, 0},
		{"a kernel that does not limit memory", of(nil, "1Gi", ""), LimitedSwap, 1 << 30, unlimited, 0, 0},
	} {
		spec := engine.Spec{MemoryBytes: c.pod.Spec.Containers[0].Resources.Limits.Memory().Value()}
		limitSwap(&spec, &c.pod, &c.pod.Spec.Containers[0], Facts{Memory: all, Swap: c.swap, SwapUse: c.use}, c.info)
		if spec.MemoryBytes != c.memory || spec.SwapBytes != c.swaps {
			t.Errorf("%s: memory %d and swap %d, want %d and %d", c.name, spec.MemoryBytes, spec.SwapBytes, c.memory,
				c.swaps)
		}
	}
}

func TestSwapCondition(t *testing.T) {
	v2 := engine.Info{Name: "docker", MemLimit: true, SwapLimit: true, CgroupV2: true}
	v1, uncounted, unlimited := v2, v2, v2
	v1.CgroupV2, uncounted.SwapLimit, unlimited.MemLimit = false, false, false
	for _, c := range []struct {
		name   string
		swap   int64
		use    SwapBehavior
		info   engine.Info
		status corev1.ConditionStatus // empty if there is no condition
		want   string
	}{
		{"no swap", 0, LimitedSwap, v2, "", ""},
		{"no engine has responded", 1 << 27, LimitedSwap, engine.Info{}, "", ""},
		{"no swap for containers", 1 << 27, NoSwap, v2, corev1.ConditionTrue, "128 MiB of swap; containers get no swap"},
		{"a share of the swap for containers", 1 << 27, LimitedSwap, v2, corev1.ConditionTrue, "share"},
		{"LimitedSwap on cgroup v1", 1 << 27, LimitedSwap, v1, corev1.ConditionFalse, "LimitedSwap needs cgroup v2"},
		{"NoSwap on cgroup v1", 1 << 27, NoSwap, v1, corev1.ConditionFalse, "only containers with a memory limit"},
		{"swap that the kernel does not count", 1 << 27, NoSwap, uncounted, corev1.ConditionFalse, "swapaccount=1"},
		{"memory that the kernel does not limit", 1 << 27, NoSwap, unlimited, corev1.ConditionFalse, "neither memory nor swap"},
	} {
		got, ok := SwapCondition(Facts{Memory: 1 << 30, Swap: c.swap, SwapUse: c.use}, c.info)
		if ok != (c.status != "") || ok && (got.Status != c.status || !strings.Contains(got.Message, c.want) ||
			got.Reason == "") {
			t.Errorf("%s: the condition is %+v (%v), want %q, %q", c.name, got, ok, c.status, c.want)
		}
	}
}

func TestSwapBehaviors(t *testing.T) {
	for s, want := range map[string]string{"NoSwap": "", "LimitedSwap": "", "UnlimitedSwap": "use LimitedSwap",
		"": "not a swap behavior", "noswap": "not a swap behavior"} {
		b, err := ParseSwapBehavior(s)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) ||
			err == nil && string(b) != s {
			t.Errorf("%q is parsed as %q, error %v, want the error %q", s, b, err, want)
		}
	}
}
