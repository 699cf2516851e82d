package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// While a resize is neither granted nor refused, the status has the old generation. Otherwise a
// client that waits for the generation would consider the pod resized.
func TestARequestedResizeIsNotObserved(t *testing.T) {
	old, changed := makePod("p", "wait"), makePod("p", "wait")
	old.Generation, changed.Generation = 1, 2
	d := KeepGrants(wire.Desired{Pods: []corev1.Pod{withResources(old, 0, "20m/30m 35Mi/45Mi")}},
		wire.Desired{Pods: []corev1.Pod{withResources(changed, 0, "25m/35m 40Mi/50Mi")}})
	run, requested := SplitGrants(d)
	pod := &run.Pods[0]
	if len(requested) != 1 {
		t.Fatalf("the requested resizes are %v, want one", requested)
	}
	o := &Observed{Requested: requested, Pods: map[types.UID]*Record{}}
	r := o.RecordOf(pod.UID)
	observed := func() int64 { return PodStatus(pod, r, o, "docker", time.Now()).ObservedGeneration }
	if got := observed(); got != 1 {
		t.Errorf("with a requested resize the observed generation is %d, want 1", got)
	}
	r.ResizePending = &Verdict{corev1.PodReasonDeferred, "no room"}
	if got := observed(); got != 2 {
		t.Errorf("with a deferred resize the observed generation is %d, want 2", got)
	}
	r.ResizePending, o.Requested = nil, nil
	if got := observed(); got != 2 {
		t.Errorf("with a granted resize the observed generation is %d, want 2", got)
	}
}

// As with the kubelet, a container whose hook has failed is waiting until it runs again.
func TestTheStatusOfAFailedPostStartHook(t *testing.T) {
	p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook")}, 1)
	w := podspec.Containers(&p)[0]
	c := &ContainerRecord{ID: "a", State: engine.Running, PostStarted: true, KillReason: "FailedPostStartHook",
		HookError: "PostStartHook failed: no"}
	if s := containerStatus(w, c, true, false, "docker", Epoch); s.State.Waiting == nil ||
		s.State.Waiting.Reason != "ContainerCreating" || s.Ready {
		t.Errorf("while the container is being stopped its status is %+v, want ContainerCreating and not ready", s.State)
	}
	c.State, c.Ended = engine.Exited, &corev1.ContainerStateTerminated{ExitCode: 137}
	s := containerStatus(w, c, true, true, "docker", Epoch)
	if s.State.Waiting == nil || s.State.Waiting.Reason != "PostStartHookError" ||
		s.State.Waiting.Message != "PostStartHook failed: no" ||
		s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 137 {
		t.Errorf("before the restart the container's state is %+v, its last state %+v", s.State, s.LastTerminationState)
	}
	if s := containerStatus(w, c, true, false, "docker", Epoch); s.State.Terminated == nil {
		t.Errorf("without a restart the container's status is %+v, want it terminated", s.State)
	}
}

// A pod's containers are removed once its final status is stored.
func TestAPodIsRemovedAfterItsFinalStatusIsStored(t *testing.T) {
	pod := deletedPod(makePod("job", "exit 0"), 1)
	o := &Observed{Pods: map[types.UID]*Record{},
		Containers: []Instance{{Container: engine.Container{ID: "1", State: engine.Exited},
			Place: Place{pod.UID, "c0"}}}}
	r := o.RecordOf(pod.UID)
	r.Admitted, r.Final, r.SavingFinal = true, &corev1.PodStatus{Phase: corev1.PodSucceeded}, true
	for _, saving := range []bool{true, false} {
		r.SavingFinal = saving
		if steps, _ := Steps(wire.Desired{Pods: []corev1.Pod{pod}}, o, time.Now()); len(steps) > 0 == saving {
			t.Errorf("the final status is being stored: %v; the steps are %v", saving, steps)
		}
	}
}

// An image cannot set a label that the agent reads.
func TestAnImageSetsNoLabelOfTheAgent(t *testing.T) {
	l := labels(Step{Pod: new(makePod("web", "wait"))}, Facts{Name: "pi-1"})
	for _, key := range []string{LabelAgent, LabelStateDir, LabelPodUID, LabelPodName, LabelNamespace, LabelContainer,
		LabelKind, LabelRestarts,
		LabelBoot, LabelGrace, LabelPodStart, LabelPodUptime, LabelSpecHash, LabelDevices, LabelShares} {
		if _, set := l[key]; !set {
			t.Errorf("the label %s is not set, so the image may set it", key)
		}
	}
}

// The longest possible grace period does not overflow to 0.
func TestALongGraceOfAnOrphanDoesNotOverflow(t *testing.T) {
	if g := orphanGrace([]Instance{{Container: engine.Container{Labels: map[string]string{LabelGrace: "9223372036854775807"}}}}); g < 24*time.Hour {
		t.Errorf("the grace period of an unknown pod is %s, want at least a day", g)
	}
}
