package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
)

// withResources sets a container's resources, given as "cpu/limit memory/limit"; - means none.
func withResources(p corev1.Pod, container int, text string) corev1.Pod {
	p.Spec.Containers = slices.Clone(p.Spec.Containers)
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for i, pair := range strings.Fields(text) {
		name := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}[i]
		request, limit, _ := strings.Cut(pair, "/")
		if request != "-" {
			r.Requests[name] = resource.MustParse(request)
		}
		if limit != "-" {
			r.Limits[name] = resource.MustParse(limit)
		}
	}
	p.Spec.Containers[container].Resources = r
	return p
}

// shown returns the granted and the actual resources of a pod's first container, and the resize
// conditions.
func shown(st corev1.PodStatus) string {
	if len(st.ContainerStatuses) == 0 {
		return fmt.Sprintf("%+v", st)
	}
	c := st.ContainerStatuses[0]
	text := fmt.Sprintf("#%d granted %s %s has %s/%s %s/%s", c.RestartCount, c.AllocatedResources.Cpu(),
		c.AllocatedResources.Memory(),
		c.Resources.Requests.Cpu(), c.Resources.Limits.Cpu(), c.Resources.Requests.Memory(),
		c.Resources.Limits.Memory())
	for _, c := range st.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			text += strings.TrimRight(fmt.Sprintf(" %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message), ": ")
		}
	}
	return text
}

func (d *device) wantShown(name, want string) {
	d.t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	st, _ := d.pod(name)
	if got := shown(st); got != want {
		d.t.Fatalf("the status has:\n%s\nwant:\n%s", got, want)
	}
}

func TestARunningContainerIsResized(t *testing.T) {
	for _, name := range []string{"docker", "podman"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.fake.SetInfo(engine.Info{Name: name, Version: "1", MemLimit: true, CPULimit: true, SwapLimit: true,
					CgroupV2: true})
				d.end()
				d.start()
				p := makePod("p", "wait", "wait")
				p.Generation = 1
				d.desire(1, withResources(p, 0, "20m/30m 35Mi/45Mi"))
				d.wantShown("p", "#0 granted 20m 35Mi has 20m/30m 35Mi/45Mi")
				d.fake.Record()
				p.Generation = 2
				d.desire(2, withResources(p, 0, "25m/35m 40Mi/50Mi"))
				d.wantShown("p", "#0 granted 25m 40Mi has 25m/35m 40Mi/50Mi")
				if st, _ := d.pod("p"); st.ObservedGeneration != 2 {
					t.Errorf("the observed generation is %d, want 2", st.ObservedGeneration)
				}
				if calls := d.fake.Calls(); len(calls) != 1 || !strings.HasPrefix(calls[0], "Update flotilla_c0_p_") {
					t.Errorf("the engine was called %q, want one Update", calls)
				}
				if got := d.reasons(); !slices.Contains(got, "ResizeStarted") ||
					!slices.Contains(got, "ResizeCompleted") {
					t.Errorf("the events are %q, want ResizeCompleted", got)
				}
				// Podman reports the old limits to a restarted agent, so the agent repeats the
				// update.
				d.end()
				d.start()
				d.wantShown("p", "#0 granted 25m 40Mi has 25m/35m 40Mi/50Mi")
				if calls := d.fake.Calls(); len(calls) != map[string]int{"docker": 1, "podman": 3}[name] {
					t.Errorf("after a restart of the agent the engine was called %q", calls)
				}
				// The pod gets the limits that Podman reports, but the agent is killed before the
				// update. The kernel's limits are the right ones.
				d.fake.Fail("Update", errors.New("killed"))
				d.desire(3, withResources(p, 0, "20m/30m 35Mi/45Mi"))
				time.Sleep(time.Second)
				d.end()
				before := len(d.fake.Calls())
				d.start()
				d.wantShown("p", "#0 granted 20m 35Mi has 20m/30m 35Mi/45Mi")
				if calls := d.fake.Calls()[before:]; len(calls) == 0 {
					t.Error("the engine was not called")
				}
			})
		})
	}
}

// Only a container with a resizePolicy of RestartContainer is restarted, even if it exits with 0
// and has the restart policy OnFailure.
func TestAResizePolicyRestartsItsContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("p", "wait", "wait")
		p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}, {ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		d.desire(1, withResources(p, 0, "20m/30m 35Mi/45Mi"))
		d.wantShown("p", "#0 granted 20m 35Mi has 20m/30m 35Mi/45Mi")
		d.desire(2, withResources(p, 0, "25m/35m 35Mi/45Mi"))
		d.wantShown("p", "#0 granted 25m 35Mi has 25m/35m 35Mi/45Mi")
		d.desire(3, withResources(p, 0, "25m/35m 40Mi/45Mi"))
		d.wantShown("p", "#1 granted 25m 40Mi has 25m/35m 40Mi/45Mi")
		d.desire(4, withResources(p, 0, "25m/35m 40Mi/45Mi"), makePod("other"))
		d.wantShown("p", "#1 granted 25m 40Mi has 25m/35m 40Mi/45Mi")
		if got := d.containers(); !slices.Contains(got, "p/c1#0 running") {
			t.Errorf("the engine has the containers %q", got)
		}
	})
}

// A resize that does not fit is deferred, and granted resources survive restarts of the agent. The
// resize is granted once it fits.
func TestAResizeWaitsForResources(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p, q := withResources(makePod("p", "wait"), 0, "1/- 100Mi/-"),
			withResources(makePod("q", "wait"), 0, "2/- 100Mi/-")
		d.desire(1, p, q)
		d.wantShown("p", "#0 granted 1 100Mi has 1/0 100Mi/0")
		big := withResources(p, 0, "3/- 100Mi/-")
		const waits = "#0 granted 1 100Mi has 1/0 100Mi/0 PodResizePending=True Deferred: Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"
		d.desire(2, big, q)
		d.wantShown("p", waits)
		d.end()
		d.start()
		d.wantShown("p", waits)
		// the pod fits, because a deferred resize reserves nothing
		d.desire(3, big, q, withResources(makePod("small", "wait"), 0, "1/- 1Mi/-"))
		d.wantShown("p", strings.Replace(waits, "used: 2000", "used: 3000", 1))
		d.wantPhase("small", corev1.PodRunning, "")
		d.desire(4, withResources(p, 0, "9/- 100Mi/-"), q)
		time.Sleep(time.Minute)
		d.wantShown("p", "#0 granted 1 100Mi has 1/0 100Mi/0 PodResizePending=True Infeasible: Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 4000")
		d.desire(5, big, deletedPod(q, 1))
		time.Sleep(time.Minute)
		d.desire(6, big)
		d.wantShown("p", "#0 granted 3 100Mi has 3/0 100Mi/0")
		d.desire(7, p)
		d.wantShown("p", "#0 granted 1 100Mi has 1/0 100Mi/0")
		want := []string{"ResizeDeferred", "ResizeDeferred", "ResizeInfeasible", "ResizeDeferred", "ResizeStarted",
			"ResizeCompleted", "ResizeStarted", "ResizeCompleted"}
		got := slices.DeleteFunc(d.reasons(), func(r string) bool { return !strings.HasPrefix(r, "Resize") })
		if !slices.Equal(got, want) {
			t.Errorf("the events are %q, want %q", got, want)
		}
	})
}

// A limit below the usage is not applied. An engine's error is reported, and the update is tried
// again, also by a restarted agent. A new request does not wait for the next attempt.
func TestAFailedResizeIsReportedAndTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("p", "wait")
		d.desire(1, withResources(p, 0, "20m/30m 35Mi/45Mi"))
		time.Sleep(time.Second)
		name := plan.NameOf("c0", p.Name, p.Namespace, string(p.UID), "0")
		d.fake.Use(name, 1, 20<<20)
		d.desire(2, withResources(p, 0, "20m/30m 10Mi/10Mi"))
		d.wantShown("p", `#0 granted 20m 10Mi has 20m/30m 10Mi/45Mi PodResizeInProgress=True Error: cannot decrease memory limits: attempting to set container "c0" memory limit (10485760) below current usage (20971520)`)
		d.fake.Use(name, 1, 5<<20)
		time.Sleep(2 * time.Minute)
		d.wantShown("p", "#0 granted 20m 10Mi has 20m/30m 10Mi/10Mi")
		d.fake.Fail("Update", errors.New("runc did run unsuccessfully"))
		d.desire(3, withResources(p, 0, "20m/40m 10Mi/10Mi"))
		const failed = "#0 granted 20m 10Mi has 20m/30m 10Mi/10Mi PodResizeInProgress=True Error: Update "
		time.Sleep(time.Second)
		if st, _ := d.pod("p"); !strings.HasPrefix(shown(st), failed) {
			t.Errorf("the status has %s, want the failed update", shown(st))
		}
		d.desire(4, withResources(p, 0, "20m/50m 10Mi/10Mi"))
		d.wantShown("p", "#0 granted 20m 10Mi has 20m/50m 10Mi/10Mi")
		d.fake.Fail("Update", errors.New("killed in the middle"))
		d.desire(5, withResources(p, 0, "20m/60m 10Mi/10Mi"))
		time.Sleep(time.Second)
		d.end()
		d.start()
		d.wantShown("p", "#0 granted 20m 10Mi has 20m/60m 10Mi/10Mi")
		if got := d.reasons(); !slices.Contains(got, "ResizeError") {
			t.Errorf("the events are %q, want ResizeError", got)
		}
	})
}
