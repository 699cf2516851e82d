package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/probe"
	"flotilla.dev/shared/wire"
)

// An ephemeral container is on its pod's network, sees its target's processes, and keeps running
// without the agent. It blocks neither restarts of its target nor the pod's end.
func TestRealEngineRunsEphemeralContainers(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		one, two := makePod("one", "serve :8080"), makePod("two", "serve :8080", "wait")
		one.UID, two.UID = types.UID("uid-one-"+d.node), types.UID("uid-two-"+d.node)
		store := func(generation int64, pods ...corev1.Pod) {
			t.Helper()
			if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "h", Pods: pods}); err != nil {
				t.Fatal(err)
			}
		}
		store(1, one, two)
		d.await("the pods are ready", func() bool { return ready(d.pod("one")) && ready(d.pod("two")) })
		one, two = debugged(debugged(one, "look", "c0", "wait"), "fetch", "", "get http://127.0.0.1:8080/"),
			debugged(two, "look", "c0", "wait")
		store(2, one, two)
		state := func(pod string, i int) corev1.ContainerState {
			if st := d.pod(pod); st != nil && i < len(st.EphemeralContainerStatuses) {
				return st.EphemeralContainerStatuses[i].State
			}
			return corev1.ContainerState{}
		}
		d.await("the ephemeral containers run", func() bool {
			return state("one", 0).Running != nil && state("two", 0).Running != nil && state("one", 1).Terminated != nil
		})
		if end := state("one", 1).Terminated; end.ExitCode != 0 {
			t.Errorf("the ephemeral container does not reach its pod at 127.0.0.1: %+v", end)
		}
		ids := func() map[string]string {
			out := map[string]string{}
			for _, x := range d.list() {
				if x.State == engine.Running {
					out[x.Labels[plan.LabelPodName]+"/"+x.Labels[plan.LabelContainer]] = x.ID
				}
			}
			return out
		}
		before := ids()
		for _, name := range []string{"one/look", "two/look"} {
			out := probe.Limited{Max: 200}
			if code, err := d.eng.Exec(t.Context(), before[name], []string{"/tool", "cat", "/proc/1/cmdline"},
				engine.Streams{Stdout: &out, Stderr: &out}); err != nil || code != 0 ||
				!strings.Contains(string(out.Bytes), "serve") {
				t.Errorf("process 1 of %s is %q (%d, %v)", name, out.Bytes, code, err)
			}
		}
		d.end()
		d.start()
		d.await("the agent has adopted the containers", func() bool {
			return state("one", 0).Running != nil &&
				state("two", 0).Running != nil
		})
		for name, id := range ids() {
			if before[name] != id {
				t.Errorf("%s was replaced by a restart of the agent", name)
			}
		}
		// when the target ends, the kernel kills the processes in its PID namespace
		for restarts := int32(1); restarts <= 3; restarts++ {
			if err := d.eng.Stop(t.Context(), ids()["two/c0"], 0); err != nil {
				t.Fatal(err)
			}
			d.await("the target has been restarted", func() bool {
				st := d.pod("two")
				return ready(st) && st.ContainerStatuses[0].RestartCount == restarts
			})
		}
		d.await("the ephemeral container has ended with its target",
			func() bool { return state("two", 0).Terminated != nil })
		store(3, deletedPod(one, 5), deletedPod(two, 5))
		d.await("the pods are gone", func() bool {
			return d.pod("one") == nil && d.pod("two") == nil &&
				len(d.list()) == 0
		})
	})
}
