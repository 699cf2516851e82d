package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/wire"
)

// The config map of a pod that runs may be gone for months: the device says so a few times an hour, and has its files
// up to date again soon after it has come back.
func TestAPodWhoseConfigMapIsGoneIsToldOfLessAndLess(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("app", "wait")
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		generation := int64(0)
		desire := func(text string) {
			generation++
			m := corev1.ConfigMap{Data: map[string]string{"a": text}}
			m.Name, m.Namespace = "m", p.Namespace
			want := wire.Desired{Generation: generation, Hub: "hub-1", Pods: []corev1.Pod{p}}
			if text != "" {
				want.ConfigMaps = []corev1.ConfigMap{m}
			}
			if err := d.agent.Store(want); err != nil {
				t.Fatal(err)
			}
		}
		told := func() (n int) {
			for _, r := range d.reasons() {
				if r == failedMount {
					n++
				}
			}
			return n
		}
		desire("1")
		time.Sleep(10 * time.Second)
		d.wantPhase("app", corev1.PodRunning, "")
		desire("")
		time.Sleep(time.Hour)
		if n := told(); n < 5 || n > 20 {
			t.Errorf("told of %d times in an hour", n)
		}
		before := told()
		for range 60 { // a storm of other changes
			desire("")
			time.Sleep(time.Second)
		}
		if n := told() - before; n > 13 {
			t.Errorf("told of %d times in a minute of other changes", n)
		}
		desire("2")
		time.Sleep(6 * time.Second)
		name := filepath.Join(d.agent.disk.dir(&p.Spec.Volumes[0], p.UID), "a")
		if b, err := os.ReadFile(name); string(b) != "2" {
			t.Errorf("after it has come back the file is %q (%v)", b, err)
		}
		d.wantPhase("app", corev1.PodRunning, "")
	})
}
