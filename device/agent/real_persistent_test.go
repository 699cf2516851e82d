package agent

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/wire"
)

// The data in a persistent volume is available to the next pod, after a restart of the agent and
// with a hub that does not name the volume. It is removed when the hub requests that.
func TestRealEngineKeepsPersistentVolumes(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		pod := func(name string, readOnly bool, args ...string) corev1.Pod {
			p := makePod(name, "wait")
			p.UID = types.UID("uid-" + name + "-" + d.node)
			p.Spec.TerminationGracePeriodSeconds = new(int64)
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data",
					ReadOnly: readOnly}}}}
			p.Spec.Containers = []corev1.Container{{Name: "c", Image: enginetest.ToolImage, Args: args,
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"},
					{Name: "v", MountPath: "/sub", SubPath: "sub"}}}}
			return p
		}
		generation := int64(0)
		desire := func(volumes []wire.Volume, pods ...corev1.Pod) {
			t.Helper()
			generation++
			must(t, d.agent.Store(wire.Desired{Generation: generation, Hub: "h", Pods: pods, Volumes: volumes}))
		}
		ended := func(name string, phase corev1.PodPhase) {
			t.Helper()
			d.await(name+" ends", func() bool { st := d.pod(name); return st != nil && st.Phase == phase })
		}
		claim := wire.Volume{UID: "data-uid", Namespace: "default", Claim: "data"}
		desire([]wire.Volume{claim}, pod("writer", false, "write", "/v/f", "data", "then", "write", "/sub/g", "too"))
		ended("writer", corev1.PodSucceeded)
		d.await("the agent reports the volume", func() bool {
			got := d.agent.Status().Volumes
			return len(got) == 1 && got[0] == wire.VolumeState{UID: "data-uid"}
		})
		desire(nil)
		d.await("the pod is gone", func() bool { return len(heldPods(d.agent)) == 0 && len(d.list()) == 0 })
		d.end()
		d.start() // the hub does not name the volume; the volume stays

		claim.Made = true
		desire([]wire.Volume{claim}, pod("reader", true, "cat", "/v/f", "then", "cat", "/v/sub/g"))
		ended("reader", corev1.PodSucceeded)
		desire([]wire.Volume{claim}, pod("intruder", true, "write", "/v/h", "no"))
		ended("intruder", corev1.PodFailed)

		path := filepath.Join(d.dir, volume.PersistentDir, "data-uid")
		data, err := os.ReadFile(filepath.Join(path, "f"))
		if err != nil || string(data) != "data" {
			t.Errorf("the volume's file is %q: %v", data, err)
		}
		desire([]wire.Volume{{UID: "data-uid", Remove: true}})
		d.await("the data is removed, and the agent reports no volume", func() bool {
			_, err := os.Lstat(path)
			got := d.agent.Status().Volumes
			return os.IsNotExist(err) && len(got) == 1 && got[0].Gone
		})
	})
}
