package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
)

// endingPods are pods that end after a minute, each for another reason, while one container needs
// 20 s to stop.
func endingPods() map[string]corev1.Pod {
	grace, deadline := int64(20), int64(60)
	always := corev1.ContainerRestartPolicyAlways
	sidecar := corev1.Container{Name: "helper", Image: enginetest.ToolImage, Args: []string{"stubborn"},
		RestartPolicy: &always}
	fails := corev1.Container{Name: "init", Image: enginetest.ToolImage, Args: strings.Fields("sleep 1m then exit 1")}
	pod := func(change func(*corev1.PodSpec), commands ...string) corev1.Pod {
		p := makePod("old", commands...)
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		change(&p.Spec)
		return p
	}
	never := func(init ...corev1.Container) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.RestartPolicy, s.InitContainers = corev1.RestartPolicyNever, init }
	}
	late := func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = &deadline }
	return map[string]corev1.Pod{
		"the pod's deadline":                   pod(late, "stubborn"),
		"the deadline of a pod with a sandbox": pod(late, "stubborn", "wait"),
		"the last container except a sidecar":  pod(never(sidecar), "sleep 1m then exit 1"),
		"the init container except a sidecar":  pod(never(sidecar, fails), "wait"),
	}
}

// As with the kubelet, an ended pod keeps its addresses.
func TestAPodKeepsItsAddressWhenItHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		one, two := makePod("one", "sleep 10s"), makePod("two", "sleep 10s", "sleep 12s then exit 1")
		for _, p := range []*corev1.Pod{&one, &two} {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
		}
		again := makePod("again", "sleep 10s then exit 1")
		d.desire(1, one, two, again)
		time.Sleep(5 * time.Second)
		was := map[string]string{}
		for _, name := range []string{"one", "two"} {
			was[name] = d.wantPhase(name, corev1.PodRunning, "").PodIP
		}
		time.Sleep(30 * time.Second) // the container waits for its second restart
		for name, phase := range map[string]corev1.PodPhase{"one": corev1.PodSucceeded, "two": corev1.PodFailed} {
			if st := d.wantPhase(name, phase, ""); st.PodIP != was[name] || st.PodIP == "" || len(st.PodIPs) != 1 {
				t.Errorf("%s ran with the address %q and ended with %q", name, was[name], st.PodIP)
			}
		}
		if st := d.wantPhase("again", corev1.PodRunning, ""); st.PodIP == "" {
			t.Errorf("a container that waits for its restart has no address: %+v", st)
		}
	})
}

// The agent reports a pod's final phase only after all its containers have stopped, and only then
// gives its port to another pod. Otherwise a replacement could use the same volumes and ports at
// the same time.
func TestAPodHasEndedWhenItsContainersHaveStopped(t *testing.T) {
	for name, p := range endingPods() {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the agent restarts meanwhile %v", name, restart), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *device) { endsOnce(t, d, p, restart) })
			})
		}
	}
}

func endsOnce(t *testing.T, d *device, p corev1.Pod, restart bool) {
	next := makePod("next", "wait")
	next.Spec.Containers[0].Ports = p.Spec.Containers[0].Ports
	d.desire(1, p)
	runs := true
	for tick := 0; runs && tick < 1000; tick++ { // a tick is 100 ms
		time.Sleep(100 * time.Millisecond)
		switch {
		case tick == 650: // the pod has been ending for 5 s
			d.desire(2, p, next)
		case tick == 700 && restart:
			d.end()
			d.start()
		}
		synctest.Wait()
		runs = tick < 600 || slices.ContainsFunc(d.containers(),
			func(c string) bool { return strings.HasPrefix(c, "old/") && strings.HasSuffix(c, "running") })
		if st, _ := d.pod("old"); runs && plan.IsFinal(st.Phase) {
			t.Fatalf("after %d ms the pod is %s (%s), with the containers %q", tick*100, st.Phase, st.Reason,
				d.containers())
		}
		if st, _ := d.pod("next"); runs && st.Phase == corev1.PodRunning {
			t.Fatalf("after %d ms the next pod has the port, with the containers %q", tick*100, d.containers())
		}
	}
	time.Sleep(time.Second)
	st, _ := d.pod("old")
	if runs || st.Phase != corev1.PodFailed {
		t.Fatalf("in the end the pod is %s (%s), with the containers %q", st.Phase, st.Reason, d.containers())
	}
	for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
		if c.Ready || c.State.Running != nil {
			t.Errorf("in the end container %s is ready=%v, %+v", c.Name, c.Ready, c.State)
		}
	}
	time.Sleep(5 * time.Second)
	d.wantPhase("next", corev1.PodRunning, "")
}

// After a power cut or a restart of the agent, a container that has ended for good does not start
// again in a new sandbox.
func TestAContainerThatHasEndedForGoodDoesNotRunAgainInANewSandbox(t *testing.T) {
	for _, c := range []struct {
		policy corev1.RestartPolicy
		ends   string
		code   int32
		reason string
	}{
		{corev1.RestartPolicyOnFailure, "exit 0", 0, "Completed"},
		{corev1.RestartPolicyNever, "exit 3", 3, "Error"},
	} {
		t.Run(string(c.policy), func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				runs := 0
				d.fake.AddImage("task", 1, func(s engine.Spec, run int) enginetest.Play {
					if play := toolOrPause(s, run); len(s.Entrypoint) > 0 {
						return play
					}
					runs++
					return enginetest.ToolProgram(s, run)
				})
				always := corev1.ContainerRestartPolicyAlways
				p := makePod("job", c.ends, "wait")
				p.Spec.RestartPolicy = c.policy
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "task", corev1.PullNever
				p.Spec.Containers[1].RestartPolicy = &always
				d.desire(1, p)
				time.Sleep(10 * time.Second)
				for boot := range 3 {
					d.end()
					d.fake.PowerCut()
					d.board.set(func(b *board) { b.boot = fmt.Sprint("boot-", boot) })
					d.start()
					time.Sleep(time.Minute)
					d.end()
					d.start()
					time.Sleep(time.Minute)
				}
				st := d.wantPhase("job", corev1.PodRunning, "")
				done, running := st.ContainerStatuses[0].State, st.ContainerStatuses[1]
				if done.Terminated == nil || done.Terminated.ExitCode != c.code || done.Terminated.Reason != c.reason ||
					done.Terminated.FinishedAt.IsZero() || runs != 1 {
					t.Errorf("the ended container has run %d times and is %+v, want once and ended", runs, done)
				}
				if running.State.Running == nil {
					t.Errorf("the other container is %+v, want it running", running.State)
				}
			})
		})
	}
}
