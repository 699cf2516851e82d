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
	was, now := makePod("p", "wait"), makePod("p", "wait")
	was.Generation, now.Generation = 1, 2
	d := KeepGrants(wire.Desired{Pods: []corev1.Pod{withResources(was, 0, "20m/30m 35Mi/45Mi")}}, wire.Desired{Pods: []corev1.Pod{withResources(now, 0, "25m/35m 40Mi/50Mi")}})
	run, asked := SplitGrants(d)
	pod := &run.Pods[0]
	if len(asked) != 1 {
		t.Fatalf("requested: %v", asked)
	}
	o := &Observed{Requested: asked, Pods: map[types.UID]*Record{}}
	r := o.RecordOf(pod.UID)
	observed := func() int64 { return PodStatus(pod, r, o, "docker", time.Now()).ObservedGeneration }
	if got := observed(); got != 1 {
		t.Errorf("requested, it has the observed generation %d", got)
	}
	r.ResizePending = &Verdict{corev1.PodReasonDeferred, "no room"}
	if got := observed(); got != 2 {
		t.Errorf("deferred, it has the observed generation %d", got)
	}
	r.ResizePending, o.Requested = nil, nil
	if got := observed(); got != 2 {
		t.Errorf("granted, it has the observed generation %d", got)
	}
}

// As with the kubelet, a container whose hook has failed is waiting until it runs again.
func TestTheStatusOfAFailedPostStartHook(t *testing.T) {
	p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook")}, 1)
	w := podspec.Containers(&p)[0]
	c := &ContainerRecord{ID: "a", State: engine.Running, PostStarted: true, KillReason: "FailedPostStartHook", HookError: "PostStartHook failed: no"}
	if s := containerStatus(w, c, true, false, "docker", Epoch); s.State.Waiting == nil || s.State.Waiting.Reason != "ContainerCreating" || s.Ready {
		t.Errorf("while it is being stopped it is %+v", s.State)
	}
	c.State, c.Ended = engine.Exited, &corev1.ContainerStateTerminated{ExitCode: 137}
	s := containerStatus(w, c, true, true, "docker", Epoch)
	if s.State.Waiting == nil || s.State.Waiting.Reason != "PostStartHookError" || s.State.Waiting.Message != "PostStartHook failed: no" ||
		s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 137 {
		t.Errorf("before it starts again it is %+v, was %+v", s.State, s.LastTerminationState)
	}
	if s := containerStatus(w, c, true, false, "docker", Epoch); s.State.Terminated == nil {
		t.Errorf("when it does not start again it is %+v", s.State)
	}
}

// A pod's containers are removed once its final status is stored.
func TestAPodIsRemovedAfterItsFinalStatusIsStored(t *testing.T) {
	pod := deletedPod(makePod("job", "exit 0"), 1)
	o := &Observed{Pods: map[types.UID]*Record{}, Containers: []Instance{{Container: engine.Container{ID: "1", State: engine.Exited}, Place: Place{pod.UID, "c0"}}}}
	r := o.RecordOf(pod.UID)
	r.Admitted, r.Final, r.SavingFinal = true, &corev1.PodStatus{Phase: corev1.PodSucceeded}, true
	for _, noting := range []bool{true, false} {
		r.SavingFinal = noting
		if steps, _ := Steps(wire.Desired{Pods: []corev1.Pod{pod}}, o, time.Now()); len(steps) > 0 == noting {
			t.Errorf("while it is being stored %v: %v", noting, steps)
		}
	}
}

// An image cannot set a label that the agent reads.
func TestAnImageSetsNoLabelOfTheAgent(t *testing.T) {
	l := labels(Step{Pod: new(makePod("web", "wait"))}, Facts{Name: "pi-1"})
	for _, key := range []string{LabelAgent, LabelStateDir, LabelPodUID, LabelPodName, LabelNamespace, LabelContainer, LabelKind, LabelRestarts,
		LabelBoot, LabelGrace, LabelPodStart, LabelPodUptime, LabelSpecHash, LabelDevices, LabelShares} {
		if _, set := l[key]; !set {
			t.Errorf("%s is not set, so the image may set it", key)
		}
	}
}

// The longest possible grace period does not overflow to 0.
func TestALongGraceOfAnOrphanDoesNotOverflow(t *testing.T) {
	if g := orphanGrace([]Instance{{Container: engine.Container{Labels: map[string]string{LabelGrace: "9223372036854775807"}}}}); g < 24*time.Hour {
		t.Errorf("the grace of an orphan is %s", g)
	}
}
