package agent

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/wire"
)

// The kernel's limits follow a resize, without a restart unless the resizePolicy requires one, also
// after a restart of the agent.
func TestRealEngineResizesAPod(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("sized", "wait", "wait")
		p.UID = types.UID("uid-sized-" + d.node)
		p.Spec.Containers[1].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory,
			RestartPolicy: corev1.RestartContainer}}
		generation := int64(0)
		want := func(p corev1.Pod) {
			generation++
			p.Generation = generation
			if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
				t.Fatal(err)
			}
		}
		holds := func(kernel ...string) {
			t.Helper()
			d.await("the pod has its requested resources", func() bool {
				st := d.pod("sized")
				if !ready(st) || st.ObservedGeneration != generation {
					return false
				}
				for _, c := range st.Conditions {
					if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
						return false
					}
				}
				return true
			})
			for i, want := range kernel {
				if got := d.kernel(fmt.Sprint("c", i)); got != want {
					t.Errorf("the kernel's limits of c%d are %s, want %s", i, got, want)
				}
			}
		}
		restarts := func(first, second int32) {
			t.Helper()
			st := d.pod("sized").ContainerStatuses
			if st[0].RestartCount != first || st[1].RestartCount != second {
				t.Errorf("the containers were restarted %d and %d times, want %d and %d", st[0].RestartCount,
					st[1].RestartCount,
					first, second)
			}
		}
		want(withResources(withResources(p, 0, "20m/30m 35Mi/45Mi"), 1, "20m/- 35Mi/-"))
		holds("memory 45Mi cpu 3000", "memory max cpu max")
		want(withResources(withResources(p, 0, "25m/35m 40Mi/50Mi"), 1, "30m/40m 35Mi/-"))
		holds("memory 50Mi cpu 3500", "memory max cpu 4000")
		restarts(0, 0)
		want(withResources(withResources(p, 0, "15m/25m 30Mi/40Mi"), 1, "30m/40m 35Mi/60Mi"))
		holds("memory 40Mi cpu 2500", "memory 60Mi cpu 4000")
		restarts(0, 1)
		d.end()
		d.start()
		holds("memory 40Mi cpu 2500", "memory 60Mi cpu 4000")
		want(withResources(withResources(p, 0, "20m/30m 35Mi/45Mi"), 1, "30m/40m 35Mi/60Mi"))
		d.end()
		d.start()
		holds("memory 45Mi cpu 3000", "memory 60Mi cpu 4000")
		restarts(0, 1)
		want(withResources(withResources(p, 0, "20m/30m 10Ki/10Ki"), 1, "30m/40m 35Mi/60Mi"))
		d.await("a limit below the usage is refused", func() bool {
			st := d.pod("sized")
			return st.ObservedGeneration == generation &&
				strings.Contains(shown(*st), "PodResizeInProgress=True Error: cannot decrease memory limits")
		})
		if got := d.kernel("c0"); got != "memory 45Mi cpu 3000" {
			t.Errorf("after the refusal the kernel's limits are %s, want the earlier ones", got)
		}
		want(withResources(withResources(p, 0, "20m/30m 35Mi/40Mi"), 1, "30m/40m 35Mi/60Mi"))
		holds("memory 40Mi cpu 3000", "memory 60Mi cpu 4000")
		restarts(0, 1)
	})
}

// kernel reads the kernel's limits of a container, with cgroup v1 or v2.
func (d *realDevice) kernel(container string) string {
	d.t.Helper()
	read := func(files ...string) string {
		for _, c := range d.list() {
			for _, file := range files {
				var out bytes.Buffer
				if c.Labels[plan.LabelContainer] != container || c.State != engine.Running {
					continue
				}
				if code, err := d.eng.Exec(d.t.Context(), c.ID, []string{"/tool", "cat", "/sys/fs/cgroup/" + file},
					engine.Streams{Stdout: &out}); err == nil && code == 0 {
					return strings.Fields(out.String())[0]
				}
			}
		}
		d.t.Errorf("no %q in container %s", files, container)
		return ""
	}
	memory, cpu := read("memory.max", "memory/memory.limit_in_bytes"), read("cpu.max", "cpu/cpu.cfs_quota_us")
	var n int64
	if _, err := fmt.Sscan(memory, &n); err != nil || n > 1<<60 {
		memory = "max"
	} else {
		memory = fmt.Sprintf("%dMi", n>>20)
	}
	if cpu == "-1" {
		cpu = "max"
	}
	return "memory " + memory + " cpu " + cpu
}
