package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
)

// sidecarPod has a sidecar, an init container that ends, another sidecar, and two app containers.
func sidecarPod(stopTakes map[string]time.Duration, d *device) corev1.Pod {
	d.fake.AddImage("app", 1, func(s engine.Spec, _ int) enginetest.Play {
		if len(s.Entrypoint) > 0 && s.Entrypoint[0] == pause.Target {
			return enginetest.Play{}
		}
		return enginetest.Play{StopTakes: stopTakes[s.Labels[plan.LabelContainer]],
			Exits: s.Labels[plan.LabelContainer] == "init",
			Exec:  func([]string) enginetest.ExecResult { return enginetest.ExecResult{After: 2 * time.Second} }}
	})
	p := makePod("app", "", "")
	always := corev1.ContainerRestartPolicyAlways
	for _, name := range []string{"s0", "init", "s1"} {
		c := corev1.Container{Name: name, RestartPolicy: &always}
		if name == "init" {
			c.RestartPolicy = nil
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for _, w := range podspec.Containers(&p) {
		w.Spec.Image, w.Spec.ImagePullPolicy = "app", corev1.PullNever
	}
	return p
}

// runningNames are the names of the running containers without the sandbox.
func (d *device) runningNames() string {
	var names []string
	for _, c := range d.containers() {
		if name, ok := strings.CutSuffix(c, "#0 running"); ok && !strings.HasSuffix(name, "/POD") {
			names = append(names, strings.TrimPrefix(name, "app/"))
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A runningAt is the list of running containers at a time after a pod began to end.
type runningAt struct {
	after time.Duration
	run   string
}

func (d *device) wantRunning(t *testing.T, all ...runningAt) {
	t.Helper()
	began := time.Now()
	for _, w := range all {
		time.Sleep(w.after - time.Since(began))
		if got := d.runningNames(); got != w.run {
			t.Errorf("after %s the containers %q run, want %q", w.after, got, w.run)
		}
	}
}

func TestSidecarsEndLastInReverseOrder(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		stopTakes map[string]time.Duration
		grace     int64
		want      []runningAt
	}{
		"one container after another": {map[string]time.Duration{"c0": 4 * s, "s1": 3 * s, "s0": 3 * s}, 30,
			[]runningAt{{2 * s, "c0 s0 s1"}, {5 * s, "s0 s1"}, {8500 * time.Millisecond, "s0"}, {12 * s, ""}}},
		"at the end of the grace period at the latest": {map[string]time.Duration{"c0": time.Hour, "s1": time.Hour, "s0": time.Hour}, 10,
			[]runningAt{{9 * s, "c0 s0 s1"}, {11 * s, "s0 s1"}, {13 * s, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := sidecarPod(c.stopTakes, d)
				d.desire(1, p)
				time.Sleep(10 * time.Second)
				if got := d.runningNames(); got != "c0 c1 s0 s1" {
					t.Fatalf("at the start the containers %q run", got)
				}
				d.desire(2, deletedPod(p, c.grace))
				d.wantRunning(t, c.want...)
			})
		})
	}
}

// A sidecar's preStop hook runs at once. A container that is stopped alone does not wait for
// others.
func TestASidecarsHookAndItsRestartDoNotWait(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := sidecarPod(map[string]time.Duration{"c0": 4 * time.Second}, d)
		p.Spec.InitContainers[0].Lifecycle = &corev1.Lifecycle{PreStop: execHook("bye")}
		d.desire(1, p)
		time.Sleep(10 * time.Second)
		changed := *p.DeepCopy()
		changed.Spec.InitContainers[2].Image = "other"
		d.fake.AddImage("other", 1, func(engine.Spec, int) enginetest.Play { return enginetest.Play{} })
		d.desire(2, changed)
		time.Sleep(time.Second)
		if got := d.runningNames(); got != "c0 c1 s0" || !slices.Contains(d.containers(), "app/s1#1 running") {
			t.Errorf("after the change of s1 the containers %q run, want c0 c1 s0; all: %q", got, d.containers())
		}
		d.desire(3, deletedPod(changed, 30))
		// s0's hook takes 2 s of the 4 s in which c0 stops
		d.wantRunning(t, runningAt{3 * time.Second, "c0 s0"}, runningAt{5 * time.Second, ""})
	})
}

// The order also applies to a pod that the hub has dropped, and to a stop that an earlier agent
// began.
func TestSidecarsOfADroppedPodEndLast(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, sidecarPod(map[string]time.Duration{"c0": 6 * time.Second}, d))
		time.Sleep(10 * time.Second)
		d.desire(2)
		time.Sleep(2 * time.Second)
		d.end()
		d.start()
		d.wantRunning(t, runningAt{2 * time.Second, "c0 s0 s1"}, runningAt{6 * time.Second, ""})
	})
}
