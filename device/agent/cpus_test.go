package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
)

// guaranteed is a pod with one container whose CPU request and limit are cpu.
func guaranteed(name, cpu string) corev1.Pod {
	pod := makePod(name, "wait")
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse("16Mi")}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: list, Requests: list}
	return pod
}

func withCPUs(t *testing.T, policy plan.CPUManagerPolicy, flags hardware.Limits, f func(t *testing.T, d *device)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		sys := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(sys, "devices/system/cpu"), 0o755))
		must(t, os.WriteFile(filepath.Join(sys, "devices/system/cpu/online"), []byte("0-3\n"), 0o644))
		info, err := d.fake.Info(t.Context())
		must(t, err)
		info.CPUSet = true
		d.fake.SetInfo(info)
		d.config.SysDir, d.config.CPUManager = sys, policy
		flags.Hard = d.config.Flags.Hard
		d.config.Flags = flags
		d.start()
		defer func() { d.end() }()
		f(t, d)
	})
}

// wantCPUs checks the CPUs of each pod's running container.
func (d *device) wantCPUs(want map[string]string) {
	d.t.Helper()
	synctest.Wait()
	list, err := d.fake.Containers(d.t.Context(), plan.LabelAgent)
	if err != nil {
		d.t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range list {
		if c.State == "running" {
			got[c.Labels[plan.LabelPodName]] = c.Limits.CPUs
		}
	}
	for pod, cpus := range want {
		if got[pod] != cpus {
			d.t.Fatalf("the CPUs are %v, want %v", got, want)
		}
	}
}

func TestStaticCPUManagerGivesGuaranteedPodsExclusiveCPUs(t *testing.T) {
	withCPUs(t, plan.StaticCPUManager, hardware.Limits{}, func(t *testing.T, d *device) {
		shared, half, whole := makePod("shared", "wait"), guaranteed("half", "1500m"), guaranteed("whole", "2")
		d.desire(1, shared, half)
		time.Sleep(5 * time.Second)
		d.wantCPUs(map[string]string{"shared": "0,1,2,3", "half": "0,1,2,3"})
		d.desire(2, shared, half, whole)
		time.Sleep(30 * time.Second)
		d.wantCPUs(map[string]string{"shared": "0,3", "half": "0,3", "whole": "1,2"})
		// the other containers are not restarted
		d.wantContainers("half/c0#0 running", "shared/c0#0 running", "whole/c0#0 running")
		d.fake.Exit(plan.NameOf("c0", "whole", "default", "uid-whole", "0"), 1)
		time.Sleep(time.Minute)
		d.wantCPUs(map[string]string{"shared": "0,3", "whole": "1,2"}) // the same CPUs as before
		d.end()
		d.start()
		time.Sleep(time.Minute)
		d.wantCPUs(map[string]string{"shared": "0,3", "whole": "1,2"})
		d.desire(3, shared, whole, guaranteed("other", "1"))
		time.Sleep(time.Minute)
		d.wantCPUs(map[string]string{"shared": "0", "whole": "1,2", "other": "3"})
		d.desire(4, shared)
		time.Sleep(time.Minute)
		d.wantCPUs(map[string]string{"shared": "0,1,2,3"})
		d.fake.Record()
		time.Sleep(5 * time.Minute)
		if calls := d.fake.Calls(); len(calls) > 0 {
			t.Errorf("without changes the agent called %q, want no call", calls)
		}
	})
}

func TestStaticCPUManagerKeepsReservedCPUs(t *testing.T) {
	reserved := hardware.Limits{System: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}}
	withCPUs(t, plan.StaticCPUManager, reserved, func(t *testing.T, d *device) {
		d.desire(1, guaranteed("whole", "2"))
		time.Sleep(5 * time.Second)
		d.wantCPUs(map[string]string{"whole": "2,3"})
	})
	withCPUs(t, plan.StaticCPUManager, hardware.Limits{}, func(t *testing.T, d *device) {
		d.desire(1, guaranteed("all", "4")) // one CPU is reserved
		time.Sleep(5 * time.Second)
		if w := d.wantPhase("all", corev1.PodPending, "").ContainerStatuses[0].State.Waiting; w == nil ||
			w.Reason != plan.DeviceUnavailable {
			t.Errorf("the pod's status is %+v, want a container that waits with DeviceUnavailable", w)
		}
	})
}

func TestWithoutTheStaticCPUManagerContainersRunOnAllCPUs(t *testing.T) {
	withCPUs(t, plan.NoCPUManager, hardware.Limits{}, func(t *testing.T, d *device) {
		d.desire(1, makePod("shared", "wait"), guaranteed("whole", "2"))
		time.Sleep(30 * time.Second)
		d.wantCPUs(map[string]string{"shared": "", "whole": ""})
		if slices.Contains(d.fake.Calls(), "Update") {
			t.Error("the agent updated a container without the static CPU manager")
		}
	})
}

// After a reboot the hardware may be measured later than the containers are listed. A restarted
// container still gets the device's values, such as the number of CPUs.
func TestContainersRestartedAfterARebootGetTheDevicesValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.board.slow = 3 * time.Second
		var environment []string
		d.fake.AddImage("app", 1, func(s engine.Spec, run int) enginetest.Play {
			environment = append(environment, fmt.Sprint(s.Env, s.OOMScoreAdj))
			return enginetest.Play{}
		})
		d.start()
		defer func() { d.end() }()
		p := makePod("one", "wait")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		for _, name := range []string{"limits.cpu", "limits.memory"} {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env,
				corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: name}}})
		}
		d.desire(1, p)
		time.Sleep(10 * time.Second)
		d.end()
		d.fake.PowerCut()
		d.board.set(func(b *board) { b.boot = "boot-2" })
		d.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(environment) != 2 || environment[0] != environment[1] || strings.Contains(environment[0], "=0") {
			t.Errorf("the container was started with %q", environment)
		}
	})
}
