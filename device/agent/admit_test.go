package agent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func asking(name, cpu, memory string) corev1.Pod {
	return with(makePod(name, "wait"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	})
}

func onPort(name string, port int32) corev1.Pod {
	return with(makePod(name, "wait"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: port}}
	})
}

// What the device refuses although the hub has bound it here, and with which words.
// The world has 4 processors, 2Gi of memory and room for 110 pods.
func TestAdmission(t *testing.T) {
	yes := true
	for _, c := range []struct {
		name   string
		before []corev1.Pod
		pod    corev1.Pod
		change func(*world)
		want   string // part of the verdict; empty: it is admitted
	}{
		{"what fits exactly is admitted", []corev1.Pod{asking("a", "3", "1Gi")}, asking("b", "1", "1Gi"), nil, ""},
		{"too much cpu", []corev1.Pod{asking("a", "3", "1Gi")}, asking("b", "1001m", "1Mi"), nil,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 1001, used: 3000, capacity: 4000"},
		{"too much memory", []corev1.Pod{asking("a", "1", "1Gi")}, asking("b", "1", "1025Mi"), nil, "OutOfmemory: "},
		{"too many pods", []corev1.Pod{makePod("a", "wait")}, makePod("b", "wait"), func(w *world) { w.o.Node.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }, "OutOfpods: "},
		{"a resource that the device does not have", nil, with(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		}), nil, "OutOfexample.com/gpu: "},
		{"a host port that is taken", []corev1.Pod{onPort("a", 80)}, onPort("b", 80), nil, "NodePorts: "},
		{"another host port", []corev1.Pod{onPort("a", 80)}, onPort("b", 81), nil, ""},
		{"another node's pod", nil, with(makePod("b", "wait"), func(p *corev1.Pod) { p.Spec.NodeName = "pi-2" }), nil, "NodeName: "},
		{"a best-effort pod under memory pressure", nil, makePod("b", "wait"), func(w *world) { w.o.Pressure.Memory = true }, "Evicted: Pod was rejected: The node had condition: [MemoryPressure]. "},
		{"a pod with requests under memory pressure", nil, asking("b", "1", "1Mi"), func(w *world) { w.o.Pressure.Memory = true }, ""},
		{"a privileged pod", nil, with(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}), nil, "PolicyForbidden: container c0: privileged is forbidden"},
		{"a kind of volume that devices do not have", nil, with(makePod("b", "wait"), func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}
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

func TestAPodWaitsForWhatALeavingOneHolds(t *testing.T) {
	a, b := onPort("a", 80), onPort("b", 80)
	w := newWorld(a)
	w.settle(t)
	w.d.Pods = []corev1.Pod{leaving(a, 5), b}
	if got, want := sentences(w.look()), []string{"stop default/a container c0 within 5s: the pod is being deleted"}; !slices.Equal(got, want) {
		t.Fatalf("steps %q, want %q", got, want)
	}
	w.settle(t)
	if got, want := w.states(), []string{"b/c0#0 running"}; !slices.Equal(got, want) {
		t.Errorf("in the end %q, want %q", got, want)
	}
}

func TestAPodThatRunsIsNotJudgedAgain(t *testing.T) {
	w := newWorld(asking("a", "3", "1Gi"))
	w.settle(t)
	w.o.Node.Allocatable[corev1.ResourceCPU] = resource.MustParse("1")
	w.o.Pods = nil // also by a new agent
	if got := sentences(w.look()); len(got) > 0 {
		t.Errorf("steps %q, want none", got)
	}
}

// The policy of a device is safe unless its owner says otherwise.
func TestPolicy(t *testing.T) {
	yes := true
	mutate := func(f func(*corev1.Pod)) *corev1.Pod { p := with(makePod("p", "wait"), f); return &p }
	hostPath := func(path string) *corev1.Pod {
		return mutate(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}}
		})
	}
	capable := func(c corev1.Capability) *corev1.Pod {
		return mutate(func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{c}}}
		})
	}
	image := func(ref string) *corev1.Pod {
		return mutate(func(p *corev1.Pod) { p.Spec.Containers[0].Image = ref })
	}
	privileged := mutate(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "x", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}
	})
	for _, c := range []struct {
		name, policy string
		pod          *corev1.Pod
		forbidden    bool
	}{
		{"an ordinary pod", "", image("nginx"), false},
		{"a privileged init container", "", privileged, true},
		{"privileged where the owner allows it", "privileged: true", privileged, false},
		{"the host's network", "", mutate(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), true},
		{"the host's processes", "", mutate(func(p *corev1.Pod) { p.Spec.HostPID = true }), true},
		{"the host's network where the owner allows it", "hostNetwork: true", mutate(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), false},
		{"the whole disk", "", hostPath("/"), true},
		{"the engine's socket", "", hostPath("/var/run/docker.sock"), true},
		{"the kernel's files", "", hostPath("/proc"), true},
		{"the place for volumes", "", hostPath("/var/lib/flotilla/volumes/web"), false},
		{"out of the place for volumes by ..", "", hostPath("/var/lib/flotilla/volumes/../../../etc"), true},
		{"a sibling whose name begins alike", "", hostPath("/var/lib/flotilla/volumes-of-others"), true},
		{"a relative path", "", hostPath("var/lib/flotilla/volumes"), true},
		{"a path that the owner allows", "hostPaths: [/srv/data]", hostPath("/srv/data/x"), false},
		{"a capability of the default set", "", capable("CAP_NET_BIND_SERVICE"), false},
		{"SYS_ADMIN", "", capable("SYS_ADMIN"), true},
		{"all capabilities", "", capable("ALL"), true},
		{"a capability that the owner allows", "capabilities: [CAP_SYS_TIME]", capable("SYS_TIME"), false},
		{"a registry that is not allowed", "registries: [registry.example.com]", image("docker.io/library/nginx:1"), true},
		{"a registry that is", "registries: [registry.example.com]", image("registry.example.com/web:1"), false},
		{"an image without a digest", "requireDigest: true", image("nginx:1"), true},
		{"an image with one", "requireDigest: true", image("nginx@sha256:" + strings.Repeat("a", 64)), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := ParsePolicy([]byte(c.policy))
			if err != nil {
				t.Fatal(err)
			}
			if why := p.Forbids(c.pod); (why != "") != c.forbidden {
				t.Errorf("forbidden: %q, want forbidden=%v", why, c.forbidden)
			}
		})
	}
	for _, bad := range []string{"privileges: true", "hostPaths: [relative]", "hostPaths: [/a/../b]", "privileged: perhaps", "[]"} {
		if _, err := ParsePolicy([]byte(bad)); err == nil {
			t.Errorf("policy %q is taken", bad)
		}
	}
}
