package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// While the agent is off, another client restarts all containers of the device, the sandbox last.
// So the others run in the old network.
func TestRealEngineReplacesContainersInAnOldNetwork(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("two", "serve :8080", "wait")
		p.UID = types.UID("uid-two-" + d.node)
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
			t.Fatal(err)
		}
		d.await("the pod is ready", func() bool { return ready(d.pod("two")) })
		networks := func() map[string]string {
			out := map[string]string{}
			for _, c := range d.list() {
				if c.State == engine.Running {
					out[c.Labels[plan.LabelContainer]] = c.Net
				}
			}
			return out
		}
		if n := networks(); len(n) != 3 || n[""] == "" || n["c0"] != n[""] || n["c1"] != n[""] {
			t.Fatalf("the containers are in the networks %q", n)
		}
		d.end()
		for _, c := range d.list() {
			if c.Labels[plan.LabelKind] == podspec.KindSandbox {
				if err := d.eng.Stop(t.Context(), c.ID, 0); err != nil {
					t.Fatal(err)
				}
				if err := d.eng.Start(t.Context(), c.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := networks(); len(n) != 3 || n["c0"] == n[""] || n["c1"] == n[""] {
			t.Fatalf("after the restart the containers are in the networks %q", n)
		}
		d.start()
		d.await("both containers are in the pod's network again", func() bool {
			st, n := d.pod("two"), networks()
			return ready(st) && len(n) == 3 && n["c0"] == n[""] && n["c1"] == n[""] &&
				st.ContainerStatuses[0].RestartCount == 1 && st.ContainerStatuses[1].RestartCount == 1
		})
	})
}
