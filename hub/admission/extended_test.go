package admission

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAPodToleratesTheTaintOfItsHardware(t *testing.T) {
	gpio := corev1.ResourceList{"flotilla.dev/gpiochip": resource.MustParse("1"),
		corev1.ResourceCPU: resource.MustParse("1")}
	for _, c := range []struct {
		rule string
		spec corev1.PodSpec
		want []string
	}{
		{"a container's limit is its request", corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: gpio}}}}, []string{"flotilla.dev/gpiochip"}},
		{"an init container's request counts", corev1.PodSpec{InitContainers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: gpio}}}}, []string{"flotilla.dev/gpiochip"}},
		{"Kubernetes' own resources have no toleration", corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("1")}}}}}, nil},
		{"an existing toleration is not repeated", corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: gpio}}},
			Tolerations: []corev1.Toleration{{Key: "flotilla.dev/gpiochip", Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoSchedule}}}, []string{"flotilla.dev/gpiochip"}},
	} {
		p := corev1.Pod{Spec: c.spec}
		DefaultPod(&p, Settings{})
		DefaultPod(&p, Settings{})
		var got []string
		for _, tol := range p.Spec.Tolerations {
			if tol.Key != corev1.TaintNodeMemoryPressure && tol.Effect == corev1.TaintEffectNoSchedule &&
				tol.Operator == corev1.TolerationOpExists {
				got = append(got, tol.Key)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
	}
}
