package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/probe"
	"flotilla.dev/device/request"
)

// A paused container is not ready, whatever the result of its last probe.
func TestAPausedContainerIsNotReady(t *testing.T) {
	for name, kind := range map[string]*corev1.Probe{"without probes": nil,
		"with a readiness probe": &corev1.Probe{PeriodSeconds: 5, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/tool", "print", "hello"}}}}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				pod := makePod("web", "wait")
				pod.Spec.Containers[0].ReadinessProbe = kind
				d.desire(1, pod)
				time.Sleep(10 * time.Second)
				container := plan.NameOf("c0", "web", "default", "uid-web", "0")
				ready := func(want bool) corev1.PodCondition {
					t.Helper()
					st := d.wantPhase("web", corev1.PodRunning, "")
					c := condition(st, corev1.PodReady)
					if st.ContainerStatuses[0].Ready != want || (c.Status == corev1.ConditionTrue) != want {
						t.Fatalf("the container's status is %+v, the pod's %+v; want ready %v",
							st.ContainerStatuses[0], c, want)
					}
					return c
				}
				ready(true)
				d.fake.Pause(container, true)
				time.Sleep(time.Second)
				if c := ready(false); !strings.Contains(c.Message, "paused") || !strings.Contains(c.Message, "c0") {
					t.Errorf("the condition's message is %q, want that c0 is paused", c.Message)
				}
				time.Sleep(time.Minute)
				ready(false)
				d.wantContainers("web/c0#0 paused")
				d.fake.Pause(container, false)
				time.Sleep(10 * time.Second)
				ready(true)
			})
		})
	}
}

// A paused container fails every probe, although the kernel still accepts connections for it.
func TestAPausedContainerFailsItsLivenessProbe(t *testing.T) {
	for name, kind := range map[string]*corev1.Probe{
		"exec": &corev1.Probe{PeriodSeconds: 5, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/tool", "print", "hello"}}}},
		"tcp":  {PeriodSeconds: 5, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &plan.ContainerRecord{ID: "1", State: engine.Running}
			s := plan.Step{Probe: podspec.Liveness, ID: "1", Spec: &corev1.Container{Name: "c0", LivenessProbe: kind}}
			unmade := error(&probe.Error{Err: context.DeadlineExceeded})
			if message := c.Probed(s, nil, time.Now()); message != "" {
				t.Error(message)
			}
			c.State = engine.Paused
			for _, err := range []error{nil, unmade, unmade} {
				if message := c.Probed(s, err, time.Now()); !strings.Contains(message, "paused") {
					t.Errorf("the message %q does not say that the container is paused", message)
				}
			}
			if c.KillReason == "" {
				t.Error("three failures do not restart it")
			}
		})
	}
	bubble(t, func(t *testing.T, d *device) {
		pod := makePod("web", "wait")
		pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 5,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/tool", "print", "hello"}}}}
		d.desire(1, pod)
		time.Sleep(10 * time.Second)
		d.fake.Pause(plan.NameOf("c0", "web", "default", "uid-web", "0"), true)
		time.Sleep(time.Minute)
		d.wantContainers("web/c0#0 exited", "web/c0#1 running")
	})
}

func TestACommandInAPausedContainerSaysThatItIsPaused(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		d.fake.Pause(plan.NameOf("c0", "web", "default", "uid-web", "0"), true)
		time.Sleep(time.Second)
		for _, name := range []string{"c0", request.AnyContainer} {
			if _, _, err := d.agent.running(t.Context(), "uid-web", name); err == nil ||
				!strings.Contains(err.Error(), "paused") {
				t.Errorf("container %q: the error %v does not say that it is paused", name, err)
			}
		}
	})
}
