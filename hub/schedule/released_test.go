package schedule

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// In a large fleet a class caches its results for nodes. If a nominated pod goes to another node,
// its reserved space is free for the next pods of the same pass.
func TestReservedSpaceIsReleased(t *testing.T) {
	f := newFleet(t)
	for n := range 2 * minCandidates {
		f.put(node(fmt.Sprintf("closed-%04d", n), "x", func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	}
	at := func(seconds int) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(f.now.Add(time.Duration(seconds) * time.Second))
		}
	}
	f.put(node("a", "x"), node("b", "x"), node("c", "x"), node("d", "x", taint("own", "", corev1.TaintEffectNoSchedule)))
	f.put(
		pod("tiny", asks("1", ""), onNode("a")),
		pod("slow", asks("2", ""), onNode("a"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: f.now} }),
		pod("low-b", asks("4", ""), onNode("b")), pod("low-c", asks("4", ""), onNode("c")),
		pod("one", asks("1", ""), priority(10), at(-3)),
		pod("promised", asks("3", ""), priority(10), at(-2),
			tolerate(corev1.Toleration{Operator: corev1.TolerationOpExists}), func(p *corev1.Pod) {
				p.Status.NominatedNodeName = "a"
				p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "x"}
			}),
		pod("two", asks("1", ""), priority(10), at(-1)),
	)
	f.settle()
	if f.on("promised") == "" || f.on("promised") == "a" {
		t.Fatalf("promised is on %q: %s", f.on("promised"), f.why("promised"))
	}
	if f.on("one") == "" && f.on("two") == "" {
		t.Errorf("no pod is placed on the released space: %s", f.why("two"))
	}
	leaving := 0
	for _, name := range []string{"tiny", "low-b", "low-c"} {
		if f.s.Pod("default", name).DeletionTimestamp != nil {
			leaving++
		}
	}
	if leaving > 1 {
		t.Errorf("%d pods are preempted for one", leaving)
	}
}
