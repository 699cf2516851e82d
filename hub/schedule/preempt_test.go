package schedule

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

func TestQueueOrder(t *testing.T) {
	f := newFleet(t).put(node("pi", "oslo"), pod("a-low", asks("4", "")), pod("b-high", asks("4", ""), priority(10)))
	f.settle().quiet()
	if f.on("b-high") != "pi" || f.on("a-low") != "" {
		t.Error("the more important goes first")
	}
}

func TestPreemption(t *testing.T) {
	for _, c := range []struct {
		name    string
		there   []*corev1.Pod
		pod     *corev1.Pod
		victims []string
		room    string
	}{
		{"one lower pod leaves", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"))}, pod("p", asks("4", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"nobody of the same priority leaves", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"), priority(10))}, pod("p", asks("4", ""), priority(10), toNode("a")), nil, ""},
		{"as few as will do, the least important", []*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1)), pod("l2", asks("2", ""), onNode("a"), priority(5))},
			pod("p", asks("2", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"the node whose most important victim is the least important", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a"), priority(5)), pod("l2", asks("2", ""), onNode("b"), priority(1)), pod("l3", asks("2", ""), onNode("b"), priority(1))},
			pod("p", asks("4", ""), priority(10)), []string{"l2", "l3"}, "b"},
		{"then the node with the fewest", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a"), priority(1)), pod("l2", asks("2", ""), onNode("b"), priority(1)), pod("l3", asks("2", ""), onNode("b"), priority(1))},
			pod("p", asks("4", ""), priority(10)), []string{"l1"}, "a"},
		{"nobody leaves where that would not help", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a")), pod("l2", asks("4", ""), onNode("b"))}, pod("p", asks("5", ""), priority(10)), nil, ""},
		{"a pod that never preempts waits", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"))},
			pod("p", asks("4", ""), priority(10), toNode("a"), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) }), nil, ""},
		{"the one that keeps it away leaves", []*corev1.Pod{pod("l1", onNode("a"), awayFrom("vip", corev1.LabelHostname)), pod("l2", onNode("a"))}, pod("p", app("vip"), priority(10), toNode("a")), []string{"l1"}, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"))
			for _, p := range c.there {
				f.put(p)
			}
			f.put(c.pod).settle().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != c.room || f.on("p") != "" {
				t.Fatalf("nominated to %q, want %q; on %q", got, c.room, f.on("p"))
			}
			var left []string
			for p := range f.s.Pods("") {
				if p.DeletionTimestamp != nil {
					left = append(left, p.Name)
					if d := state.PodCondition(p, corev1.DisruptionTarget); d == nil || d.Reason != "PreemptionByScheduler" {
						t.Errorf("%s: %+v", p.Name, d)
					}
				}
			}
			if len(left) != len(c.victims) {
				t.Fatalf("left: %v, want %v", left, c.victims)
			}
			for i := range left {
				if left[i] != c.victims[i] {
					t.Fatalf("left: %v, want %v", left, c.victims)
				}
			}
			if c.room == "" {
				return
			}
			// a lower pod may not take the room that is being made
			f.put(pod("thief", asks("2", ""), toNode(c.room)))
			for _, v := range left {
				f.removePod(v).settle()
			}
			f.quiet()
			if f.on("p") != c.room || f.s.Pod("default", "p").Status.NominatedNodeName != "" {
				t.Errorf("on %q when the room is free: %s", f.on("p"), f.why("p"))
			}
			if q := f.s.Usage(c.room).Requests[corev1.ResourceCPU]; q.MilliValue() > 4000 {
				t.Errorf("node is overfull: %s", q.String())
			}
		})
	}
}
