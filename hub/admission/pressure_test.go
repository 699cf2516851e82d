package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/state"
)

// A node with memory pressure takes no BestEffort pods. All others tolerate it, as Kubernetes
// documents; scheduler and device use the same toleration.
func TestMemoryPressureIsToleratedByAllButBestEffortPods(t *testing.T) {
	some := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceCPU: resource.MustParse("100m")}
	pressure := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
	for what, c := range map[string]struct {
		resources corev1.ResourceRequirements
		have      []corev1.Toleration
		tolerates bool
		in        int // tolerations
	}{
		"BestEffort":                      {in: 2},
		"Burstable":                       {resources: corev1.ResourceRequirements{Requests: some}, tolerates: true, in: 3},
		"Guaranteed":                      {resources: corev1.ResourceRequirements{Requests: some, Limits: some}, tolerates: true, in: 3},
		"limits only":                     {resources: corev1.ResourceRequirements{Limits: some}, tolerates: true, in: 3},
		"with its own toleration":         {have: []corev1.Toleration{{Key: pressure.Key, Operator: corev1.TolerationOpExists}}, resources: corev1.ResourceRequirements{Requests: some}, tolerates: true, in: 3},
		"with a toleration of everything": {have: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, resources: corev1.ResourceRequirements{Requests: some}, tolerates: true, in: 1},
		"with other requests":             {resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}}, in: 2},
		"with a limit range's requests":   {tolerates: true, in: 3},
	} {
		t.Run(what, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1", Resources: *c.resources.DeepCopy()}}, Tolerations: c.have}}
			Default(p, normal)
			if what == "with a limit range's requests" { // which is applied after the defaults
				p.Spec.Containers[0].Resources.Requests = some
				p.Status.QOSClass = ""
			}
			for range 2 {
				Default(p, normal)
			}
			if got := state.Tolerates(p.Spec.Tolerations, &pressure); got != c.tolerates || len(p.Spec.Tolerations) != c.in {
				t.Errorf("%v, it tolerates %+v", got, p.Spec.Tolerations)
			}
			if t2 := (corev1.Taint{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule}); state.Tolerates(p.Spec.Tolerations, &t2) && what != "with a toleration of everything" {
				t.Error("and disk pressure too")
			}
		})
	}
}
