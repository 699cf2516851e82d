package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/wire"
)

// A running pod's config map may be missing for months. Events say so a few times an hour, and the
// files are updated soon after the config map is back.
func TestAMissingConfigMapIsReportedAtGrowingIntervals(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("app", "wait")
		p.Spec.Volumes = []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}}}}
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
		reports := func() (n int) {
			for _, r := range d.reasons() {
				if r == plan.FailedMount {
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
		if n := reports(); n < 5 || n > 20 {
			t.Errorf("the missing config map was reported %d times in an hour", n)
		}
		before := reports()
		for range 60 { // many other changes in a short time
			desire("")
			time.Sleep(time.Second)
		}
		if n := reports() - before; n > 13 {
			t.Errorf("the missing config map was reported %d times in a minute of other changes", n)
		}
		desire("2")
		time.Sleep(6 * time.Second)
		name := filepath.Join(d.agent.disk.Dir(&p.Spec.Volumes[0], p.UID), "a")
		if b, err := os.ReadFile(name); string(b) != "2" {
			t.Errorf("after the config map's return the file is %q (%v), want 2", b, err)
		}
		d.wantPhase("app", corev1.PodRunning, "")
	})
}

// As with the kubelet, a container restarts with the pod's present files even if their source is
// gone. Only the first mount needs the source.
func TestAContainerRestartsWithFilesWhoseSourceIsGone(t *testing.T) {
	local := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	for name, source := range map[string]corev1.VolumeSource{
		"a config map": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("m")}},
		"a secret":     {Secret: &corev1.SecretVolumeSource{SecretName: "m"}},
		"a projected volume": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: local("m")}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := makePod("app", "wait", "wait")
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
				p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
				p.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v/a", SubPath: "a"}}
				late := makePod("late", "wait")
				late.Spec.Volumes, late.Spec.Containers[0].VolumeMounts = p.Spec.Volumes,
					p.Spec.Containers[0].VolumeMounts
				desire := func(generation int64, data map[string][]byte, pods ...corev1.Pod) {
					want := wire.Desired{Generation: generation, Hub: "hub-1", Pods: pods}
					if data != nil {
						want.Secrets, want.ConfigMaps = make([]corev1.Secret, 1), make([]corev1.ConfigMap, 1)
						want.Secrets[0].Data, want.ConfigMaps[0].BinaryData = data, data
						want.Secrets[0].Name, want.Secrets[0].Namespace = "m", p.Namespace
						want.ConfigMaps[0].Name, want.ConfigMaps[0].Namespace = "m", p.Namespace
					}
					if err := d.agent.Store(want); err != nil {
						t.Fatal(err)
					}
				}
				restarted := func(after string, want int32) {
					t.Helper()
					time.Sleep(30 * time.Second)
					for _, cs := range d.wantPhase("app", corev1.PodRunning, "").ContainerStatuses {
						if cs.RestartCount != want || cs.State.Running == nil {
							t.Errorf("%s: container %s is %+v, restarted %d times", after, cs.Name, cs.State,
								cs.RestartCount)
						}
					}
					file := filepath.Join(d.agent.disk.Dir(&p.Spec.Volumes[0], p.UID), "a")
					if b, err := os.ReadFile(file); string(b) != "1" {
						t.Errorf("%s: the file is %q (%v), want 1", after, b, err)
					}
				}
				crash := func() {
					for _, c := range []string{"c0", "c1"} {
						list, err := d.fake.Containers(t.Context(), plan.LabelContainer+"="+c)
						if err != nil {
							t.Fatal(err)
						}
						for _, x := range list {
							if x.Labels[plan.LabelPodName] == "app" && x.State == engine.Running {
								d.fake.Exit(x.Name, 1)
							}
						}
					}
				}
				desire(1, map[string][]byte{"a": []byte("1")}, p)
				restarted("at first", 0)
				desire(2, nil, p, late)
				crash()
				restarted("after a crash", 1)
				d.end()
				crash()
				d.start()
				restarted("after a crash without an agent", 2)
				d.wantPhase("late", corev1.PodPending, "")
				// the new version lacks a key that one container needs
				desire(3, map[string][]byte{"b": []byte("2")}, p, late)
				time.Sleep(time.Minute)
				d.wantPhase("late", corev1.PodRunning, "")
			})
		})
	}
}
