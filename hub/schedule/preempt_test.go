package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func TestQueueOrder(t *testing.T) {
	f := newFleet(t).put(node("pi", "oslo"), pod("a-low", asks("4", "")), pod("b-high", asks("4", ""), priority(10)))
	f.settle().quiet()
	if f.on("b-high") != "pi" || f.on("a-low") != "" {
		t.Error("the more important pod is placed first")
	}
}

func TestPreemption(t *testing.T) {
	placedAt := func(after time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				start.Add(after))
		}
	}
	for _, c := range []struct {
		name    string
		placed  []*corev1.Pod
		pod     *corev1.Pod
		victims []string
		room    string
	}{
		{"one pod of lower priority is preempted", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"))}, pod("p", asks("4", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"no pod of the same priority is preempted", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"), priority(10))}, pod("p", asks("4", ""), priority(10), toNode("a")), nil, ""},
		{"the fewest and least important pods are preempted", []*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1)), pod("l2", asks("2", ""), onNode("a"), priority(5))},
			pod("p", asks("2", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"the node whose most important victim is the least important", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a"), priority(5)), pod("l2", asks("2", ""), onNode("b"), priority(1)), pod("l3", asks("2", ""), onNode("b"), priority(1))},
			pod("p", asks("4", ""), priority(10)), []string{"l2", "l3"}, "b"},
		{"of equal nodes the one with the fewest victims", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a"), priority(1)), pod("l2", asks("2", ""), onNode("b"), priority(1)), pod("l3", asks("2", ""), onNode("b"), priority(1))},
			pod("p", asks("4", ""), priority(10)), []string{"l1"}, "a"},
		{"no pod is preempted in vain", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a")), pod("l2", asks("4", ""), onNode("b"))}, pod("p", asks("5", ""), priority(10)), nil, ""},
		{"a pod that never preempts waits", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"))},
			pod("p", asks("4", ""), priority(10), toNode("a"),
				func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) }), nil, ""},
		{"the pod that was placed last is preempted, whatever its device's clock", []*corev1.Pod{
			pod("l1", asks("2", ""), onNode("a"), placedAt(time.Hour),
				func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(0, 0)} }),
			pod("l2", asks("2", ""), onNode("a"), placedAt(time.Minute),
				func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: start} })},
			pod("p", asks("2", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"the pod with the anti-affinity is preempted", []*corev1.Pod{pod("l1", onNode("a"), awayFrom("vip", corev1.LabelHostname)), pod("l2", onNode("a"))}, pod("p", app("vip"), priority(10), toNode("a")), []string{"l1"}, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"))
			for _, p := range c.placed {
				f.put(p)
			}
			f.put(c.pod).settle().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != c.room || f.on("p") != "" {
				t.Fatalf("the pod is nominated to %q, want %q; it is on %q", got, c.room, f.on("p"))
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
				t.Fatalf("preempted: %v, want %v", left, c.victims)
			}
			for i := range left {
				if left[i] != c.victims[i] {
					t.Fatalf("preempted: %v, want %v", left, c.victims)
				}
			}
			if c.room == "" {
				return
			}
			// A pod of lower priority may not take the space that is being made.
			f.put(pod("thief", asks("2", ""), toNode(c.room)))
			for _, v := range left {
				f.removePod(v).settle()
			}
			f.quiet()
			if f.on("p") != c.room || f.s.Pod("default", "p").Status.NominatedNodeName != "" {
				t.Errorf("the pod is on %q once the space is free: %s", f.on("p"), f.why("p"))
			}
			if q := f.s.Usage(c.room).Requests[corev1.ResourceCPU]; q.MilliValue() > 4000 {
				t.Errorf("the thief is placed on reserved space: %s", q.String())
			}
		})
	}
}

// No pod is preempted for a pod whose volume is on another node, or in exclusive use by a pod that
// stays.
func TestPreemptionFollowsThePodsVolume(t *testing.T) {
	uses := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}
	claim := func(volume string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		class := state.LocalClass
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: volume,
				AccessModes: []corev1.PersistentVolumeAccessMode{mode}}}
	}
	once, alone := corev1.ReadWriteOnce, corev1.ReadWriteOncePod
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "on-b"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim"},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
				Values: []string{"b"}}}}}}}}}
	for _, c := range []struct {
		name    string
		claim   *corev1.PersistentVolumeClaim
		placed  []*corev1.Pod
		victims string
	}{
		{"the volume is on b, whose pods are as important", claim("on-b", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("4", ""), onNode("b"), priority(10))}, ""},
		{"the volume is on b, which is cordoned", claim("on-b", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a"), func(p *corev1.Pod) { p.Labels = map[string]string{"cordon": "b"} })}, ""},
		{"the volume is on b, which has a less important pod", claim("on-b", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("4", ""), onNode("b"), priority(5))}, "b1"},
		{"the volume does not exist yet", claim("", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("4", ""), onNode("b"), priority(5))}, "a1"},
		{"a pod that stays has exclusive use", claim("on-b", alone), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("2", ""), onNode("b")), pod("b2", uses, asks("2", ""), onNode("b"), priority(10))}, ""},
		{"a victim has exclusive use", claim("on-b", alone), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("2", ""), onNode("b")), pod("b2", uses, asks("2", ""), onNode("b"))}, "b1 b2"},
		{"a victim has exclusive use, and there is space", claim("on-b", alone), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b2", uses, onNode("b"))}, "b2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"), volume.DeepCopy(), c.claim,
				&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: state.LocalClass}, Provisioner: state.LocalProvisioner})
			for _, p := range c.placed {
				f.put(p)
				f.editNode("b", func(n *corev1.Node) { n.Spec.Unschedulable = n.Spec.Unschedulable || p.Labels["cordon"] == "b" })
			}
			f.put(pod("p", uses, asks("4", ""), priority(10))).settle().quiet()
			var left []string
			for p := range f.s.Pods("") {
				if p.DeletionTimestamp != nil {
					left = append(left, p.Name)
				}
			}
			if got := strings.Join(left, " "); got != c.victims {
				t.Fatalf("%q are preempted, want %q; the pod's message is %q", got, c.victims, f.why("p"))
			}
			for _, name := range left {
				f.removePod(name)
			}
			if f.settle().quiet(); (f.on("p") != "") != (c.victims != "") {
				t.Errorf("after the victims have left the pod is on %q", f.on("p"))
			}
		})
	}
}

// A budget counts before importance. Each eviction uses it up.
func TestPreemptionRespectsBudgets(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "budgeted"}}}}
	for _, c := range []struct {
		name    string
		allowed int32
		placed  []*corev1.Pod
		pod     *corev1.Pod
		victim  string
		room    string
	}{
		{"the more important pod is preempted if the other's budget forbids", 0,
			[]*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1), app("budgeted")), pod("l2", asks("2", ""), onNode("a"), priority(5))},
			pod("p", asks("2", ""), priority(10), toNode("a")), "l2", "a"},
		{"the less important pod is preempted if its budget allows it", 1,
			[]*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1), app("budgeted")), pod("l2", asks("2", ""), onNode("a"), priority(5))},
			pod("p", asks("2", ""), priority(10), toNode("a")), "l1", "a"},
		{"a budget of one does not allow two victims", 1,
			[]*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1), app("budgeted")), pod("l2", asks("2", ""), onNode("a"), priority(1), app("budgeted")),
				pod("l3", asks("4", ""), onNode("b"), priority(5))},
			pod("p", asks("4", ""), priority(10)), "l3", "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := budget.DeepCopy()
			b.Status.DisruptionsAllowed = c.allowed
			f := newFleet(t).put(node("a", "x"), node("b", "x"), b)
			for _, p := range c.placed {
				f.put(p)
			}
			f.put(c.pod).settle()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != c.room ||
				f.s.Pod("default", c.victim).DeletionTimestamp == nil {
				t.Errorf("nominated to %q, want %q with %s preempted", got, c.room, c.victim)
			}
		})
	}
}

// A node without the key of one hard constraint belongs to no domain of the other constraint.
func TestANodeWithoutEveryKeyIsInNoDomain(t *testing.T) {
	spread := func(key string) corev1.TopologySpreadConstraint {
		return corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}
	}
	f := newFleet(t).put(node("a", "oslo", func(n *corev1.Node) { n.Labels["rack"] = "1" }), node("b", "bergen"))
	for _, name := range names("p", 3) {
		f.put(pod(name, func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spread(corev1.LabelTopologyZone),
				spread("rack")}
		})).settle()
	}
	f.quiet()
	if f.on("p-1") != "a" || f.on("p-2") != "a" || f.on("p-3") != "a" {
		t.Errorf("%s %s %s: %s", f.on("p-1"), f.on("p-2"), f.on("p-3"), f.why("p-3"))
	}
}

// The victims on a silent device may never stop, so the space is made on another node.
func TestNoNominationOutlivesItsNode(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.Node)
		room   string
	}{
		{"the victim is still stopping", func(n *corev1.Node) { n.Labels["other"] = "x" }, "a"},
		{"the node becomes silent", taint(corev1.TaintNodeUnreachable, "", corev1.TaintEffectNoExecute), "b"},
		{"the node is cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"), pod("low-a", asks("4", ""), onNode("a")),
				pod("mid-b", asks("4", ""), onNode("b"), priority(5)))
			f.put(pod("p", asks("4", ""), priority(10))).settle().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != "a" {
				t.Fatalf("nominated to %q", got)
			}
			f.editNode("a", c.change).rest().quiet()
			if got, leaves := f.s.Pod("default", "p").Status.NominatedNodeName,
				f.s.Pod("default", "mid-b").DeletionTimestamp != nil; got != c.room || leaves != (c.room == "b") {
				t.Errorf("nominated to %q, want %q; mid-b is preempted: %v: %s", got, c.room, leaves, f.why("p"))
			}
		})
	}
	f := newFleet(t).put(node("a", "x"), pod("low-a", asks("4", ""), onNode("a")), pod("p", asks("4", ""),
		priority(10))).settle()
	if f.removeNode("a").rest().quiet(); f.s.Pod("default", "p").Status.NominatedNodeName != "" {
		t.Error("the pod is nominated to a deleted node")
	}
}

// Only the pods that are preempted for the nominated pod count; other pods may take an hour to
// leave.
func TestANominationEndsWithoutEnoughSpace(t *testing.T) {
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: newFleet(t).now} }
	for _, c := range []struct {
		name   string
		placed []*corev1.Pod // the node's pods after the victims have left
		room   string
	}{
		{"another pod takes the space, and a third leaves for another reason", []*corev1.Pod{pod("vip", asks("4", ""), onNode("a"), priority(20)), pod("slow", onNode("a"), leaving)}, "b"},
		{"a pod that leaves for another reason leaves too little space", []*corev1.Pod{pod("vip", asks("3", ""), onNode("a"), priority(20)), pod("slow", asks("1", ""), onNode("a"), leaving)}, "b"},
		{"a victim of another pod leaves too little space", []*corev1.Pod{pod("vip", asks("3", ""), onNode("a"), priority(20)), pod("slow", asks("1", ""), onNode("a"), leaving, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "PreemptionByScheduler"}}
		})}, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"), pod("low-a", asks("4", ""), onNode("a")),
				pod("mid-b", asks("4", ""), onNode("b"), priority(5)))
			f.put(pod("p", asks("4", ""), priority(10))).settle().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != "a" {
				t.Fatalf("nominated to %q", got)
			}
			f.removePod("low-a")
			for _, p := range c.placed {
				f.put(p)
			}
			f.rest().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != c.room {
				t.Errorf("nominated to %q, want %q: %s", got, c.room, f.why("p"))
			}
		})
	}
}

// A nominated pod counts as placed. Otherwise a pod that must be on another node would preempt in
// vain, or a pod that the nominated pod forbids would take its place.
func TestANominatedPodCountsAsPlaced(t *testing.T) {
	spread := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname,
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "vip"}}}}
	}
	for _, c := range []struct {
		name  string
		apart func(*corev1.Pod)
	}{
		{"two pods with an anti-affinity to each other", awayFrom("vip", corev1.LabelHostname)},
		{"two pods with a spread constraint", spread},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"))
			for _, name := range []string{"a-1", "a-2", "b-1", "b-2"} {
				f.put(pod(name, asks("2", ""), onNode(name[:1])))
			}
			f.put(pod("p-1", asks("1", ""), app("vip"), priority(10), c.apart), pod("p-2", asks("1", ""), app("vip"),
				priority(10), c.apart)).settle().quiet()
			one, two := f.s.Pod("default", "p-1").Status.NominatedNodeName, f.s.Pod("default", "p-2").Status.NominatedNodeName
			if one == "" || two == "" || one == two {
				t.Errorf("both pods are nominated, to %q and %q", one, two)
			}
			for range 3 {
				for p := range f.s.Pods("") {
					if p.DeletionTimestamp != nil {
						f.removePod(p.Name)
					}
				}
				f.settle()
			}
			if f.quiet(); f.on("p-1") == "" || f.on("p-2") == "" || f.s.Len(state.Pods) != 4 {
				t.Errorf("the pods are on %q and %q, and %d of 4 others are preempted", f.on("p-1"), f.on("p-2"),
					6-f.s.Len(state.Pods))
			}
		})
	}
	t.Run("a forbidden pod does not take the place", func(t *testing.T) {
		f := newFleet(t).put(node("a", "x"), pod("low", asks("4", ""), onNode("a")))
		f.put(pod("vip", asks("2", ""), app("vip"), priority(10), awayFrom("noisy", corev1.LabelHostname))).settle()
		f.put(pod("noisy", asks("1", ""), app("noisy"), priority(10)), pod("thief", asks("1", ""), app("noisy"))).settle()
		f.removePod("low").settle().quiet()
		if f.on("vip") != "a" || f.on("noisy") != "" || f.on("thief") != "" {
			t.Errorf("vip is on %q, noisy on %q, thief on %q", f.on("vip"), f.on("noisy"), f.on("thief"))
		}
		f = newFleet(t).put(node("a", "x"), node("b", "x", taint("k", "", corev1.TaintEffectNoSchedule)),
			pod("low", asks("3", ""), onNode("a")))
		f.put(pod("vip", asks("2", ""), app("vip"), priority(10), awayFrom("noisy", corev1.LabelHostname))).settle()
		if got := f.s.Pod("default", "vip").Status.NominatedNodeName; got != "a" {
			t.Fatalf("vip is nominated to %q", got)
		}
		f.put(pod("noisy", asks("1", ""), app("noisy"), priority(10))).settle().quiet()
		if f.on("noisy") != "" {
			t.Errorf("noisy is on %q, which is reserved for a pod that forbids noisy", f.on("noisy"))
		}
		if e := Why(f.s, f.s.Pod("default", "noisy"), f.now); len(e.Obstacles) == 0 || !slices.ContainsFunc(e.Obstacles,
			func(o Obstacle) bool { return o.Reason == Repelled }) {
			t.Errorf("the explanation is %+v", e.Obstacles)
		}
	})
	t.Run("an affinity does not count nominated pods", func(t *testing.T) {
		f := newFleet(t).put(node("a", "x"), pod("low", asks("3", ""), onNode("a")))
		f.put(pod("vip", asks("2", ""), app("vip"), priority(10))).settle()
		f.put(pod("friend", asks("1", ""), priority(10), nearTo("vip", corev1.LabelHostname))).settle().quiet()
		if f.on("friend") != "" {
			t.Errorf("friend is on %q", f.on("friend"))
		}
		f.removePod("low").rest().quiet()
		if f.on("vip") != "a" || f.on("friend") != "a" {
			t.Errorf("vip is on %q, friend on %q", f.on("vip"), f.on("friend"))
		}
	})
}
