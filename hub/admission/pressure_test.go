package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/state"
)

// A node with memory pressure accepts only pods that request memory or cpu. The scheduler and the
// device use the same toleration.
func TestMemoryPressureIsToleratedByAllButBestEffortPods(t *testing.T) {
	some := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"),
		corev1.ResourceCPU: resource.MustParse("100m")}
	pressure := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
	for name, c := range map[string]struct {
		resources corev1.ResourceRequirements
		have      []corev1.Toleration
		tolerates bool
		count     int // of tolerations
	}{
		"BestEffort":                       {count: 2},
		"Burstable":                        {resources: corev1.ResourceRequirements{Requests: some}, tolerates: true, count: 3},
		"Guaranteed":                       {resources: corev1.ResourceRequirements{Requests: some, Limits: some}, tolerates: true, count: 3},
		"limits only":                      {resources: corev1.ResourceRequirements{Limits: some}, tolerates: true, count: 3},
		"with an explicit toleration":      {have: []corev1.Toleration{{Key: pressure.Key, Operator: corev1.TolerationOpExists}}, resources: corev1.ResourceRequirements{Requests: some}, tolerates: true, count: 3},
		"with a toleration of all taints":  {have: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, resources: corev1.ResourceRequirements{Requests: some}, tolerates: true, count: 1},
		"with requests of other resources": {resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}}, count: 2},
		"with a limit range's requests":    {tolerates: true, count: 3},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1",
				Resources: *c.resources.DeepCopy()}}, Tolerations: c.have}}
			Default(p, normal)
			if name == "with a limit range's requests" { // limit ranges apply after the defaults
				p.Spec.Containers[0].Resources.Requests = some
				p.Status.QOSClass = ""
			}
			for range 2 {
				Default(p, normal)
			}
			if got := state.Tolerates(p.Spec.Tolerations, &pressure); got != c.tolerates || len(p.Spec.Tolerations) != c.count {
				t.Errorf("tolerates memory pressure: %v, want %v; %d tolerations, want %d: %+v", got, c.tolerates,
					len(p.Spec.Tolerations), c.count, p.Spec.Tolerations)
			}
			if t2 := (corev1.Taint{Key: corev1.TaintNodeDiskPressure,
				Effect: corev1.TaintEffectNoSchedule}); state.Tolerates(p.Spec.Tolerations, &t2) &&
				name != "with a toleration of all taints" {
				t.Error("the pod tolerates disk pressure")
			}
		})
	}
}
