package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/podspec"
)

func TestCriticalPodsEndLastBeforeAShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		always, never, critical := makePod("always", "stubborn"), makePod("never", "wait"), makePod("critical", "wait")
		never.Spec.RestartPolicy = corev1.RestartPolicyNever
		critical.Spec.Priority = new(int32)
		*critical.Spec.Priority = podspec.SystemCritical
		pods := []corev1.Pod{always, critical, never}
		d.desire(1, pods...)
		time.Sleep(5 * time.Second)
		d.wantContainers("always/c0#0 running", "critical/c0#0 running", "never/c0#0 running")
		d.fake.Record()
		began := time.Now()
		d.agent.StopPods(t.Context(), 30*time.Second, 10*time.Second)
		if took := time.Since(began).Round(time.Second); took != 20*time.Second {
			t.Errorf("the shutdown took %s, want 20 s for the stubborn pod and no time for the critical pod", took)
		}
		stops := slices.DeleteFunc(d.fake.Calls(), func(c string) bool { return !strings.HasPrefix(c, "Stop ") })
		if len(stops) != 3 || !strings.Contains(stops[2], "critical") || !strings.HasSuffix(stops[2], "10s") {
			t.Errorf("the stops are %q, want three, critical the last", stops)
		}
		d.wantContainers("always/c0#0 exited", "critical/c0#0 exited", "never/c0#0 exited")
		cs := d.agent.Status().Status.Conditions
		if c := cs[len(cs)-1]; c.Type != corev1.NodeReady || c.Status != corev1.ConditionFalse ||
			c.Reason != "NodeShutdown" {
			t.Errorf("the last condition is %+v, want Ready=False, NodeShutdown", c)
		}
		for name, phase := range map[string]corev1.PodPhase{"always": corev1.PodRunning, "critical": corev1.PodRunning,
			"never": corev1.PodFailed} {
			if st := d.wantPhase(name, phase,
				"Terminated"); st.Message != "Pod was terminated in response to imminent node shutdown." {
				t.Errorf("the message of %s is %q, want the imminent shutdown", name, st.Message)
			}
		}
		if c := condition(d.wantPhase("never", corev1.PodFailed, "Terminated"),
			corev1.DisruptionTarget); c.Reason != corev1.PodReasonTerminationByKubelet {
			t.Errorf("the status of the failed pod is %+v, want DisruptionTarget", c)
		}
		d.desire(2, append(pods, makePod("new", "wait"))...) // the new pod waits for the next boot
		time.Sleep(10 * time.Second)
		d.wantContainers("always/c0#0 exited", "critical/c0#0 exited", "never/c0#0 exited")

		d.end()
		d.board.set(func(b *board) { b.boot = "boot-2" })
		d.start()
		time.Sleep(time.Minute)
		d.wantContainers("always/c0#0 exited", "always/c0#1 running", "critical/c0#0 exited", "critical/c0#1 running",
			"never/c0#0 exited", "new/c0#0 running")
		d.wantPhase("always", corev1.PodRunning, "")
		d.wantPhase("never", corev1.PodFailed, "Terminated")
	})
}

func TestPodsRunAgainAfterACancelledShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(5 * time.Second)
		d.agent.StopPods(t.Context(), 30*time.Second, 10*time.Second)
		time.Sleep(time.Minute)
		d.wantContainers("web/c0#0 exited")
		d.agent.StartPods()
		time.Sleep(time.Minute)
		d.wantContainers("web/c0#0 exited", "web/c0#1 running")
		d.wantPhase("web", corev1.PodRunning, "")
		cs := d.agent.Status().Status.Conditions
		if c := cs[len(cs)-1]; c.Status != corev1.ConditionTrue {
			t.Errorf("the Ready condition is %+v, want True", c)
		}
	})
}

// A hanging engine does not delay the shutdown beyond the grace period.
func TestAHangingPodDoesNotPreventTheShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(5 * time.Second)
		d.fake.SetDown(true)
		began := time.Now()
		d.agent.StopPods(t.Context(), 30*time.Second, 10*time.Second)
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("the shutdown took %s", took)
		}
	})
}
