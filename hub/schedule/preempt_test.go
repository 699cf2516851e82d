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
		t.Error("the more important goes first")
	}
}

func TestPreemption(t *testing.T) {
	placedAt := func(after time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, start.Add(after))
		}
	}
	for _, c := range []struct {
		name    string
		there   []*corev1.Pod
		pod     *corev1.Pod
		victims []string
		room    string
	}{
		{"one lower pod leaves", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"))}, pod("p", asks("4", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"no pod of the same priority leaves", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"), priority(10))}, pod("p", asks("4", ""), priority(10), toNode("a")), nil, ""},
		{"as few as possible leave, the least important", []*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1)), pod("l2", asks("2", ""), onNode("a"), priority(5))},
			pod("p", asks("2", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"the node whose most important victim is the least important", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a"), priority(5)), pod("l2", asks("2", ""), onNode("b"), priority(1)), pod("l3", asks("2", ""), onNode("b"), priority(1))},
			pod("p", asks("4", ""), priority(10)), []string{"l2", "l3"}, "b"},
		{"of equal nodes the one with the fewest victims", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a"), priority(1)), pod("l2", asks("2", ""), onNode("b"), priority(1)), pod("l3", asks("2", ""), onNode("b"), priority(1))},
			pod("p", asks("4", ""), priority(10)), []string{"l1"}, "a"},
		{"no pod leaves if that does not help", []*corev1.Pod{pod("l1", asks("4", ""), onNode("a")), pod("l2", asks("4", ""), onNode("b"))}, pod("p", asks("5", ""), priority(10)), nil, ""},
		{"a pod that never preempts waits", []*corev1.Pod{pod("l1", asks("3", ""), onNode("a"))},
			pod("p", asks("4", ""), priority(10), toNode("a"), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) }), nil, ""},
		{"the pod that was placed last leaves, whatever its device's clock says", []*corev1.Pod{
			pod("l1", asks("2", ""), onNode("a"), placedAt(time.Hour), func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(0, 0)} }),
			pod("l2", asks("2", ""), onNode("a"), placedAt(time.Minute), func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: start} })},
			pod("p", asks("2", ""), priority(10), toNode("a")), []string{"l1"}, "a"},
		{"the pod with the anti-affinity leaves", []*corev1.Pod{pod("l1", onNode("a"), awayFrom("vip", corev1.LabelHostname)), pod("l2", onNode("a"))}, pod("p", app("vip"), priority(10), toNode("a")), []string{"l1"}, "a"},
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
			// a lower pod may not take the space that is being made
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

// No pod leaves a node for a pod whose volume is elsewhere or in exclusive use by a pod that stays.
func TestNoPreemptionAwayFromTheVolume(t *testing.T) {
	uses := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}
	claim := func(volume string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		class := state.LocalClass
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{mode}}}
	}
	once, alone := corev1.ReadWriteOnce, corev1.ReadWriteOncePod
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "on-b"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim"},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}}
	for _, c := range []struct {
		name    string
		claim   *corev1.PersistentVolumeClaim
		there   []*corev1.Pod
		victims string
	}{
		{"its volume is on b, where all are as important", claim("on-b", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("4", ""), onNode("b"), priority(10))}, ""},
		{"its volume is on b, which is cordoned", claim("on-b", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a"), func(p *corev1.Pod) { p.Labels = map[string]string{"cordon": "b"} })}, ""},
		{"its volume is on b, where one is less important", claim("on-b", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("4", ""), onNode("b"), priority(5))}, "b1"},
		{"its volume is not made yet", claim("", once), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("4", ""), onNode("b"), priority(5))}, "a1"},
		{"a pod that stays has exclusive use", claim("on-b", alone), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("2", ""), onNode("b")), pod("b2", uses, asks("2", ""), onNode("b"), priority(10))}, ""},
		{"a pod that leaves has exclusive use", claim("on-b", alone), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b1", asks("2", ""), onNode("b")), pod("b2", uses, asks("2", ""), onNode("b"))}, "b1 b2"},
		{"a pod that leaves has exclusive use, and there is space", claim("on-b", alone), []*corev1.Pod{pod("a1", asks("4", ""), onNode("a")), pod("b2", uses, onNode("b"))}, "b2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"), volume.DeepCopy(), c.claim,
				&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: state.LocalClass}, Provisioner: state.LocalProvisioner})
			for _, p := range c.there {
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
				t.Fatalf("%q leave, want %q; it waits as %q", got, c.victims, f.why("p"))
			}
			for _, name := range left {
				f.removePod(name)
			}
			if f.settle().quiet(); (f.on("p") != "") != (c.victims != "") {
				t.Errorf("when they have left it is on %q", f.on("p"))
			}
		})
	}
}

// Disruption budgets count before importance, and each eviction counts.
func TestPreemptionRespectsBudgets(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}}}
	for _, c := range []struct {
		name    string
		allowed int32
		there   []*corev1.Pod
		pod     *corev1.Pod
		victim  string
		room    string
	}{
		{"the more important leaves where the other's budget allows none", 0,
			[]*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1), app("kept")), pod("l2", asks("2", ""), onNode("a"), priority(5))},
			pod("p", asks("2", ""), priority(10), toNode("a")), "l2", "a"},
		{"the less important leaves where its budget allows one", 1,
			[]*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1), app("kept")), pod("l2", asks("2", ""), onNode("a"), priority(5))},
			pod("p", asks("2", ""), priority(10), toNode("a")), "l1", "a"},
		{"a budget that allows one does not allow two", 1,
			[]*corev1.Pod{pod("l1", asks("2", ""), onNode("a"), priority(1), app("kept")), pod("l2", asks("2", ""), onNode("a"), priority(1), app("kept")),
				pod("l3", asks("4", ""), onNode("b"), priority(5))},
			pod("p", asks("4", ""), priority(10)), "l3", "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := budget.DeepCopy()
			b.Status.DisruptionsAllowed = c.allowed
			f := newFleet(t).put(node("a", "x"), node("b", "x"), b)
			for _, p := range c.there {
				f.put(p)
			}
			f.put(c.pod).settle()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != c.room || f.s.Pod("default", c.victim).DeletionTimestamp == nil {
				t.Errorf("nominated to %q, want %q, where %s leaves", got, c.room, c.victim)
			}
		})
	}
}

// A node without the key of one hard constraint is in no domain of another one.
func TestANodeWithoutEveryKeyIsInNoDomain(t *testing.T) {
	spread := func(key string) corev1.TopologySpreadConstraint {
		return corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}
	}
	f := newFleet(t).put(node("a", "oslo", func(n *corev1.Node) { n.Labels["rack"] = "1" }), node("b", "bergen"))
	for _, name := range names("p", 3) {
		f.put(pod(name, func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spread(corev1.LabelTopologyZone), spread("rack")}
		})).settle()
	}
	f.quiet()
	if f.on("p-1") != "a" || f.on("p-2") != "a" || f.on("p-3") != "a" {
		t.Errorf("%s %s %s: %s", f.on("p-1"), f.on("p-2"), f.on("p-3"), f.why("p-3"))
	}
}

// TestNoNominationOutlivesItsNode: pods on a silent device may never end, so the space is made
// elsewhere.
func TestNoNominationOutlivesItsNode(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.Node)
		room   string
	}{
		{"the space is still being made", func(n *corev1.Node) { n.Labels["other"] = "x" }, "a"},
		{"the node fell silent", taint(corev1.TaintNodeUnreachable, "", corev1.TaintEffectNoExecute), "b"},
		{"the node was cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"), pod("low-a", asks("4", ""), onNode("a")), pod("mid-b", asks("4", ""), onNode("b"), priority(5)))
			f.put(pod("p", asks("4", ""), priority(10))).settle().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != "a" {
				t.Fatalf("nominated to %q", got)
			}
			f.editNode("a", c.change).rest().quiet()
			if got, leaves := f.s.Pod("default", "p").Status.NominatedNodeName, f.s.Pod("default", "mid-b").DeletionTimestamp != nil; got != c.room || leaves != (c.room == "b") {
				t.Errorf("nominated to %q, want %q; mid-b leaves: %v: %s", got, c.room, leaves, f.why("p"))
			}
		})
	}
	f := newFleet(t).put(node("a", "x"), pod("low-a", asks("4", ""), onNode("a")), pod("p", asks("4", ""), priority(10))).settle()
	if f.removeNode("a").rest().quiet(); f.s.Pod("default", "p").Status.NominatedNodeName != "" {
		t.Error("it is nominated to a deleted node")
	}
}

// TestANominationHoldsOnlyWithEnoughSpace: only pods that leave for it count; others may take an hour.
func TestANominationHoldsOnlyWithEnoughSpace(t *testing.T) {
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: newFleet(t).now} }
	for _, c := range []struct {
		name  string
		there []*corev1.Pod // when the space has been made
		room  string
	}{
		{"another pod takes the space, and one leaves for another reason", []*corev1.Pod{pod("vip", asks("4", ""), onNode("a"), priority(20)), pod("slow", onNode("a"), leaving)}, "b"},
		{"a pod that leaves for another reason leaves too little space", []*corev1.Pod{pod("vip", asks("3", ""), onNode("a"), priority(20)), pod("slow", asks("1", ""), onNode("a"), leaving)}, "b"},
		{"a victim of another pod leaves too little space", []*corev1.Pod{pod("vip", asks("3", ""), onNode("a"), priority(20)), pod("slow", asks("1", ""), onNode("a"), leaving, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"}}
		})}, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"), pod("low-a", asks("4", ""), onNode("a")), pod("mid-b", asks("4", ""), onNode("b"), priority(5)))
			f.put(pod("p", asks("4", ""), priority(10))).settle().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != "a" {
				t.Fatalf("nominated to %q", got)
			}
			f.removePod("low-a")
			for _, p := range c.there {
				f.put(p)
			}
			f.rest().quiet()
			if got := f.s.Pod("default", "p").Status.NominatedNodeName; got != c.room {
				t.Errorf("nominated to %q, want %q: %s", got, c.room, f.why("p"))
			}
		})
	}
}

// TestANominatedPodCountsAsPlaced: a nominated pod counts as if it were placed. Otherwise
// a pod that must be elsewhere would preempt for nothing, or a pod that it forbids would take its
// place.
func TestANominatedPodCountsAsPlaced(t *testing.T) {
	spread := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "vip"}}}}
	}
	for _, c := range []struct {
		name  string
		apart func(*corev1.Pod)
	}{
		{"they have an anti-affinity to each other", awayFrom("vip", corev1.LabelHostname)},
		{"they are spread", spread},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("a", "x"), node("b", "x"))
			for _, name := range []string{"a-1", "a-2", "b-1", "b-2"} {
				f.put(pod(name, asks("2", ""), onNode(name[:1])))
			}
			f.put(pod("p-1", asks("1", ""), app("vip"), priority(10), c.apart), pod("p-2", asks("1", ""), app("vip"), priority(10), c.apart)).settle().quiet()
			one, two := f.s.Pod("default", "p-1").Status.NominatedNodeName, f.s.Pod("default", "p-2").Status.NominatedNodeName
			if one == "" || two == "" || one == two {
				t.Errorf("they are nominated to %q and %q", one, two)
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
				t.Errorf("they are on %q and %q, and %d of 4 others had to leave", f.on("p-1"), f.on("p-2"), 6-f.s.Len(state.Pods))
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
		f = newFleet(t).put(node("a", "x"), node("b", "x", taint("k", "", corev1.TaintEffectNoSchedule)), pod("low", asks("3", ""), onNode("a")))
		f.put(pod("vip", asks("2", ""), app("vip"), priority(10), awayFrom("noisy", corev1.LabelHostname))).settle()
		if got := f.s.Pod("default", "vip").Status.NominatedNodeName; got != "a" {
			t.Fatalf("promised room on %q", got)
		}
		f.put(pod("noisy", asks("1", ""), app("noisy"), priority(10))).settle().quiet()
		if f.on("noisy") != "" {
			t.Errorf("noisy is on %q while space is made there for a pod that forbids it", f.on("noisy"))
		}
		if e := Why(f.s, f.s.Pod("default", "noisy"), f.now); len(e.Obstacles) == 0 || !slices.ContainsFunc(e.Obstacles, func(o Obstacle) bool { return o.Reason == Repelled }) {
			t.Errorf("it is explained by %+v", e.Obstacles)
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
