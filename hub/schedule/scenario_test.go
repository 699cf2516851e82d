package schedule

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// zone makes a pod select a zone.
func zone(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: name} }
}

func TestScenarioFilters(t *testing.T) {
	tol := func(key string, op corev1.TolerationOperator, value string, effect corev1.TaintEffect) func(*corev1.Pod) {
		return tolerate(corev1.Toleration{Key: key, Operator: op, Value: value, Effect: effect})
	}
	const equal, exists, no = corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TaintEffectNoSchedule
	dedicated := taint("dedicated", "user1", no)
	init := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "init",
				Resources: corev1.ResourceRequirements{Requests: list(cpu, "")}})
		}
	}
	for _, c := range []struct {
		name string
		node *corev1.Node
		pod  *corev1.Pod
		why  string // why the only node does not fit; "": it fits
	}{
		{"S12.taint.1 a pod without tolerations fits on a node without taints", node("pi", "oslo"), pod("p"), ""},
		{"S12.taint.2 a pod without tolerations does not fit on NoSchedule", node("pi", "oslo", dedicated), pod("p"), "node(s) had untolerated taint {dedicated: user1}"},
		{"S12.taint.3 the same key, value and effect tolerate", node("pi", "oslo", dedicated), pod("p", tol("dedicated", equal, "user1", no)), ""},
		{"S12.taint.4 another value does not tolerate", node("pi", "oslo", dedicated), pod("p", tol("dedicated", equal, "user2", no)), "node(s) had untolerated taint {dedicated: user1}"},
		{"S12.taint.5 Exists needs no value", node("pi", "oslo", dedicated), pod("p", tol("dedicated", exists, "", no)), ""},
		{"S12.taint.6 one of two taints is not tolerated", node("pi", "oslo", dedicated, taint("foo", "bar", no)), pod("p", tol("dedicated", exists, "", no)), "node(s) had untolerated taint {foo: bar}"},
		{"S12.taint.7 another effect does not tolerate", node("pi", "oslo", dedicated), pod("p", tol("dedicated", equal, "user1", corev1.TaintEffectNoExecute)), "node(s) had untolerated taint {dedicated: user1}"},
		{"S12.taint.8 no effect means every effect", node("pi", "oslo", dedicated), pod("p", tol("dedicated", equal, "user1", "")), ""},
		{"S12.taint.9 PreferNoSchedule refuses no pod", node("pi", "oslo", taint("dedicated", "user1", corev1.TaintEffectPreferNoSchedule)), pod("p"), ""},
		{"S12.unschedulable.1 an unschedulable node accepts no pod", node("pi", "oslo", cordoned), pod("p"), "node(s) were unschedulable"},
		{"S12.unschedulable.2 a schedulable node accepts pods", node("pi", "oslo"), pod("p"), ""},
		{"S12.unschedulable.3 a pod that tolerates the cordon fits", node("pi", "oslo", cordoned), pod("p", tol(corev1.TaintNodeUnschedulable, exists, "", no)), ""},
		{"S12.fit.1 a request equal to the free amount fits", node("pi", "oslo"), pod("p", asks("4", "4Gi")), ""},
		{"S12.fit.1 a byte more does not fit", node("pi", "oslo"), pod("p", asks("4", "4294967297")), "Insufficient memory"},
		{"S12.fit.2 the largest init container counts, not the sum", node("pi", "oslo"), pod("p", asks("1", ""), init("3"), init("4")), ""},
		{"S12.fit.2 a single init container that is too large does not fit", node("pi", "oslo"), pod("p", asks("1", ""), init("3"), init("5")), "Insufficient cpu"},
		{"S12.fit.3 an unknown resource of quantity 0 is ignored", node("pi", "oslo"), pod("p", requests(corev1.ResourceList{"example.com/door": resource.MustParse("0")})), ""},
		{"S12.fit.4 an extended resource that the node does not have fails", node("pi", "oslo"), pod("p", requests(corev1.ResourceList{"example.com/door": resource.MustParse("1")})), "Insufficient example.com/door"},
		{"S12.fit.5 too many pods, even for a pod without requests", node("pi", "oslo", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("0") }), pod("p"), "Too many pods"},
		{"S12.conformance.2 a pod whose node selector matches is placed", node("pi", "oslo"), pod("p", zone("oslo")), ""},
		{"S12.conformance.3 a pod whose node selector matches no node stays pending", node("pi", "oslo"), pod("p", zone("bergen")), "node(s) didn't match Pod's node affinity/selector"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(c.node, c.pod).settle().quiet()
			want := ""
			if c.why != "" {
				want = "0/1 nodes are available: 1 " + c.why + "."
			}
			if got := f.why("p"); got != want || (f.on("p") == "pi") != (want == "") {
				t.Errorf("the pod is on %q with the message %q, want %q", f.on("p"), got, want)
			}
		})
	}
	t.Run("S12.conformance.1 pods are placed until every node is full, and one more stays pending", func(t *testing.T) {
		f := newFleet(t).put(node("a", "oslo"), node("b", "oslo"))
		for _, name := range names("p", 4) {
			f.put(pod(name, asks("2", "1Gi")))
		}
		f.settle().put(pod("more", asks("1", "1Mi"))).settle().quiet()
		if got := count(f, func(n *corev1.Node) string { return n.Name }); got["a"] != 2 || got["b"] != 2 {
			t.Errorf("placed %v", got)
		}
		if want := "0/2 nodes are available: 2 Insufficient cpu."; f.why("more") != want {
			t.Errorf("%q, want %q", f.why("more"), want)
		}
	})
}
