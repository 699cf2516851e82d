package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
)

// The agent may start before the network is up. A container that needs the device's address waits
// for it for a limited time, and gets the address soon after the device has one.
func TestAContainerWaitsForTheDevicesAddress(t *testing.T) {
	field := func(path string) corev1.EnvVar {
		return corev1.EnvVar{Name: "H", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	for name, c := range map[string]struct {
		env         corev1.EnvVar
		hostNetwork bool
		// time from the boot to the agent's start; times from that start to the address and to the
		// check
		booted, appears, ran time.Duration
		env0                 string
	}{
		"the address appears":                            {field("status.hostIP"), false, 0, 40 * time.Second, time.Minute, "H=192.0.2.7"},
		"the address appears, with host network":         {field("status.podIP"), true, 0, 40 * time.Second, time.Minute, "H=192.0.2.7"},
		"the address never appears":                      {field("status.hostIP"), false, 0, 24 * time.Hour, 4 * time.Minute, "H="},
		"the cable is unplugged, and the agent restarts": {field("status.hostIP"), false, time.Hour, 24 * time.Hour, 10 * time.Second, "H="},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDevice(t)
				var envs [][]string
				d.fake.AddImage("app", 1, func(s engine.Spec, _ int) enginetest.Play {
					envs = append(envs, s.Env)
					return enginetest.Play{}
				})
				d.booted = time.Now().Add(-c.booted)
				d.board.set(func(b *board) { b.noAddress = true })
				d.config.Policy.HostNetwork = true
				d.start()
				defer func() { d.end() }()
				p := makePod("app", "")
				p.Spec.HostNetwork = c.hostNetwork
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
				p.Spec.Containers[0].Env = []corev1.EnvVar{c.env}
				d.desire(1, p)
				time.AfterFunc(c.appears, func() { d.board.set(func(b *board) { b.noAddress = false }) })
				time.Sleep(c.ran)
				st := d.wantPhase("app", corev1.PodRunning, "")
				if len(envs) != 1 || !slices.Contains(envs[0], c.env0) {
					t.Errorf("the container got %q", envs)
				}
				if c.appears < c.ran && st.HostIP != "192.0.2.7" {
					t.Errorf("the pod's hostIP is %q, want 192.0.2.7", st.HostIP)
				}
			})
		})
	}
}

// Like the kubelet, a device with addresses of both families reports both.
func TestADualStackDeviceReportsBothAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		envs := map[string][]string{}
		d.fake.AddImage("app", 1, func(s engine.Spec, _ int) enginetest.Play {
			envs[s.Labels[plan.LabelPodName]] = s.Env
			return enginetest.Play{}
		})
		d.board.set(func(b *board) { b.dual = true })
		d.config.Policy.HostNetwork = true
		d.start()
		defer func() { d.end() }()
		own, host := makePod("own", ""), makePod("host", "")
		host.Spec.HostNetwork = true
		for _, p := range []*corev1.Pod{&own, &host} {
			c := &p.Spec.Containers[0]
			c.Image, c.ImagePullPolicy = "app", corev1.PullNever
			for _, path := range []string{"status.hostIP", "status.hostIPs"} {
				c.Env = append(c.Env, corev1.EnvVar{Name: path[len("status."):],
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}})
			}
		}
		d.desire(1, own, host)
		time.Sleep(10 * time.Second)
		for name, podIPs := range map[string]int{"own": 1, "host": 2} {
			st := d.wantPhase(name, corev1.PodRunning, "")
			if st.HostIP != "192.0.2.7" || len(st.HostIPs) != 2 || len(st.PodIPs) != podIPs {
				t.Errorf("pod %s has the hostIP %q, the hostIPs %v and the podIPs %v", name, st.HostIP, st.HostIPs, st.PodIPs)
			}
			if !slices.Contains(envs[name], "hostIP=192.0.2.7") ||
				!slices.Contains(envs[name], "hostIPs=192.0.2.7,2001:db8::7") {
				t.Errorf("the environment of %s is %q, want both hostIPs", name, envs[name])
			}
		}
	})
}
