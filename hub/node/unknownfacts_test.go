package node_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// If a device does not know a fact at the moment, the node keeps the last value: architecture and
// engine until the engine answers, the board profile until its memory can be read. Another machine
// with the same name starts without these values.
func TestUnknownFactsKeepTheirLastValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		l.Profile = func(_ state.Snapshot, st corev1.NodeStatus, _ json.RawMessage) string {
			if st.Capacity.Memory().Value() >= 1<<30 && st.NodeInfo.Architecture == "arm64" {
				return "big"
			}
			return ""
		}
		st := from("b", 1)
		st.Hardware = json.RawMessage(`{"board":{"name":"raspberrypi4"}}`)
		st.Status.NodeInfo.MachineID, st.Status.NodeInfo.ContainerRuntimeVersion = st.MachineID, "docker://29.1.0"
		st.Status.Capacity[corev1.ResourceMemory] = resource.MustParse("2Gi")
		st.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "runsc"}}
		hear(t, l, "pi-1", st)

		st.Seq, st.Status.NodeInfo.Architecture, st.Status.NodeInfo.ContainerRuntimeVersion, st.Status.RuntimeHandlers = 2,
			"", "", nil
		delete(st.Status.Capacity, corev1.ResourceMemory)
		n := hear(t, l, "pi-1", st)
		if i := n.Status.NodeInfo; i.Architecture != "arm64" || i.ContainerRuntimeVersion != "docker://29.1.0" ||
			len(n.Status.RuntimeHandlers) != 1 {
			t.Errorf("the node is %+v with %v", i, n.Status.RuntimeHandlers)
		}
		if n.Labels[corev1.LabelArchStable] != "arm64" || n.Labels[fleet.LabelProfile] != "big" {
			t.Errorf("the node's labels are %v", n.Labels)
		}

		st.Seq, st.Status.NodeInfo.ContainerRuntimeVersion = 3, "docker://30.0.0" // the report has no other runtimes
		st.Status.NodeInfo.Architecture = "arm"
		st.Status.Capacity[corev1.ResourceMemory] = resource.MustParse("2Gi")
		n = hear(t, l, "pi-1", st)
		if i := n.Status.NodeInfo; i.Architecture != "arm" || i.ContainerRuntimeVersion != "docker://30.0.0" ||
			len(n.Status.RuntimeHandlers) != 0 || n.Labels[fleet.LabelProfile] != "" {
			t.Errorf("the new values do not count: %+v with %v, labels %v", i, n.Status.RuntimeHandlers, n.Labels)
		}

		st.Seq, st.Status.NodeInfo = 4, corev1.NodeSystemInfo{OperatingSystem: "linux", MachineID: "another"}
		if n = hear(t, l, "pi-1", st); n.Status.NodeInfo.Architecture != "" {
			t.Errorf("another machine has the facts of the first: %+v", n.Status.NodeInfo)
		}
	})
}
