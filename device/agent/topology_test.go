package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/fleet"
)

// onNode puts a device on a NUMA node; -1 means no node.
func onNode(d hardware.Device, node int) hardware.Device {
	if node >= 0 {
		d.NUMA = &node
	}
	return d
}

// guaranteedPod makes a pod guaranteed, with the given number of CPUs.
func guaranteedPod(p corev1.Pod, cpus string) corev1.Pod {
	for i := range p.Spec.Containers {
		r := &p.Spec.Containers[i].Resources
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[corev1.ResourceCPU], r.Limits[corev1.ResourceMemory] = resource.MustParse(cpus),
			resource.MustParse("1Mi")
		r.Requests = r.Limits
	}
	return p
}

// twoNodes has two CPUs on each NUMA node.
var twoNodes = []hardware.NUMANode{{ID: 0, CPUs: "0-1"}, {ID: 1, CPUs: "2-3"}}

// A pod waits if it will fit when a leaving pod has gone. It fails if it does not fit beside a pod
// that stays.
func TestAlignmentWaitsForLeavingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.config.Topology = plan.SingleNUMANode
		d.board.numa, d.board.devices = twoNodes, []hardware.Device{onNode(chip("0"), 0), onNode(chip("1"), 1),
			onNode(port("a", "ttyS0"), 0)}
		d.start()
		defer func() { d.end() }()
		first := requesting("first", "gpiochip", "1", "stubborn")
		second := requesting("second", "gpiochip", "1", "wait")
		second.Spec.Containers[0].Resources.Limits[fleet.ResourceName("serial")] = resource.MustParse("1")
		d.desire(1, first)
		time.Sleep(time.Second)
		d.wantDevices("first", "/dev/gpiochip0")
		d.desire(2, deletedPod(first, 10), second)
		time.Sleep(time.Second)
		if st, _ := d.pod("second"); st.Phase != corev1.PodPending ||
			slices.Contains(d.reasons(), plan.DeviceUnavailable) {
			t.Fatalf("the pod's status is %+v; events %q", st, d.reasons())
		}
		time.Sleep(30 * time.Second)
		d.desire(3, second)
		time.Sleep(time.Second)
		d.wantPhase("second", corev1.PodRunning, "")
		third := requesting("third", "gpiochip", "1", "wait")
		third.Spec.Containers[0].Resources.Limits[fleet.ResourceName("serial")] = resource.MustParse("1")
		third.UID = "third"
		d.desire(4, second, third)
		time.Sleep(time.Second)
		if st, _ := d.pod("third"); st.Phase != corev1.PodFailed {
			t.Errorf("the pod's status is %+v, want the phase Failed", st)
		}
	})
}

// A pod's alignment survives restarts of its containers and of the agent. A container that has not
// started yet is aligned with its pod.
func TestAlignmentSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		recorder := &recordingEngine{Engine: d.fake}
		d.engine = recorder
		info, _ := d.fake.Info(t.Context())
		info.CPUSet = true
		d.fake.SetInfo(info)
		d.config.Topology = plan.SingleNUMANode
		d.board.numa = twoNodes
		d.start()
		defer func() { d.end() }()
		low, high := guaranteedPod(makePod("low", "wait"), "1"),
			guaranteedPod(makePod("high", "wait", "sleep 40s then exit 1"), "1")
		filler := guaranteedPod(makePod("filler", "wait"), "1")
		d.desire(1, low, filler)
		time.Sleep(time.Second)
		d.desire(2, low, filler, high)
		time.Sleep(time.Second)
		cpus := func() string {
			return fmt.Sprint(recorder.spec("low/c0").CPUs, " ", recorder.spec("filler/c0").CPUs, " ",
				recorder.spec("high/c0").CPUs, " ",
				recorder.spec("high/c1").CPUs)
		}
		if got := cpus(); got != "0-1 0-1 2-3 2-3" {
			t.Fatalf("the CPUs are %s, want 0-1 for the pods low and filler, and 2-3 for both containers of the pod high", got)
		}
		d.end()
		d.start()
		d.desire(3, high) // node 0 is free now, but the pod high stays on its node
		recorder.mu.Lock()
		delete(recorder.specs, "high/c1")
		recorder.mu.Unlock()
		time.Sleep(2 * time.Minute) // c1 has failed and runs again
		if got := cpus(); !strings.HasSuffix(got, " 2-3 2-3") {
			t.Errorf("after a restart the CPUs are %s, want 2-3 for the pod high", got)
		}
		another := guaranteedPod(makePod("another", "wait"), "2")
		d.desire(4, high, another)
		time.Sleep(time.Second)
		d.wantPhase("another", corev1.PodRunning, "")
		if got := recorder.spec("another/c0").CPUs; got != "0-1" {
			t.Errorf("the pod another has the CPUs %s, want 0-1", got)
		}
		third := guaranteedPod(makePod("third", "wait"), "1")
		third.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("1")
		d.desire(5, high, third)
		time.Sleep(time.Minute)
		if got := recorder.spec("third/c0").CPUs; got != "0-1" {
			t.Errorf("the third pod has the CPUs %s, want 0-1", got)
		}
	})
}
