package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

// otherArch is an engine of another architecture than the agent's. It has a runtime besides the
// default.
var otherArch = engine.Info{Name: "docker", Version: "29.1.0", OS: "linux", Arch: "riscv64",
	Runtimes: []string{"runc", "runsc"}, DefaultRuntime: "runc",
	MemLimit: true, CPULimit: true, PidsLimit: true, SwapLimit: true, CgroupV2: true}

func (d *device) nodeInfo() corev1.NodeSystemInfo { return d.agent.Status().Status.NodeInfo }

// Until its engine responds, an agent reports the engine's stored description, not the architecture
// of its own program.
func TestANodeReportsTheStoredEngineUntilTheEngineResponds(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.config.Runtimes = []string{"runsc"}
		d.board.set(func(b *board) { b.swap = 1 << 30 })
		d.fake.SetInfo(otherArch)
		d.start()
		time.Sleep(time.Second)
		before := d.agent.Status().Status
		if n := before.NodeInfo; n.Architecture != "riscv64" || n.ContainerRuntimeVersion != "docker://29.1.0" ||
			len(before.RuntimeHandlers) != 3 {
			t.Fatalf("the node reports the engine's values %s, %s, %v", n.Architecture, n.ContainerRuntimeVersion,
				before.RuntimeHandlers)
		}
		d.end()
		d.fake.SetDown(true)
		d.start()
		for range 25 {
			time.Sleep(time.Second)
			st := d.agent.Status()
			if n := st.Status.NodeInfo; n.Architecture != "riscv64" || n.ContainerRuntimeVersion != "docker://29.1.0" ||
				st.Registration.Labels[corev1.LabelArchStable] != "riscv64" ||
				!slices.EqualFunc(st.Status.RuntimeHandlers, before.RuntimeHandlers,
					func(a, b corev1.NodeRuntimeHandler) bool { return a.Name == b.Name }) {
				t.Fatalf("before the engine responds the node reports %s, %s, %v, labels %v", n.Architecture,
					n.ContainerRuntimeVersion, st.Status.RuntimeHandlers, st.Registration.Labels)
			}
		}
		// The engine was replaced while the agent was off: the agent reports the new description.
		next := otherArch
		next.Version, next.Arch = "30.0.0", "loong64"
		d.fake.SetInfo(next)
		d.fake.SetDown(false)
		time.Sleep(10 * time.Second)
		if n := d.nodeInfo(); n.Architecture != "loong64" || n.ContainerRuntimeVersion != "docker://30.0.0" {
			t.Errorf("the new engine is reported as %s, %s", n.Architecture, n.ContainerRuntimeVersion)
		}
	})
}

// Unknown values are absent from the status: a node without an architecture gets no pods that
// require one.
func TestAnUnknownEngineIsAbsentFromTheStatus(t *testing.T) {
	bubbleWithoutEngine(t, func(t *testing.T, d *device) {
		time.Sleep(time.Minute)
		st := d.agent.Status()
		if n := st.Status.NodeInfo; n.Architecture != "" || n.ContainerRuntimeVersion != "" ||
			n.OperatingSystem == "" ||
			st.Registration.Labels[corev1.LabelArchStable] != "" {
			t.Errorf("the node reports %+v, labels %v", n, st.Registration.Labels)
		}
		d.fake.SetInfo(otherArch)
		d.fake.SetDown(false)
		time.Sleep(10 * time.Second)
		if n := d.nodeInfo(); n.Architecture != "riscv64" {
			t.Errorf("once the engine responds the node reports %+v, want riscv64", n)
		}
	})
}
