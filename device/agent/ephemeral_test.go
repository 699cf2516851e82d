package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
)

// debugged is a pod with an additional ephemeral container.
func debugged(p corev1.Pod, name, target, command string) corev1.Pod {
	p.Spec.EphemeralContainers = append(slices.Clone(p.Spec.EphemeralContainers), corev1.EphemeralContainer{
		TargetContainerName: target,
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: enginetest.ToolImage,
			Args: strings.Fields(command)},
	})
	return p
}

func (d *device) wantEphemeral(pod, name string, want func(corev1.ContainerStatus) bool) {
	d.t.Helper()
	st, _ := d.pod(pod)
	i := slices.IndexFunc(st.EphemeralContainerStatuses,
		func(cs corev1.ContainerStatus) bool { return cs.Name == name })
	if i < 0 || !want(st.EphemeralContainerStatuses[i]) {
		d.t.Fatalf("the status of %s in %s is %+v", name, pod, st.EphemeralContainerStatuses)
	}
}

func lives(cs corev1.ContainerStatus) bool { return cs.State.Running != nil && !cs.Ready }

func exited(code int32) func(corev1.ContainerStatus) bool {
	return func(cs corev1.ContainerStatus) bool {
		return cs.State.Terminated != nil && cs.State.Terminated.ExitCode == code
	}
}

func TestAnEphemeralContainerRunsOnceBesideTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		d.desire(1, p)
		time.Sleep(time.Second)
		p = debugged(p, "look", "c0", "wait")
		d.desire(2, p)
		time.Sleep(5 * time.Second)
		d.wantContainers("web/c0#0 running", "web/look#0 running")
		d.wantEphemeral("web", "look", lives)
		p = debugged(p, "fails", "", "exit 7")
		d.desire(3, p)
		d.end() // a restart of the agent changes nothing
		d.start()
		time.Sleep(time.Hour)
		d.wantContainers("web/c0#0 running", "web/fails#0 exited", "web/look#0 running")
		d.wantEphemeral("web", "fails", exited(7))
		d.wantEphemeral("web", "look", lives)
		if st := d.wantPhase("web", corev1.PodRunning, ""); !ready(&st) {
			t.Errorf("a pod is not ready because of an ephemeral container: %+v", st.Conditions)
		}
		d.desire(4, deletedPod(p, 5))
		time.Sleep(time.Minute)
		d.wantContainers()
	})
}

func TestAnEphemeralContainerDoesNotAffectItsPod(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("job", "sleep 30s")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		q := makePod("pair", "wait", "wait")
		d.desire(1, debugged(p, "look", "", "wait"), debugged(debugged(q, "look", "c1", "wait"), "missing", "", "wait"))
		time.Sleep(10 * time.Second)
		d.wantContainers("job/c0#0 running", "job/look#0 running", "pair/POD#0 running", "pair/c0#0 running",
			"pair/c1#0 running", "pair/look#0 running", "pair/missing#0 running")
		time.Sleep(time.Minute)
		d.wantPhase("job", corev1.PodSucceeded, "")
		d.wantEphemeral("job", "look", func(cs corev1.ContainerStatus) bool { return cs.State.Terminated != nil })
	})
}

// Users need ephemeral containers most in pods that cannot start.
func TestAnEphemeralContainerOfAPodThatDoesNotRun(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "exit 3")
		d.desire(1, p)
		time.Sleep(45 * time.Second)
		p = debugged(debugged(p, "look", "", "wait"), "inside", "c0", "wait")
		d.desire(2, p)
		time.Sleep(time.Second)
		d.wantEphemeral("web", "look", lives)
		// its target does not run
		d.wantEphemeral("web", "inside", func(cs corev1.ContainerStatus) bool { return cs.State.Waiting != nil })
	})
}

// The owner's policy rejects the ephemeral container but not its pod.
func TestAForbiddenEphemeralContainer(t *testing.T) {
	yes := true
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		d.desire(1, p)
		time.Sleep(time.Second)
		p = debugged(debugged(p, "fine", "", "wait"), "strong", "", "wait")
		p.Spec.EphemeralContainers[1].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		d.desire(2, p)
		time.Sleep(time.Minute)
		d.wantContainers("web/c0#0 running", "web/fine#0 running")
		d.wantEphemeral("web", "strong", func(cs corev1.ContainerStatus) bool {
			w := cs.State.Waiting
			return w != nil && w.Reason == plan.PolicyForbidden &&
				strings.HasPrefix(w.Message, "spec.ephemeralContainers[1].securityContext.privileged: ")
		})
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

// sandbox is the name of the running sandbox.
func (d *device) sandbox() string {
	list, _ := d.fake.Containers(d.t.Context(), plan.LabelAgent+"=pi-1")
	for _, c := range list {
		if c.Labels[plan.LabelContainer] == "" && c.State == "running" {
			return c.Name
		}
	}
	return ""
}

// An ephemeral container runs once. It does not run again when the pod's network is replaced.
func TestAnEphemeralContainerDoesNotRunAgainWithANewNetwork(t *testing.T) {
	// target and command
	for _, look := range [][2]string{{"", "exit 0"}, {"", "wait"}, {"c0", "exit 0"}, {"c0", "wait"}} {
		for accident, ends := range map[string]func(d *device){
			"a power cut": func(d *device) {
				d.end()
				d.fake.PowerCut()
				d.board.set(func(b *board) { b.boot += "+" })
				d.start()
			},
			"the end of the sandbox":     func(d *device) { d.fake.Exit(d.sandbox(), 137) },
			"the removal of the sandbox": func(d *device) { d.fake.Lose(d.sandbox()) },
		} {
			t.Run(look[1]+" at "+look[0]+" and "+accident, func(t *testing.T) {
				bubble(t, func(t *testing.T, d *device) {
					looks := 0
					d.fake.AddImage(enginetest.ToolImage, 6<<20, func(s engine.Spec, run int) enginetest.Play {
						if s.Labels[plan.LabelContainer] == "look" {
							looks++
						}
						return toolOrPause(s, run)
					})
					d.desire(1, debugged(makePod("pair", "wait", "wait"), "look", look[0], look[1]))
					time.Sleep(time.Minute)
					for range 3 {
						ends(d)
						time.Sleep(10 * time.Minute)
						d.end() // an upgrade restarts the agent
						d.start()
						time.Sleep(10 * time.Minute)
						if looks != 1 {
							t.Fatalf("the ephemeral container has run %d times: %q", looks, d.containers())
						}
						d.wantEphemeral("pair", "look",
							func(cs corev1.ContainerStatus) bool { return cs.State.Terminated != nil })
						if st := d.wantPhase("pair", corev1.PodRunning, ""); !ready(&st) || len(d.containers()) > 9 {
							t.Fatalf("the pod is %+v with the containers %q", st.Conditions, d.containers())
						}
					}
					d.desire(2)
					time.Sleep(time.Minute)
					d.wantContainers()
				})
			})
		}
	}
}
