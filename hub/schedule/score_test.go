package schedule

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func TestReplicasSpreadOverSitesAndNodes(t *testing.T) {
	f := newFleet(t).put(node("a1", "oslo"), node("a2", "oslo"), node("b1", "bergen"), node("b2", "bergen"))
	for _, n := range names("p", 2) {
		f.put(pod(n, owned("rs")))
	}
	f.settle().quiet()
	if got := count(f, state.SiteOf); got["oslo"] != 1 || got["bergen"] != 1 {
		t.Fatalf("2 replicas: %v", got)
	}
	for _, n := range names("q", 2) {
		f.put(pod(n, owned("rs")))
	}
	f.settle().quiet()
	for n, c := range count(f, func(n *corev1.Node) string { return n.Name }) {
		if c != 1 {
			t.Errorf("4 replicas: %s has %d", n, c)
		}
	}
}

func TestBestNode(t *testing.T) {
	prefer := func(weight int32, zone string) func(*corev1.Pod) {
		return affine(func(a *corev1.Affinity) {
			a.NodeAffinity = &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: weight,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: "In", Values: []string{zone}}}}}}}
		})
	}
	near := affine(func(a *corev1.Affinity) {
		a.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: termOf("db", corev1.LabelTopologyZone)}}}
	})
	loves := affine(func(a *corev1.Affinity) { // the cache prefers the node of the kiosk
		a.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: termOf("kiosk", corev1.LabelHostname)}}}
	})
	shies := affine(func(a *corev1.Affinity) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: termOf("kiosk", corev1.LabelHostname)}}}
	})
	image := func(n *corev1.Node) {
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"kiosk:1"}, SizeBytes: 800 << 20}}
	}
	first := func(cpu, memory string, always bool) func(*corev1.Pod) {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(cpu, memory)}}
		if always {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		return func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, c) }
	}
	for _, c := range []struct {
		name   string
		nodes  []*corev1.Node
		placed []*corev1.Pod
		pod    *corev1.Pod
		want   string
	}{
		{"of equal nodes the first by name", []*corev1.Node{node("b", "x"), node("a", "x")}, nil, pod("p"), "a"},
		{"of equal nodes one on the site with the fewest pods", []*corev1.Node{node("a1", "a"), node("a2", "a"), node("b1", "b")}, []*corev1.Pod{pod("o", onNode("a1"))}, pod("p"), "b1"},
		{"a sidecar counts like a container", []*corev1.Node{node("a", "x"), node("b", "x")},
			[]*corev1.Pod{pod("o", asks("1", "1Gi"), first("1", "1Gi", true), onNode("a")), pod("q", asks("1500m", "1536Mi"), onNode("b"))}, pod("p", asks("1", "1Gi")), "b"},
		{"an init container counts with the sidecars before it", []*corev1.Node{node("a", "x"), node("b", "x")},
			[]*corev1.Pod{pod("o", asks("100m", "100Mi"), first("1", "1Gi", true), first("1", "1Gi", false), onNode("a")), pod("q", asks("1500m", "1536Mi"), onNode("b"))}, pod("p", asks("1", "1Gi")), "b"},
		{"an init container counts without the sidecars after it", []*corev1.Node{node("a", "x"), node("b", "x")},
			[]*corev1.Pod{pod("o", asks("100m", "100Mi"), first("1", "1Gi", false), first("1", "1Gi", true), onNode("b")), pod("q", asks("1500m", "1536Mi"), onNode("a"))}, pod("p", asks("1", "1Gi")), "b"},
		{"overhead counts", []*corev1.Node{node("a", "x"), node("b", "x")},
			[]*corev1.Pod{pod("o", asks("1", "1Gi"), func(p *corev1.Pod) { p.Spec.Overhead = list("1", "1Gi") }, onNode("a")), pod("q", asks("1500m", "1536Mi"), onNode("b"))}, pod("p", asks("1", "1Gi")), "b"},
		{"the node with the most free resources", []*corev1.Node{node("a", "x"), node("b", "x")}, []*corev1.Pod{pod("o", asks("2", "2Gi"), onNode("a"))}, pod("p", asks("1", "1Gi")), "b"},
		{"pods without requests count as well", []*corev1.Node{node("a", "x"), node("b", "x")}, []*corev1.Pod{pod("o", onNode("a"))}, pod("p"), "b"},
		{"the node whose CPU and memory stay balanced", []*corev1.Node{
			node("a", "x", func(n *corev1.Node) {
				n.Status.Allocatable[corev1.ResourceMemory] = list("", "64Gi")[corev1.ResourceMemory]
			}), node("b", "x")}, nil, pod("p", asks("3", "3Gi")), "b"},
		{"not the node with a PreferNoSchedule taint", []*corev1.Node{node("a", "x", taint("flotilla.dev/flapping", "", corev1.TaintEffectPreferNoSchedule)), node("b", "x")}, nil, pod("p"), "b"},
		{"the node that its affinity prefers", []*corev1.Node{node("a", "x"), node("b", "y")}, nil, pod("p", prefer(1, "y")), "b"},
		{"the node that has the image", []*corev1.Node{node("a", "x"), node("b", "x", image)}, nil, pod("p"), "b"},
		{"near the pods of a preferred affinity", []*corev1.Node{node("a", "x"), node("b1", "y"), node("b2", "y")}, []*corev1.Pod{pod("db", app("db"), onNode("b1"))}, pod("p", near), "b2"},
		{"near pods whose preferred affinity selects the pod", []*corev1.Node{node("a", "x"), node("b", "x")}, []*corev1.Pod{pod("c", app("cache"), loves, onNode("b"))}, pod("p"), "b"},
		{"near pods whose required affinity selects the pod", []*corev1.Node{node("a", "x"), node("b", "x")}, []*corev1.Pod{pod("c", app("cache"), nearTo("kiosk", corev1.LabelHostname), onNode("b"))}, pod("p"), "b"},
		{"away from pods whose preferred anti-affinity selects the pod", []*corev1.Node{node("a", "x"), node("b", "x")},
			[]*corev1.Pod{pod("c", app("cache"), shies, onNode("a")), pod("o1", app("o"), onNode("b")), pod("o2", app("o"), onNode("b"))}, pod("p"), "b"},
		{"finished pods prefer nothing", []*corev1.Node{node("a", "x"), node("b", "x")},
			[]*corev1.Pod{pod("c", app("cache"), loves, onNode("b"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, pod("p"), "a"},
		{"a preference selects pods of its own namespace", []*corev1.Node{node("a", "x"), node("b", "x")},
			[]*corev1.Pod{pod("c", app("cache"), loves, onNode("b"), func(p *corev1.Pod) { p.Namespace = "other" })}, pod("p"), "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			for _, n := range c.nodes {
				f.put(n)
			}
			for _, p := range c.placed {
				f.put(p)
			}
			f.put(c.pod).settle().quiet()
			if got := f.on("p"); got != c.want {
				t.Errorf("the pod is on %s, want %s", got, c.want)
			}
		})
	}
}

func TestSoftSpread(t *testing.T) {
	soft := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
			TopologyKey:       corev1.LabelTopologyZone,
			WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}}
	}
	f := newFleet(t).put(node("a1", "a"), node("a2", "a"), node("b1", "b"), pod("o", asks("3", "3Gi"), onNode("b1"),
		app("other")))
	for _, n := range names("p", 2) {
		f.put(pod(n, soft))
	}
	f.settle().quiet()
	if got := count(f, state.SiteOf); got["b"] != 2 {
		t.Errorf("the pods are on %v, want the second on b despite fewer free resources", got)
	}
}

// A node without the key has no domain, and nodes that do
// not allow the pod do not count.
func TestSoftSpreadCountsOnlyEligibleNodes(t *testing.T) {
	soft := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "rack",
			WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}}
	}
	rack := func(n *corev1.Node, name string) *corev1.Node { n.Labels["rack"] = name; return n }
	f := newFleet(t).put(rack(node("r1", "a"), "1"), rack(node("r2", "a"), "2"), node("none", "a"),
		pod("there", onNode("r1")), pod("too", onNode("r2")))
	if f.put(pod("p", soft)).settle().quiet(); f.on("p") == "none" {
		t.Error("the pod is on the node without a rack")
	}

	ssd := func(n *corev1.Node) *corev1.Node { n.Labels["disk"] = "ssd"; return n }
	f = newFleet(t).put(ssd(rack(node("s1", "a"), "1")), rack(node("h1", "a"), "1"), ssd(rack(node("s2", "a"), "2")),
		pod("x", onNode("h1")), pod("y", onNode("h1")), pod("z", onNode("s2")))
	f.put(pod("p", soft, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })).settle().quiet()
	if on := f.on("p"); on != "s1" {
		t.Errorf("the pod is on %s, want rack 1, which has no pod", on)
	}
}

func TestBinding(t *testing.T) {
	f := newFleet(t).put(node("pi-1", "oslo"), pod("kiosk-1")).settle().quiet()
	c := state.PodCondition(f.s.Pod("default", "kiosk-1"), corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionTrue {
		t.Errorf("condition: %+v", c)
	}
	last := f.changes[len(f.changes)-1]
	if last.Why != "bind kiosk-1 to pi-1" || last.Reason != "Scheduled" || last.Source != "default-scheduler" {
		t.Errorf("the change is %+v", last)
	}
}
