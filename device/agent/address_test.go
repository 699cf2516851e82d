package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

// A container that reads its pod's address from the environment gets the address that the status
// has later, even if it is the pod's only container.
func TestAContainerGetsItsPodsAddress(t *testing.T) {
	for name, change := range map[string]func(*corev1.PodSpec){
		"one container": func(*corev1.PodSpec) {},
		"two containers": func(s *corev1.PodSpec) {
			s.Containers = append(s.Containers, makePod("x", "wait").Spec.Containers[0])
			s.Containers[1].Name = "c1"
		},
		"host network": func(s *corev1.PodSpec) { s.HostNetwork = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				var env []string
				d.fake.AddImage("app:1", 1<<20, func(s engine.Spec, run int) enginetest.Play {
					if s.Image == "app:1" && len(s.Env) > 0 {
						env = s.Env
					}
					return toolOrPause(s, run)
				})
				policy := d.config.Policy
				p := makePod("web", "wait")
				c := &p.Spec.Containers[0]
				c.Image = "app:1"
				c.Env = []corev1.EnvVar{
					{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
					{Name: "ADDRESS", Value: "$(POD_IP):80"},
				}
				change(&p.Spec)
				if p.Spec.HostNetwork {
					policy.HostNetwork = true
					d.end()
					d.config.Policy = policy
					d.start()
				}
				d.desire(1, p)
				time.Sleep(5 * time.Second)
				st := d.wantPhase("web", corev1.PodRunning, "")
				if st.PodIP == "" || !slices.Contains(env, "POD_IP="+st.PodIP) ||
					!slices.Contains(env, "ADDRESS="+st.PodIP+":80") {
					t.Errorf("the pod's address is %q, and its container gets %q, want the same", st.PodIP, env)
				}
				before := d.containers()
				d.end()
				d.start()
				time.Sleep(time.Minute)
				if now := d.containers(); !slices.Equal(now, before) {
					t.Errorf("after a restart of the agent the containers are %q, want %q", now, before)
				}
			})
		})
	}
}

// An earlier version started such a pod without a sandbox. The agent does not restart the pod
// because of that; its next container gets a sandbox.
func TestARunningPodIsNotRestartedForAnAddress(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		d.desire(1, p)
		time.Sleep(5 * time.Second)
		ip := d.wantPhase("web", corev1.PodRunning, "").PodIP
		d.wantContainers("web/c0#0 running")
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "POD_IP",
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
		d.desire(2, p)
		time.Sleep(time.Minute)
		d.end()
		d.start()
		time.Sleep(time.Minute)
		d.wantContainers("web/c0#0 running")
		if now := d.wantPhase("web", corev1.PodRunning, "").PodIP; now != ip || ip == "" {
			t.Errorf("the address is %q, want %q as before", now, ip)
		}
		d.fake.Exit("flotilla_c0_web_default_uid-web_0", 1)
		time.Sleep(time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
		d.wantContainers("web/POD#0 running", "web/c0#1 running")
	})
}
