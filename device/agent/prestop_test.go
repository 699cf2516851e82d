package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

func TestAPreStopHookRunsWithinTheGracePeriod(t *testing.T) {
	for name, c := range map[string]struct {
		hook   *corev1.LifecycleHandler
		grace  int64
		stop   string // the expected stop call to the engine
		at     int    // seconds until the container has gone
		failed bool
	}{
		"a stop after a short hook has the rest of the grace period":           {execHook("bye", "4", "0"), 30, "26s", 4, false},
		"a failed hook is reported":                                            {execHook("bye", "4", "1"), 30, "26s", 4, true},
		"a stop after a hook that uses the whole grace period has two seconds": {execHook("bye", "100", "0"), 10, "2s", 10, true},
		"a sleep hook": {&corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 7}}, 30, "23s", 7, false},
		"with a grace period of 0 the hook has one second": {execHook("bye", "4", "0"), 0, "2s", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.offerHookApp()
				p := hookPod(&corev1.Lifecycle{PreStop: c.hook}, 1)
				d.desire(1, p)
				time.Sleep(5 * time.Second)
				d.fake.Record()
				d.desire(2, deletedPod(p, c.grace))
				if c.at > 0 {
					time.Sleep(time.Duration(c.at)*time.Second - time.Millisecond)
					if calls := strings.Join(d.fake.Calls(), "; "); strings.Contains(calls, "Stop") {
						t.Errorf("the container was stopped during the hook: %s", calls)
					}
				}
				time.Sleep(2 * time.Second)
				if calls := strings.Join(d.fake.Calls(), "; "); !strings.Contains(calls, " "+c.stop) ||
					strings.Count(calls, "Stop") != 1 {
					t.Errorf("the calls are %s, want a stop within %s", calls, c.stop)
				}
				if _, reported := d.pod("app"); reported {
					t.Error("the pod is still reported")
				}
				if got := slices.Contains(d.reasons(), "FailedPreStopHook"); got != c.failed {
					t.Errorf("events %q; FailedPreStopHook wanted: %v", d.reasons(), c.failed)
				}
			})
		})
	}
}

// If a liveness probe fails in a pod with a grace period of zero, the preStop hook does not run, as
// with the kubelet. The container still has two seconds from TERM to KILL.
func TestAFailedProbeOfAPodWithoutAGracePeriodSkipsThePreStopHook(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PreStop: execHook("bye")}, 1)
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{InitialDelaySeconds: 5, PeriodSeconds: 60,
			FailureThreshold: 1,
			ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"alive", "0", "1"}}}}
		d.fake.Record()
		d.desire(1, p)
		time.Sleep(8 * time.Second)
		y.want(t, "0s start c0/0", "5s alive in c0", "5s start c0/0")
		if calls := strings.Join(d.fake.Calls(), "; "); !strings.Contains(calls, "Stop") ||
			!strings.Contains(calls, " 2s") {
			t.Errorf("the calls are %s, want a stop within 2s", calls)
		}
	})
}

func TestAPreStopHookRunsOnceIfTheGraceIsShortened(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PreStop: execHook("bye", "60", "0")}, 1)
		d.desire(1, p)
		time.Sleep(5 * time.Second)
		d.desire(2, deletedPod(p, 100))
		time.Sleep(5 * time.Second)
		d.desire(3, deletedPod(p, 20))
		time.Sleep(10 * time.Second)
		d.desire(4, deletedPod(p, 3))
		time.Sleep(5 * time.Second)
		y.want(t, "0s start c0/0", "5s bye in c0")
		if _, reported := d.pod("app"); reported {
			t.Error("the pod is still reported")
		}
	})
}

// A restarted agent repeats an interrupted stop, but not a hook that has ended.
func TestAnEndedPreStopHookDoesNotRunAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		d.fake.Fail("Stop", engine.ErrUnavailable)
		p := hookPod(&corev1.Lifecycle{PreStop: execHook("bye", "4", "0")}, 1)
		d.desire(1, p)
		time.Sleep(5 * time.Second)
		d.desire(2, deletedPod(p, 30))
		time.Sleep(5 * time.Second)
		d.end()
		d.start()
		time.Sleep(5 * time.Second)
		y.want(t, "0s start c0/0", "5s bye in c0")
		if _, reported := d.pod("app"); reported {
			t.Error("the pod is still reported")
		}
	})
}

func TestALivenessFailureRunsThePreStopHook(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PreStop: execHook("bye")}, 1)
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{InitialDelaySeconds: 5, PeriodSeconds: 60,
			FailureThreshold: 1,
			ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"alive", "0", "1"}}}}
		d.desire(1, p)
		time.Sleep(8 * time.Second)
		y.want(t, "0s start c0/0", "5s alive in c0", "5s bye in c0", "5s start c0/0")
	})
}
