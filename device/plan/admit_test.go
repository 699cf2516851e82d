package plan

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/podspec"
)

func Asking(name, cpu, memory string) corev1.Pod {
	return With(makePod(name, "wait"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory)}
	})
}

func onPort(name string, port int32) corev1.Pod {
	return With(makePod(name, "wait"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: port}}
	})
}

// The device rejects pods that the hub has bound, with the kubelet's messages. The device has 4
// CPUs, 2Gi of memory and room for 110 pods.
func TestAdmission(t *testing.T) {
	yes := true
	for _, c := range []struct {
		name   string
		before []corev1.Pod
		pod    corev1.Pod
		change func(*world)
		want   string // part of the verdict; empty: the pod is admitted
	}{
		{"an exact fit is admitted", []corev1.Pod{Asking("a", "3", "1Gi")}, Asking("b", "1", "1Gi"), nil, ""},
		{"too much cpu", []corev1.Pod{Asking("a", "3", "1Gi")}, Asking("b", "1001m", "1Mi"), nil,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 1001, used: 3000, capacity: 4000"},
		{"too much memory", []corev1.Pod{Asking("a", "1", "1Gi")}, Asking("b", "1", "1025Mi"), nil, "OutOfmemory: "},
		{"too many pods", []corev1.Pod{makePod("a", "wait")}, makePod("b", "wait"), func(w *world) { w.o.Node.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }, "OutOfpods: "},
		{"a missing device", nil, With(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"flotilla.dev/gpiochip": resource.MustParse("1")}
		}), nil, "OutOfflotilla.dev/gpiochip: "},
		{"a resource that only the hub counts", nil, With(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		}), nil, ""},
		{"a used host port", []corev1.Pod{onPort("a", 80)}, onPort("b", 80), nil, "NodePorts: "},
		{"a free host port", []corev1.Pod{onPort("a", 80)}, onPort("b", 81), nil, ""},
		{"another node's pod", nil, With(makePod("b", "wait"), func(p *corev1.Pod) { p.Spec.NodeName = "pi-2" }), nil, "NodeName: "},
		{"a best-effort pod under memory pressure", nil, makePod("b", "wait"), func(w *world) { w.o.Pressure.Memory = true }, "Evicted: Pod was rejected: The node had condition: [MemoryPressure]. "},
		{"a pod with requests under memory pressure", nil, Asking("b", "1", "1Mi"), func(w *world) { w.o.Pressure.Memory = true }, ""},
		{"a pod with requests in the heat", nil, Asking("b", "1", "1Mi"), func(w *world) { w.o.Pressure.Heat = true }, "Evicted: Pod was rejected: The node had condition: [TemperatureOK=False]. "},
		{"a system-critical pod under every pressure", nil, With(makePod("b", "wait"), func(p *corev1.Pod) { n := int32(podspec.SystemCritical); p.Spec.Priority = &n }),
			func(w *world) { w.o.Pressure = Pressure{true, true, true, true} }, ""},
		{"a pod just below system-critical", nil, With(makePod("b", "wait"), func(p *corev1.Pod) { n := int32(podspec.SystemCritical - 1); p.Spec.Priority = &n }),
			func(w *world) { w.o.Pressure = Pressure{true, true, true, true} },
			"Evicted: Pod was rejected: The node had condition: [MemoryPressure, DiskPressure, PIDPressure, TemperatureOK=False]. "},
		{"a privileged pod", nil, With(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}), nil, "PolicyForbidden: spec.containers[0].securityContext.privileged: privileged containers are not allowed (privileged: true)"},
		{"a pod with the device's IPC namespace", nil, With(makePod("b", "wait"), func(p *corev1.Pod) { p.Spec.HostIPC = true }), nil, "Unsupported: hostIPC is not supported"},
		{"shareProcessNamespace without a sandbox", nil, With(makePod("b", "wait"), func(p *corev1.Pod) { p.Spec.ShareProcessNamespace, p.Spec.HostNetwork = &yes, true }), nil, "Unsupported: shareProcessNamespace is not supported on devices together with hostNetwork"},
		{"a TCP hook", nil, With(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{}}}
		}), nil, "Unsupported: container c0: the type of the PreStop hook is not supported"},
		{"a container with a raw device", nil, With(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/sda"}}
		}), nil, "Unsupported: container c0: volumeDevices"},
		{"an unsupported type of volume", nil, With(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}
		}), nil, "Unsupported: volume \"v\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.before...)
			w.settle(t)
			if c.change != nil {
				c.change(w)
			}
			w.d.Pods = append(slices.Clone(c.before), c.pod)
			got := sentences(w.look())
			want := "admit default/b"
			if c.want != "" {
				want = "reject default/b: " + c.want
			}
			if len(got) == 0 || !strings.HasPrefix(got[0], want) {
				t.Errorf("steps %q, want first %q", got, want)
			}
		})
	}
}

func TestAPodWaitsForTheResourcesOfALeavingPod(t *testing.T) {
	a, b := onPort("a", 80), onPort("b", 80)
	w := newWorld(a)
	w.settle(t)
	w.d.Pods = []corev1.Pod{deletedPod(a, 5), b}
	if got, want := sentences(w.look()), []string{"stop default/a container c0 within 5s: the pod is being deleted"}; !slices.Equal(got, want) {
		t.Fatalf("steps %q, want %q", got, want)
	}
	w.settle(t)
	if got, want := w.states(), []string{"b/c0#0 running"}; !slices.Equal(got, want) {
		t.Errorf("in the end the containers are %q, want %q", got, want)
	}
}

func TestARunningPodIsNotRejected(t *testing.T) {
	w := newWorld(Asking("a", "3", "1Gi"))
	w.settle(t)
	w.o.Node.Allocatable[corev1.ResourceCPU] = resource.MustParse("1")
	w.o.Pods = nil // a restarted agent makes the same decision
	if got := sentences(w.look()); len(got) > 0 {
		t.Errorf("steps %q, want none", got)
	}
}
