package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
)

func TestAPodRunsAndIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		d.wantContainers("web/c0#0 running")
		st := d.wantPhase("web", corev1.PodRunning, "")
		if st.PodIP == "" || st.HostIP != "192.0.2.7" || st.StartTime == nil {
			t.Errorf("podIP %q, hostIP %q, startTime %v: want all of them", st.PodIP, st.HostIP, st.StartTime)
		}
		for _, c := range st.Conditions {
			if c.Status != corev1.ConditionTrue {
				t.Errorf("condition %s is %s (%s), want True", c.Type, c.Status, c.Message)
			}
		}
		if g := d.agent.Pods().Generation; g != 1 {
			t.Errorf("the pod list has the generation %d, want 1", g)
		}
		if got, want := d.reasons(), []string{"Pulled", "Created", "Started"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		ready := d.agent.Status().Status.Conditions
		if last := ready[len(ready)-1]; last.Type != corev1.NodeReady || last.Status != corev1.ConditionTrue {
			t.Errorf("the last condition is %s=%s (%s), want Ready=True", last.Type, last.Status, last.Message)
		}
	})
}

func TestADeletedPodStopsWithinItsGraceAndIsDropped(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "stubborn")
		d.desire(1, p)
		time.Sleep(time.Second)
		d.desire(2, deletedPod(p, 20))
		time.Sleep(19 * time.Second)
		d.wantPhase("web", corev1.PodRunning, "")
		time.Sleep(2 * time.Second)
		d.wantContainers()
		if _, reported := d.pod("web"); reported {
			t.Error("the stopped pod is still reported")
		}
	})
}

// The agent reports how a deleted pod ended until the hub drops the pod, even after a long time
// without network and after restarts of the agent.
func TestTheEndOfADeletedPodIsReportedUntilTheHubDropsIt(t *testing.T) {
	for _, c := range []struct {
		name    string
		pod     corev1.Pod
		phase   corev1.PodPhase
		reasons []string
	}{
		{"a killed container", makePod("web", "stubborn"), corev1.PodFailed, []string{"Error"}},
		{"a container that exits with 0", makePod("web", "wait"), corev1.PodSucceeded, []string{"Completed"}},
		{"one container of each kind", makePod("web", "wait", "stubborn"), corev1.PodFailed, []string{"Completed", "Error"}},
		{"a container in a crash loop", makePod("web", "exit 3"), corev1.PodFailed, []string{"Error"}},
		{"an ended container that waits for its restart", makePod("web", "exit 0"), corev1.PodSucceeded, []string{"Completed"}},
		{"a container that never started", with(makePod("web", "wait"), func(p *corev1.Pod) { p.Spec.Containers[0].Image = "missing" }), corev1.PodFailed, []string{"ContainerStatusUnknown"}},
		{"a pod that was never initialized", with(makePod("web", "wait"), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "missing"}}
		}), corev1.PodFailed, []string{""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.desire(1, c.pod)
				time.Sleep(25 * time.Second)
				d.desire(2, deletedPod(c.pod, 5))
				for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					if st, reported := d.pod("web"); !reported && len(d.containers()) > 0 {
						t.Fatalf("the pod is reported as %s while it has the containers %q", st.Phase, d.containers())
					}
				}
				d.wantContainers()
				d.wantEnd("web", c.phase, c.reasons...)
				d.end()
				time.Sleep(time.Hour)
				d.start()
				time.Sleep(5 * time.Second)
				d.wantEnd("web", c.phase, c.reasons...)
				d.desire(3)
				time.Sleep(5 * time.Second)
				if pods := d.agent.Pods().Pods; len(pods) > 0 {
					t.Errorf("a pod that the hub has dropped is still reported: %+v", pods)
				}
				if notes := d.agent.c.Memory.Notes(); len(notes) > 0 {
					t.Errorf("the notes are %+v, want none", notes)
				}
			})
		})
	}
}

// After a dismissal the hub needs no final statuses: a device without containers has left.
func TestADismissedDeviceReportsNoPodsInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"), makePod("done", "exit 0"))
		time.Sleep(time.Second)
		if err := d.agent.Leave(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if pods := d.agent.Pods().Pods; len(pods) > 0 {
			t.Errorf("pods are still reported: %+v", pods)
		}
	})
}

// wantEnd checks the reported phase of a deleted pod and the reasons with which its containers
// ended. A reason is empty if the container never started.
func (d *device) wantEnd(name string, phase corev1.PodPhase, reasons ...string) {
	d.t.Helper()
	synctest.Wait()
	for _, p := range d.agent.Pods().Pods {
		if p.Name != name {
			continue
		}
		var got []string
		for _, cs := range p.Status.ContainerStatuses {
			reason := ""
			if end := cs.State.Terminated; end != nil {
				reason = end.Reason
				if (end.ExitCode == 0) != (reason == "Completed") {
					d.t.Errorf("container %s ended with code %d and %s", cs.Name, end.ExitCode, reason)
				}
			}
			got = append(got, reason)
		}
		if p.Status.Phase != phase || !slices.Equal(got, reasons) {
			d.t.Errorf("pod %s is %s with %q, want %s with %q", name, p.Status.Phase, got, phase, reasons)
		}
		return
	}
	d.t.Errorf("pod %s is not reported, want %s", name, phase)
}

func TestASecondDeletionShortensTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "stubborn")
		d.desire(1, p)
		time.Sleep(time.Second)
		d.desire(2, deletedPod(p, 600))
		time.Sleep(5 * time.Second)
		d.desire(3, deletedPod(p, 1))
		time.Sleep(3 * time.Second)
		d.wantContainers()
	})
}

func TestACrashLoopBacksOff(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "exit 3"))
		began := time.Now()
		var starts []time.Duration
		last := int32(-1)
		for time.Since(began) < 16*time.Minute {
			time.Sleep(time.Second)
			st, _ := d.pod("web")
			if n := st.ContainerStatuses[0].RestartCount; n != last {
				starts, last = append(starts, time.Since(began).Truncate(time.Second)), n
			}
		}
		var waits []string
		for i := 1; i < len(starts); i++ {
			waits = append(waits, (starts[i] - starts[i-1]).String())
		}
		// the first restart is immediate
		if want := []string{"10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"}; !slices.Equal(waits, want) {
			t.Errorf("waits %q, want %q", waits, want)
		}
		st := d.wantPhase("web", corev1.PodRunning, "")
		w := st.ContainerStatuses[0].State.Waiting
		if w == nil || w.Reason != "CrashLoopBackOff" {
			t.Errorf("the container waits with %v, want CrashLoopBackOff", w)
		}
		if l := st.ContainerStatuses[0].LastTerminationState.Terminated; l == nil || l.ExitCode != 3 ||
			l.Reason != "Error" {
			t.Errorf("last state %v, want exit code 3, Error", l)
		}
	})
}

func TestPodsThatEndStayEnded(t *testing.T) {
	for _, c := range []struct {
		policy  corev1.RestartPolicy
		command string
		phase   corev1.PodPhase
		reason  string
	}{
		{corev1.RestartPolicyNever, "exit 0", corev1.PodSucceeded, "Completed"},
		{corev1.RestartPolicyNever, "exit 2", corev1.PodFailed, "Error"},
		{corev1.RestartPolicyOnFailure, "exit 0", corev1.PodSucceeded, "Completed"},
	} {
		t.Run(string(c.policy)+" "+c.command, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := makePod("job", c.command)
				p.Spec.RestartPolicy = c.policy
				d.desire(1, p)
				time.Sleep(2 * time.Second)
				st := d.wantPhase("job", c.phase, "")
				if term := st.ContainerStatuses[0].State.Terminated; term == nil || term.Reason != c.reason {
					t.Errorf("terminated %v, want reason %s", term, c.reason)
				}
				d.wantContainers("job/c0#0 exited")
				// The end is still reported after the container was removed and the agent
				// restarted.
				d.end()
				d.fake.Lose("flotilla_c0_job_default_uid-job_0")
				d.start()
				time.Sleep(time.Minute)
				d.wantPhase("job", c.phase, "")
				d.wantContainers()
			})
		})
	}
}

func TestARestartOfTheAgentRestartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait", "wait")
		d.desire(1, p)
		time.Sleep(time.Second)
		before := d.containers()
		if len(before) != 3 {
			t.Fatalf("the engine has %q, want a sandbox and two containers", before)
		}
		d.fake.Record()
		d.end()
		d.start()
		time.Sleep(2 * time.Minute)
		if calls := d.fake.Calls(); len(calls) > 0 {
			t.Errorf("after its restart the agent called %q, want no call", calls)
		}
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

func TestAfterARebootWithoutTheHubAllPodsRunAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		one, two := makePod("one", "wait"), makePod("two", "wait", "wait")
		two.Spec.InitContainers = []corev1.Container{{Name: "init", Image: enginetest.ToolImage,
			Args: []string{"exit", "0"}}}
		d.desire(7, one, two)
		time.Sleep(5 * time.Second)
		d.end()
		d.fake.PowerCut()
		d.board.set(func(b *board) { b.boot = "boot-2" })
		d.start()
		time.Sleep(10 * time.Second)
		d.wantPhase("one", corev1.PodRunning, "")
		st := d.wantPhase("two", corev1.PodRunning, "")
		for _, c := range st.ContainerStatuses {
			if !c.Ready || c.RestartCount != 1 {
				t.Errorf("container %s is ready=%v after %d restarts, want ready after 1", c.Name, c.Ready,
					c.RestartCount)
			}
		}
		if g := d.agent.StoredGeneration(); g != 7 {
			t.Errorf("stored generation %d, want 7", g)
		}
	})
}

func TestUndesiredPodsAreStoppedAndRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"), makePod("old", "wait", "wait"))
		time.Sleep(time.Second)
		d.desire(2, makePod("web", "wait"))
		time.Sleep(5 * time.Second)
		d.wantContainers("web/c0#0 running")
		if _, reported := d.pod("old"); reported {
			t.Error("the undesired pod is still reported")
		}
	})
}

func TestWithoutItsDesiredStateADeviceRemovesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		d.end()
		for _, copy := range []string{"/desired.0.state", "/desired.1.state"} {
			if err := os.Truncate(d.dir+copy, 0); err != nil {
				t.Fatal(err)
			}
		}
		d.start()
		time.Sleep(5 * time.Minute)
		d.wantContainers("web/c0#0 running")
		if g := d.agent.StoredGeneration(); g != 0 {
			t.Errorf("a device without a desired state reports generation %d", g)
		}
		d.desire(1, makePod("web", "wait")) // the hub repeats the desired state
		time.Sleep(time.Second)
		d.wantContainers("web/c0#0 running")
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

func TestContainersOfOthersAreLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for _, l := range []map[string]string{
			nil, {plan.LabelAgent: "pi-2", plan.LabelStateDir: "x", plan.LabelPodUID: "u1"},
			{plan.LabelAgent: "pi-1", plan.LabelStateDir: "another", plan.LabelPodUID: "u2"},
		} {
			id, err := d.fake.Create(context.Background(),
				engine.Spec{Name: fmt.Sprint("other", len(l), l[plan.LabelAgent]), Image: enginetest.ToolImage,
					Labels: l,
					Args:   []string{"wait"}})
			if err == nil {
				err = d.fake.Start(context.Background(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		d.fake.Record()
		d.desire(1)
		time.Sleep(5 * time.Minute)
		if calls := d.fake.Calls(); len(calls) > 0 {
			t.Errorf("the agent called %q for containers of others", calls)
		}
	})
}

// An image committed from a container of the agent has the agent's labels, and an image's author
// may set them too. Containers that other clients start from such images are not the agent's.
func TestAContainerIsNotTheAgentsBecauseOfItsImagesLabels(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		list, err := d.fake.Containers(t.Context(), plan.LabelAgent+"=pi-1")
		if err != nil || len(list) != 1 {
			t.Fatalf("the containers are %v, error %v; want one", list, err)
		}
		for i, uid := range []string{list[0].Labels[plan.LabelPodUID], "another"} {
			l := maps.Clone(list[0].Labels)
			l[plan.LabelPodUID], l[plan.LabelRestarts] = uid, "7"
			id, err := d.fake.Create(t.Context(), engine.Spec{Name: fmt.Sprint("debug", i), Image: enginetest.ToolImage,
				Labels: l, Args: []string{"wait"}})
			if err == nil {
				err = d.fake.Start(t.Context(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		d.fake.Record()
		time.Sleep(5 * time.Minute)
		if pods := d.agent.Pods().Pods; len(pods) != 1 || pods[0].Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("the device reports %+v, want one pod without restarts", pods)
		}
		d.desire(2)
		time.Sleep(5 * time.Minute)
		if list, err = d.fake.Containers(t.Context(), plan.LabelAgent+"=pi-1"); err != nil || len(list) != 2 ||
			list[0].State != engine.Running || list[1].State != engine.Running {
			t.Errorf("the containers are %v (%v), want the two of other clients; the agent called %q", list, err, d.fake.Calls())
		}
	})
}
