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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// statuses is the number of announced status changes.
func (d *device) statuses() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

// ready is the Ready condition, which must be the last condition.
func (d *device) ready() corev1.NodeCondition {
	d.t.Helper()
	cs := d.agent.Status().Status.Conditions
	if len(cs) == 0 || cs[len(cs)-1].Type != corev1.NodeReady {
		d.t.Fatalf("the last condition is not Ready: %+v", cs)
	}
	return cs[len(cs)-1]
}

func playing(t *testing.T, name string, play func(t *testing.T, d *device)) {
	t.Run(name, func(t *testing.T) { bubble(t, play) })
}

func TestScenarioStatusIsAnnounced(t *testing.T) {
	playing(t, "S11.status.1 the first measurement announces a status", func(t *testing.T, d *device) {
		time.Sleep(time.Second)
		if st := d.agent.Status().Status; d.statuses() == 0 || st.Capacity.Cpu().Value() != 4 {
			t.Errorf("announced %d statuses, status %+v", d.statuses(), st)
		}
	})
	playing(t, "S11.status.2 ours: a minute without changes announces no status, because the lease is the heartbeat", func(t *testing.T, d *device) {
		time.Sleep(30 * time.Second)
		before := d.statuses()
		time.Sleep(time.Minute)
		if got := d.statuses(); got != before {
			t.Errorf("announced %d more statuses, want 0", got-before)
		}
	})
	playing(t, "S11.status.3 ten seconds without changes announce no status", func(t *testing.T, d *device) {
		time.Sleep(5 * time.Second)
		before := d.statuses()
		time.Sleep(10 * time.Second)
		if got := d.statuses(); got != before {
			t.Errorf("announced %d more statuses, want 0", got-before)
		}
	})
	playing(t, "S11.status.4 a change of the allocatable resources is announced at once", func(t *testing.T, d *device) {
		time.Sleep(30 * time.Second)
		before := d.statuses()
		profile := &fleet.BoardProfile{}
		profile.Spec.Resources.SystemReserved = map[string]string{"cpu": "500m"}
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "hub-1", Profile: profile}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if st := d.agent.Status().Status; d.statuses() != before+1 || st.Allocatable.Cpu().String() != "3500m" {
			t.Errorf("announced %d more statuses, allocatable cpu %s", d.statuses()-before, st.Allocatable.Cpu())
		}
	})
	playing(t, "S11.status.5 Ready is the last condition", func(t *testing.T, d *device) {
		time.Sleep(time.Second)
		if c := d.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("the Ready condition is %+v, want True", c)
		}
	})
}

func TestScenarioFirstReady(t *testing.T) {
	playing(t, "S11.fast.1 a device whose engine responds is Ready within a second", func(t *testing.T, d *device) {
		time.Sleep(time.Second)
		if c := d.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("the Ready condition is %+v, want True", c)
		}
	})
	t.Run("S11.fast.2 the device is Ready, and announces it, within 6 s of the engine's first response", func(t *testing.T) {
		bubbleWithoutEngine(t, func(t *testing.T, d *device) {
			time.Sleep(20 * time.Second)
			if c := d.ready(); c.Status != corev1.ConditionFalse {
				t.Errorf("the Ready condition is %+v, want False", c)
			}
			before := d.statuses()
			d.fake.SetDown(false)
			time.Sleep(6 * time.Second)
			if c := d.ready(); c.Status != corev1.ConditionTrue || d.statuses() == before {
				t.Errorf("the Ready condition is %+v, want True; announced %d more statuses, want some", c, d.statuses()-before)
			}
		})
	})
	t.Run("S11.fast.3 an engine that never responds is announced only once", func(t *testing.T) {
		bubbleWithoutEngine(t, func(t *testing.T, d *device) {
			time.Sleep(time.Minute)
			before := d.statuses()
			time.Sleep(time.Hour)
			if c := d.ready(); c.Status != corev1.ConditionFalse || c.Reason != "ContainerEngineUnavailable" ||
				d.statuses() != before || before == 0 {
				t.Errorf("Ready %+v, announced %d and then %d more statuses", c, before, d.statuses()-before)
			}
		})
	})
}

func TestScenarioStatusChanges(t *testing.T) {
	at := func(sec int64) metav1.Time { return metav1.Unix(sec, 0) }
	base := func() corev1.NodeStatus {
		return corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, LastHeartbeatTime: at(1), LastTransitionTime: at(1)},
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: at(1), LastTransitionTime: at(1)},
		}}
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.NodeStatus)
		same   bool
	}{
		{"S11.changed.1 a heartbeat time alone is not a change", func(s *corev1.NodeStatus) { s.Conditions[1].LastHeartbeatTime = at(2) }, true},
		{"S11.changed.2 another order of conditions is not a change", func(s *corev1.NodeStatus) { slices.Reverse(s.Conditions) }, true},
		{"S11.changed.3 a condition's status is a change", func(s *corev1.NodeStatus) { s.Conditions[1].Status = corev1.ConditionFalse }, false},
		{"S11.changed.4 a transition time is a change", func(s *corev1.NodeStatus) { s.Conditions[1].LastTransitionTime = at(2) }, false},
		{"S11.changed.5 another number of conditions is a change", func(s *corev1.NodeStatus) { s.Conditions = s.Conditions[1:] }, false},
		{"S11.changed.6 a phase is a change", func(s *corev1.NodeStatus) { s.Phase = corev1.NodeTerminated }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			next := base()
			c.change(&next)
			if got := fleet.SameStatus(base(), next); got != c.same {
				t.Errorf("the statuses are the same: %v, want %v", got, c.same)
			}
		})
	}
}

func TestScenarioSetters(t *testing.T) {
	t.Run("S11.setters.7 ours: of more than 50 images the status has the biggest 50, the biggest first", func(t *testing.T) {
		var all []engine.Image
		for i := range 55 {
			all = append(all, engine.Image{ID: fmt.Sprint("id", i), Tags: []string{fmt.Sprint("image:", i)},
				Size: int64(i * 37 % 55)})
		}
		got := imagesOf(all)
		if len(got) != 50 || !slices.IsSortedFunc(got,
			func(a, b corev1.ContainerImage) int { return int(b.SizeBytes - a.SizeBytes) }) || got[49].SizeBytes != 5 {
			t.Errorf("%d images, from %d to %d bytes, want 50, sorted, the smallest of 5", len(got), got[0].SizeBytes,
				got[len(got)-1].SizeBytes)
		}
	})
	playing(t, "S11.setters.8 without a list of images the status has none", func(t *testing.T, d *device) {
		time.Sleep(time.Second)
		if len(d.agent.Status().Status.Images) == 0 {
			t.Fatal("the engine has no images at the start")
		}
		d.fake.Fail("Images", errors.New("the disk is gone"))
		time.Sleep(imagesTime)
		if got := d.agent.Status().Status.Images; len(got) != 0 {
			t.Errorf("the images are %v, want none", got)
		}
	})
	for _, c := range []struct {
		name, reason, message string
		report                hardware.Report
		engineErr             error
		down                  time.Duration
	}{
		{"S11.setters.9 a ready node", "KubeletReady", "kubelet is posting ready status", whole(), nil, 0},
		{"S11.setters.9 a node is ready while its engine is down for 29 s", "KubeletReady", "kubelet is posting ready status", whole(), errors.New("no answer"), 29 * time.Second},
		{"S11.setters.9 an engine that is down for 30 s", "ContainerEngineUnavailable", "no answer", whole(), errors.New("no answer"), 30 * time.Second},
		{"S11.setters.9 the message names a missing capacity", "KubeletNotReady", "missing node capacity for resources: memory", without(func(r *hardware.Report) { r.Capacity.Memory = 0 }), nil, 0},
		{"S11.setters.9 the message names a read-only file system", "KubeletNotReady", "read-only file system: /var/lib/docker", without(func(r *hardware.Report) { r.Unwritable = []string{"/var/lib/docker"} }), nil, 0},
		{"S11.setters.9 the message has two reasons", "ContainerEngineUnavailable", "no answer; missing node capacity for resources: cpu", without(func(r *hardware.Report) { r.Capacity.CPUs = 0 }), errors.New("no answer"), time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &Agent{log: testLog()}
			a.loop.report, a.loop.engineErr = &c.report, c.engineErr
			if c.engineErr == nil {
				a.loop.engine = newDevice(t).fake
			} else {
				a.loop.downSince = epoch.Add(-c.down)
			}
			got := a.readiness(hardware.NodeStatus(c.report, hardware.Limits{}, hardware.Software{}), epoch)
			if got.Reason != c.reason || got.Message != c.message ||
				(got.Status == corev1.ConditionTrue) != (c.reason == "KubeletReady") {
				t.Errorf("Ready=%s, %s: %q, want %s: %q", got.Status, got.Reason, got.Message, c.reason, c.message)
			}
		})
	}
}

func whole() hardware.Report {
	return hardware.Report{Capacity: hardware.Capacity{CPUs: 4, Memory: 1 << 30, Ephemeral: 1 << 33, Pods: 110}}
}

func without(edit func(*hardware.Report)) hardware.Report {
	r := whole()
	edit(&r)
	return r
}

func TestScenarioAdmission(t *testing.T) {
	for _, c := range []struct {
		name   string
		ask    corev1.ResourceList
		reason string
	}{
		{"S12.admission.1 a bound pod that requests more cpu than is free is rejected with OutOfcpu", corev1.ResourceList{"cpu": resource.MustParse("2")}, "OutOfcpu"},
		{"S12.admission.1 a bound pod that requests more memory than is free is rejected with OutOfmemory", corev1.ResourceList{"memory": resource.MustParse("2Gi")}, "OutOfmemory"},
	} {
		playing(t, c.name, func(t *testing.T, d *device) {
			running := requestingPod("running", "3", "1Gi")
			d.desire(1, running)
			time.Sleep(5 * time.Second)
			over := with(makePod("over", "wait"),
				func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = c.ask })
			d.desire(2, running, over)
			time.Sleep(5 * time.Second)
			d.wantPhase("running", corev1.PodRunning, "")
			if st := d.wantPhase("over", corev1.PodFailed, c.reason); !strings.Contains(st.Message,
				"Node didn't have enough resource") {
				t.Errorf("the pod's message is %q, want too few resources", st.Message)
			}
		})
	}
}

// bubbleWithoutEngine is bubble with an engine that does not respond.
func bubbleWithoutEngine(t *testing.T, f func(t *testing.T, d *device)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.fake.SetDown(true)
		d.start()
		defer func() { d.end() }()
		f(t, d)
	})
}
