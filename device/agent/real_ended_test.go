package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// A pod past its deadline has ended only after its container has stopped.
func TestRealEngineEndsAPodAfterItsContainer(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("late", "stubborn")
		p.UID = types.UID("uid-late-" + d.node)
		grace, deadline := int64(4), int64(3)
		p.Spec.TerminationGracePeriodSeconds, p.Spec.ActiveDeadlineSeconds = &grace, &deadline
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
			t.Fatal(err)
		}
		stopping := false
		d.await("the pod has ended", func() bool {
			st := d.pod("late")
			if st == nil || !plan.IsFinal(st.Phase) {
				stopping = stopping || st != nil && st.Reason == "DeadlineExceeded"
				return false
			}
			if slices.ContainsFunc(d.list(), func(c engine.Container) bool { return c.State == engine.Running }) {
				t.Fatalf("the pod is %s, and its container runs", st.Phase)
			}
			return true
		})
		if !stopping {
			t.Error("the test did not observe the stop")
		}
		time.Sleep(time.Second)
		if st := d.pod("late"); st.Phase != corev1.PodFailed || st.Reason != "DeadlineExceeded" ||
			st.ContainerStatuses[0].State.Terminated == nil {
			t.Errorf("the pod's status is %+v", st)
		}
	})
}

// A pod whose sandbox has ended gets a new sandbox and runs its init containers again. A restarted
// agent does not repeat them.
func TestRealEngineRunsInitContainersAgainInANewSandbox(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("again", "wait")
		p.UID = types.UID("uid-again-" + d.node)
		grace := int64(1)
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: enginetest.ToolImage,
			Args: []string{"exit", "0"}}}
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
			t.Fatal(err)
		}
		d.await("the pod is ready", func() bool { return ready(d.pod("again")) })
		first := d.pod("again").InitContainerStatuses[0].ContainerID
		for _, c := range d.list() {
			if c.Labels[plan.LabelKind] == podspec.KindSandbox {
				if err := d.eng.Stop(t.Context(), c.ID, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		d.await("the pod has a new sandbox", func() bool {
			return ready(d.pod("again")) && slices.ContainsFunc(d.list(), func(c engine.Container) bool {
				return c.Labels[plan.LabelKind] == podspec.KindSandbox && c.Labels[plan.LabelRestarts] == "1"
			})
		})
		d.end()
		d.start()
		d.await("the pod is ready again", func() bool { return ready(d.pod("again")) })
		c := d.pod("again").InitContainerStatuses[0]
		if c.State.Terminated == nil || c.State.Terminated.Reason != "Completed" || c.ContainerID == first ||
			c.ContainerID == "" {
			t.Errorf("the init container is %+v, was %s", c, first)
		}
	})
}
