package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/probe"
	"flotilla.dev/shared/wire"
)

// Containers of a pod with a shared process namespace see each other's processes, and the end of
// one container does not stop another. Other pods' processes are invisible.
func TestRealEngineSharesProcesses(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		yes, grace := true, int64(5)
		p := makePod("share", "print mine then wait", "print other then wait")
		alone := makePod("alone", "print mine then wait", "print other then wait")
		for _, x := range []*corev1.Pod{&p, &alone} {
			x.UID = types.UID("uid-" + x.Name + "-" + d.node)
			x.Spec.TerminationGracePeriodSeconds = &grace
		}
		p.Spec.ShareProcessNamespace = &yes
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p, alone}}); err != nil {
			t.Fatal(err)
		}
		d.await("the pods are ready", func() bool { return ready(d.pod("share")) && ready(d.pod("alone")) })
		ids := map[string]string{}
		for _, x := range d.list() {
			ids[x.Labels[plan.LabelPodName]+"/"+x.Labels[plan.LabelContainer]] = x.ID
		}
		first := func(id string) string { // command line of process 1
			out := probe.Limited{Max: 200}
			if code, err := d.eng.Exec(t.Context(), id, []string{"/tool", "cat", "/proc/1/cmdline"},
				engine.Streams{Stdout: &out, Stderr: &out}); err != nil || code != 0 {
				t.Errorf("read the command line: exit code %d, error %v: %s", code, err, out.Bytes)
			}
			return string(out.Bytes)
		}
		for _, c := range []string{"c0", "c1"} {
			if got := first(ids["share/"+c]); !strings.Contains(got, pause.Target) {
				t.Errorf("process 1 of share/%s is %q, want the sandbox's", c, got)
			}
			if got := first(ids["alone/"+c]); strings.Contains(got, pause.Target) {
				t.Errorf("process 1 of alone/%s is %q, want its own", c, got)
			}
		}
		if err := d.eng.Stop(t.Context(), ids["share/c0"], 0); err != nil {
			t.Fatal(err)
		}
		d.await("the container has been restarted", func() bool {
			st := d.pod("share")
			return ready(st) &&
				st.ContainerStatuses[0].RestartCount == 1
		})
		if st := d.pod("share"); st.ContainerStatuses[1].RestartCount != 0 {
			t.Error("the other container was restarted too")
		}
		if err := d.agent.Store(wire.Desired{Generation: 2, Hub: "h",
			Pods: []corev1.Pod{deletedPod(p, 5), alone}}); err != nil {
			t.Fatal(err)
		}
		d.await("the pod is gone", func() bool { return d.pod("share") == nil })
	})
}
