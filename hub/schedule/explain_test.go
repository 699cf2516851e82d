package schedule

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestExplainCountsTheNodesOfEachReason(t *testing.T) {
	f := newFleet(t)
	for _, n := range names("tainted", 2) {
		f.put(node(n, "oslo", taint("node.kubernetes.io/unreachable", "", corev1.TaintEffectNoSchedule)))
	}
	for _, n := range names("full", 10) {
		f.put(node(n, "oslo", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("1Gi") }))
	}
	f.put(pod("a", asks("", "2Gi")), pod("b"))
	got, nodes := Explain(f.s, f.s.Pod("default", "a"), f.now)
	want := []Refusal{{"had untolerated taint {node.kubernetes.io/unreachable: }", 2}, {"Insufficient memory", 10}}
	if nodes != 12 || !slices.Equal(got, want) {
		t.Errorf("of %d nodes: %v, want %v", nodes, got, want)
	}
	if got, nodes := Explain(f.s, f.s.Pod("default", "b"), f.now); len(got) > 0 || nodes != 12 {
		t.Errorf("a pod that fits is refused by %v", got)
	}
	if got, nodes := Explain(newFleet(t).s, f.s.Pod("default", "a"), f.now); len(got) > 0 || nodes != 0 {
		t.Errorf("without a node there is %v", got)
	}
}
