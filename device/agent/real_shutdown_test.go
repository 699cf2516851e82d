package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

func TestRealEngineStopsPodsBeforeAShutdown(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		pods := []corev1.Pod{makePod("two", "wait", "wait"), makePod("one", "wait")}
		for i := range pods {
			pods[i].UID = types.UID("uid-" + pods[i].Name + "-" + d.node)
			pods[i].Spec.TerminationGracePeriodSeconds = new(int64)
			*pods[i].Spec.TerminationGracePeriodSeconds = 60
		}
		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: pods}))
		d.await("the pods run", func() bool { return ready(d.pod("one")) && ready(d.pod("two")) })
		d.agent.StopPods(t.Context(), 2*time.Minute, time.Minute)
		if i := slices.IndexFunc(d.list(), func(c engine.Container) bool { return c.State != engine.Exited }); i >= 0 {
			t.Errorf("container %s is %s, want exited", d.list()[i].Name, d.list()[i].State)
		}
		if st := d.pod("two"); st.Reason != "Terminated" || ready(st) {
			t.Errorf("the pod is %s with %+v, want Terminated and not ready", st.Reason, st.Conditions)
		}
		d.end()
		d.start()
		d.await("the next agent runs the pods again", func() bool { return ready(d.pod("one")) && ready(d.pod("two")) })
	})
}
