package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/plan"
	"flotilla.dev/shared/wire"
)

// As with the kubelet, a pod whose volume fails pulls no image. Its events come at most every two
// minutes, because a card may be read-only for weeks.
func TestAPodWhoseVolumeCannotBeMadePullsNothing(t *testing.T) {
	for name, source := range map[string]corev1.VolumeSource{
		"a missing config map":                 {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}},
		"a persistent volume without its data": {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
	} {
		for image, there := range map[string]bool{"a present image": true, "another": false} {
			t.Run(name+", "+image, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newDevice(t)
					d.config.Policy.LocalVolumes = true
					d.start()
					defer func() { d.end() }()
					p := makePod("app", "wait")
					if !there {
						p.Spec.Containers[0].Image = "registry.example/absent:1"
					}
					p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
					p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
					want := wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{p},
						Volumes: []wire.Volume{{UID: types.UID(dataUID), Namespace: "default", Claim: "data",
							Made: true}}}
					if err := d.agent.Store(want); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Hour)
					reports := 0
					for _, r := range d.reasons() {
						if r == plan.FailedMount {
							reports++
						} else if slices.Contains([]string{"Pulling", "Pulled", "Created", "Failed"}, r) {
							t.Fatalf("the events are %q", d.reasons())
						}
					}
					if reports < 20 || reports > 35 {
						t.Errorf("the failure was reported %d times in an hour", reports)
					}
				})
			})
		}
	}
}
