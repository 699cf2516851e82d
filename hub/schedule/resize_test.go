package schedule

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Space that a shrinking container frees counts once its device reports the new size.
func TestSpaceOfAShrunkPodIsUsed(t *testing.T) {
	says := func(p *corev1.Pod, cpu string) {
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", AllocatedResources: list(cpu, ""),
			Resources: &corev1.ResourceRequirements{Requests: list(cpu, "")}}}
	}
	for _, n := range []int{1, 300} { // a small fleet and a large one
		f := newFleet(t).put(node("pi", "oslo"))
		for _, name := range names("full", n-1) {
			f.put(node(name, "oslo", taint("busy", "", corev1.TaintEffectNoSchedule)))
		}
		f.put(pod("a", asks("3", ""), onNode("pi"), func(p *corev1.Pod) { says(p, "3") }), pod("b", asks("2", ""))).rest()
		if f.on("b") != "" {
			t.Fatalf("%d nodes: the pod is placed before the resize", n)
		}
		f.editPod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = list("1", "")
			p.Generation++
		}).rest()
		if f.on("b") != "" {
			t.Fatalf("%d nodes: the pod is placed before the device reports the resize", n)
		}
		if f.editPod("a", func(p *corev1.Pod) { says(p, "1") }).rest().quiet(); f.on("b") != "pi" {
			t.Errorf("%d nodes: the pod is on %q: %s", n, f.on("b"), f.why("b"))
		}
	}
}
