package agent

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/shared/wire"
)

// One hook runs in a container and one sends a request to the container. Both leave files on the
// device.
func TestRealEngineRunsHooks(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("hooks", "serve :8080")
		p.UID = types.UID("uid-hooks-" + d.node)
		p.Spec.Volumes = []corev1.Volume{{Name: "data",
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: d.shared}}}}
		c := &p.Spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		c.Lifecycle = &corev1.Lifecycle{
			PostStart: execHook("/tool", "sleep", "1s", "then", "get", "http://127.0.0.1:8080/", "then", "write",
				"/data/started", "yes"),
			PreStop: execHook("/tool", "write", "/data/stopped", "yes"),
		}
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
			t.Fatal(err)
		}
		there := func(name string) bool {
			b, _ := os.ReadFile(filepath.Join(d.shared, name))
			return string(b) == "yes"
		}
		d.await("the pod is ready", func() bool { return ready(d.pod("hooks")) })
		if !there("started") {
			t.Error("the pod was ready before the end of its postStart hook")
		}
		if err := d.agent.Store(wire.Desired{Generation: 2, Hub: "h",
			Pods: []corev1.Pod{deletedPod(p, 60)}}); err != nil {
			t.Fatal(err)
		}
		d.await("the pod is gone", func() bool { return d.pod("hooks") == nil })
		if !there("stopped") {
			t.Error("the pod has gone without its preStop hook")
		}

		// a pod with a failing hook and an HTTP hook
		p = makePod("failing", "serve :8080")
		p.UID = types.UID("uid-failing-" + d.node)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: execHook("/tool", "no-such-command")}
		q := makePod("requests", "serve :8080")
		q.UID = types.UID("uid-requests-" + d.node)
		q.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}}
		if err := d.agent.Store(wire.Desired{Generation: 3, Hub: "h", Pods: []corev1.Pod{p, q}}); err != nil {
			t.Fatal(err)
		}
		d.await("the pod whose hook fails has ended", func() bool {
			st := d.pod("failing")
			return st != nil && st.ContainerStatuses != nil && st.ContainerStatuses[0].State.Terminated != nil
		})
		d.await("the pod has received its hook's request", func() bool {
			st := d.pod("requests")
			return ready(st) || st != nil && st.ContainerStatuses != nil && st.ContainerStatuses[0].RestartCount > 0
		})
	})
}
