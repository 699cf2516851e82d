package admission

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// res returns a container's requests and limits of cpu and memory. It omits a quantity that is "".
func res(cpu, cpuMost, memory, memoryMost string) corev1.ResourceRequirements {
	list := func(cpu, memory string) corev1.ResourceList {
		var pairs []string
		if cpu != "" {
			pairs = append(pairs, "cpu", cpu)
		}
		if memory != "" {
			pairs = append(pairs, "memory", memory)
		}
		if pairs == nil {
			return nil
		}
		return amounts(pairs...)
	}
	return corev1.ResourceRequirements{Requests: list(cpu, memory), Limits: list(cpuMost, memoryMost)}
}

func TestAResizeMayOnlyChangeCPUAndMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		live corev1.ResourceRequirements
		next func(p *corev1.Pod)
		want string
	}{
		{"larger requests and limits", res("20m", "30m", "35Mi", "45Mi"), give(res("25m", "35m", "40Mi", "50Mi")), ""},
		{"smaller requests and limits", res("20m", "30m", "35Mi", "45Mi"), give(res("15m", "25m", "30Mi", "40Mi")), ""},
		{"an added limit", res("20m", "", "", ""), give(res("25m", "35m", "35Mi", "")), ""},
		{"a larger limit with the same request", res("20m", "30m", "35Mi", "45Mi"), give(res("20m", "30m", "35Mi", "50Mi")), ""},
		{"no change", res("20m", "30m", "35Mi", "45Mi"), func(*corev1.Pod) {}, ""},
		{"a request above its limit", res("20m", "30m", "35Mi", "45Mi"), give(res("40m", "30m", "35Mi", "45Mi")), "spec.containers[0].resources.requests: Invalid value: \"40m\": must be less than or equal to cpu limit of 30m"},
		{"a request for a BestEffort pod", res("", "", "", ""), give(res("20m", "", "", "")), `spec: Invalid value: "BestEffort": Pod QOS Class may not change as a result of resizing`},
		{"requests equal to limits", res("20m", "30m", "35Mi", "45Mi"), give(res("30m", "30m", "45Mi", "45Mi")), `spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing`},
		{"a removed limit", res("20m", "30m", "35Mi", "45Mi"), give(res("20m", "", "35Mi", "")), "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"},
		{"a removed request", res("20m", "", "35Mi", ""), give(res("", "", "35Mi", "")), "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"},
		{"a resource other than cpu and memory", res("20m", "", "35Mi", ""), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceEphemeralStorage] = amounts("x", "1Mi")["x"]
		}, "spec: Forbidden: only cpu and memory resources are mutable"},
		{"a changed resize policy", res("20m", "", "35Mi", ""), func(p *corev1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu",
				RestartPolicy: "RestartContainer"}}
		}, "spec: Forbidden: only cpu and memory resources are mutable"},
		{"a renamed container", res("20m", "", "35Mi", ""), func(p *corev1.Pod) { p.Spec.Containers[0].Name = "shop" }, "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"},
		{"a missing container", res("20m", "", "35Mi", ""), func(p *corev1.Pod) { p.Spec.InitContainers = nil }, "spec.initContainers: Forbidden: initContainers may not be added or removed on resize"},
		{"an init container", res("20m", "", "35Mi", ""), func(p *corev1.Pod) { p.Spec.InitContainers[0].Resources = res("30m", "", "", "") }, ""},
		{"changes of other fields are ignored", res("20m", "", "35Mi", ""), func(p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Spec.NodeName, p.Labels, p.Status.Phase = "evil", "there",
				map[string]string{"a": "b"}, corev1.PodFailed
		}, ""},
		{"an agent without support for resize", res("20m", "", "35Mi", ""), func(p *corev1.Pod) { p.Annotations = map[string]string{"old": "agent"} }, "spec: Forbidden: Pod running on node without support for resize"},
	} {
		t.Run(c.name, func(t *testing.T) {
			live := aPod(t, "initContainers: [{name: first, image: a, resources: {requests: {cpu: 10m}}}]")
			live.Spec.Containers[0].Resources, live.Status.QOSClass = c.live, ""
			if !strings.Contains(c.want, "QOS") {
				Default(live, normal)
			} else {
				live.Spec.InitContainers = nil
				Default(live, normal)
			}
			live.Generation = 7
			next := live.DeepCopy()
			c.next(next)
			if next.Annotations["old"] != "" {
				live.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web",
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			}
			Default(next, normal)
			next = Resized(next, live)
			_, errs := AdmitResize(next, live, normal)
			expect(t, errs, c.want)
			if c.want != "" {
				return
			}
			next.Spec.Containers[0].Resources, next.Spec.InitContainers[0].Resources = live.Spec.Containers[0].Resources,
				live.Spec.InitContainers[0].Resources
			if a, b := next.String(), live.String(); a != b {
				t.Errorf("fields other than resources have changed:\n%s\nwant\n%s", a, b)
			}
		})
	}
}

func give(r corev1.ResourceRequirements) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources = r }
}

// A pod is resized up and down in a namespace with a quota and a limit range. The quota's usage
// includes resources that the device has not released yet.
func TestAQuotaCountsAResize(t *testing.T) {
	quota := quotaOf(amounts("requests.cpu", "50m", "limits.memory", "100Mi", "pods", "1"))
	within := &corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: amounts("memory", "80Mi")}}}}
	within.Name, within.Namespace = "r", "default"
	live := aContainer(t, "resources: {requests: {cpu: 20m, memory: 35Mi}, limits: {memory: 45Mi}}")
	live.Namespace = "default"
	status := func(p *corev1.Pod, r corev1.ResourceRequirements) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", AllocatedResources: r.Requests, Resources: &r}}
	}
	status(live, live.Spec.Containers[0].Resources)
	now := time.Unix(0, 0)
	s := having(quota, within, live)
	counted, _ := state.QuotaStatus(s, quota, now)
	quota.Status = counted
	s, _ = state.Apply(s, []state.Change{state.Put(quota, "")})
	resize := func(r corev1.ResourceRequirements, refused, cpu, memory string) {
		t.Helper()
		live := s.Pod("default", live.Name)
		next := live.DeepCopy()
		next.Spec.Containers[0].Resources = r
		changes, err := Resize(next, live, s, now)
		if err != nil && err.Error() != refused || err == nil && refused != "" {
			t.Errorf("got %v, want %q", err, refused)
		}
		if err != nil {
			return
		}
		s, _ = state.Apply(s, append(changes, state.Put(next, "")))
		used := s.Get(state.KeyOf(quota)).(*corev1.ResourceQuota).Status.Used
		if c, m := used["requests.cpu"], used["limits.memory"]; c.String() != cpu || m.String() != memory {
			t.Errorf("the quota's usage is %s of cpu and %s of memory, want %s and %s", c.String(), m.String(), cpu, memory)
		}
		if want, _ := state.QuotaStatus(s, s.Get(state.KeyOf(quota)).(*corev1.ResourceQuota), now); !sameUse(want.Used,
			used) {
			t.Errorf("the quota's status is %v, want %v", used, want.Used)
		}
	}
	resize(res("50m", "", "35Mi", "80Mi"), "", "50m", "80Mi")
	resize(res("51m", "", "35Mi", "80Mi"), "exceeded quota: q, requested: requests.cpu=1m, used: requests.cpu=50m, limited: requests.cpu=50m", "", "")
	resize(res("20m", "", "35Mi", "90Mi"), "maximum memory usage per Container is 80Mi, but limit is 90Mi", "", "")
	had := s.Pod("default", live.Name).DeepCopy()
	status(had, res("50m", "", "35Mi", "80Mi")) // the device has applied the resize
	s, _ = state.Apply(s, []state.Change{state.Put(had, "")})
	resize(res("10m", "", "35Mi", "40Mi"), "", "50m", "80Mi") // the old request counts until the device has applied the resize
	resize(res("10m", "", "35Mi", "45Mi"), "", "50m", "80Mi")
}

func sameUse(a, b corev1.ResourceList) bool {
	for name, x := range a {
		if y := b[name]; x.Cmp(y) != 0 {
			return false
		}
	}
	return len(a) == len(b)
}
