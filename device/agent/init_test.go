package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
)

// initAccidents are accidents that happen to a pod after its init containers have ended; runs is
// how often the init containers have run in the end.
var initAccidents = []struct {
	name string
	runs int
	do   func(d *device)
}{
	{"no accident", 1, func(*device) {}},
	{"the engine restarts", 2, func(d *device) { d.fake.PowerCut() }},
	{"the engine restarts twice", 3, func(d *device) {
		d.fake.PowerCut()
		time.Sleep(time.Minute)
		d.fake.PowerCut()
	}},
	{"the engine restarts while the agent is off", 2, func(d *device) {
		d.end()
		d.fake.PowerCut()
		d.start()
	}},
	{"the sandbox ends", 2, func(d *device) { d.fake.Exit("flotilla_POD_web_default_uid-web_0", 137) }},
	{"one container ends", 1, func(d *device) { d.fake.Exit("flotilla_c0_web_default_uid-web_0", 137) }},
	{"all containers end", 1, func(d *device) {
		d.fake.Exit("flotilla_c0_web_default_uid-web_0", 137)
		d.fake.Exit("flotilla_c1_web_default_uid-web_0", 137)
	}},
	{"another client removes the ended init containers", 1, func(d *device) {
		d.fake.Lose("flotilla_first_web_default_uid-web_0")
		d.fake.Lose("flotilla_second_web_default_uid-web_0")
	}},
}

// Init containers run once per sandbox of their pod, and the status shows that after every
// accident.
func TestInitContainersRunOncePerSandbox(t *testing.T) {
	for _, c := range initAccidents {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, then the agent restarts %v", c.name, restart), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *device) {
					runs := map[string]int{}
					d.fake.AddImage(enginetest.ToolImage, 6<<20, func(s engine.Spec, run int) enginetest.Play {
						runs[s.Labels[plan.LabelContainer]]++
						return toolOrPause(s, run)
					})
					p := makePod("web", "wait", "wait")
					for _, name := range []string{"first", "second"} {
						p.Spec.InitContainers = append(p.Spec.InitContainers,
							corev1.Container{Name: name, Image: enginetest.ToolImage, Args: strings.Fields("sleep 2s")})
					}
					d.desire(1, p)
					time.Sleep(time.Minute)
					c.do(d)
					time.Sleep(time.Minute)
					if restart {
						d.end()
						d.start()
						time.Sleep(time.Minute)
					}
					st := d.wantPhase("web", corev1.PodRunning, "")
					if !ready(&st) || st.Conditions[0].Type != corev1.PodInitialized ||
						st.Conditions[0].Status != corev1.ConditionTrue {
						t.Errorf("the pod is not ready: %+v", st.Conditions)
					}
					for _, c := range st.InitContainerStatuses {
						if s := c.State.Terminated; s == nil || s.Reason != "Completed" || s.ExitCode != 0 || !c.Ready {
							t.Errorf("init container %s: ready %v, %+v", c.Name, c.Ready, c.State)
						}
					}
					if runs["first"] != c.runs || runs["second"] != c.runs {
						t.Errorf("the init containers have run %v, want %d times", runs, c.runs)
					}
				})
			})
		}
	}
}
