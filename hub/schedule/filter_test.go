package schedule

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func cordoned(n *corev1.Node) {
	n.Spec.Unschedulable = true
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
}

func requests(r corev1.ResourceList) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = r }
}

// Kubernetes' test cases for the scheduler: section S12 of hub/testdata/scenarios.txt.
func TestFilter(t *testing.T) {
	exists := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	init := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "init",
				Resources: corev1.ResourceRequirements{Requests: list(cpu, "")}})
		}
	}
	selector := func(l map[string]string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeSelector = l } }
	dedicated := taint("dedicated", "user1", corev1.TaintEffectNoSchedule)
	const untolerated = "0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: user1}."
	for _, c := range []struct {
		name string
		node *corev1.Node
		pod  *corev1.Pod
		why  string // "": it fits
	}{
		{"S12 taints: no taint, no toleration", node("pi", "oslo"), pod("a"), ""},
		{"S12 taints: an untolerated NoSchedule taint", node("pi", "oslo", dedicated), pod("a"), untolerated},
		{"S12 taints: tolerated by key, value and effect", node("pi", "oslo", dedicated), pod("a", tolerate(corev1.Toleration{Key: "dedicated", Value: "user1", Effect: "NoSchedule"})), ""},
		{"S12 taints: the wrong value", node("pi", "oslo", dedicated), pod("a", tolerate(corev1.Toleration{Key: "dedicated", Operator: "Equal", Value: "user2", Effect: "NoSchedule"})), untolerated},
		{"S12 taints: Exists needs no value", node("pi", "oslo", dedicated), pod("a", tolerate(exists("dedicated", "NoSchedule"))), ""},
		{"S12 taints: the wrong effect", node("pi", "oslo", dedicated), pod("a", tolerate(exists("dedicated", "NoExecute"))), untolerated},
		{"S12 taints: an empty effect is every effect", node("pi", "oslo", dedicated), pod("a", tolerate(exists("dedicated", ""))), ""},
		{"S12 taints: PreferNoSchedule refuses no pod", node("pi", "oslo", taint("dedicated", "user1", corev1.TaintEffectPreferNoSchedule)), pod("a"), ""},
		{"S12 taints: NoExecute refuses too", node("pi", "oslo", taint("dedicated", "user1", corev1.TaintEffectNoExecute)), pod("a"), untolerated},
		{"S12 taints: one of two taints is not tolerated", node("pi", "oslo", taint("foo", "bar", "NoSchedule"), dedicated), pod("a", tolerate(exists("foo", ""))), untolerated},
		{"S12 unschedulable: a cordoned node", node("pi", "oslo", cordoned), pod("a"), "0/1 nodes are available: 1 node(s) were unschedulable."},
		{"S12 unschedulable: a node that is schedulable", node("pi", "oslo", func(n *corev1.Node) { n.Spec.Unschedulable = false }), pod("a"), ""},
		{"S12 unschedulable: tolerated", node("pi", "oslo", cordoned), pod("a", tolerate(exists(corev1.TaintNodeUnschedulable, "NoSchedule"))), ""},
		{"S12 selector: matches", node("pi", "oslo"), pod("a", selector(map[string]string{corev1.LabelTopologyZone: "oslo"})), ""},
		{"S12 selector: does not match", node("pi", "oslo"), pod("a", selector(map[string]string{corev1.LabelTopologyZone: "bergen"})), "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		{"affinity by the node's name: this node", node("pi", "oslo"), pod("a", toNode("pi")), ""},
		{"affinity by the node's name: a missing node", node("pi", "oslo"), pod("a", toNode("po")), "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		{"S12 fit: a request equal to the free amount fits", node("pi", "oslo"), pod("a", asks("4", "4Gi")), ""},
		{"S12 fit: a little too much", node("pi", "oslo"), pod("a", asks("4001m", "4Gi")), "0/1 nodes are available: 1 Insufficient cpu."},
		{"S12 fit: two resources, two reasons", node("pi", "oslo"), pod("a", asks("5", "5Gi")), "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."},
		{"S12 fit: the largest init container counts, not the sum", node("pi", "oslo"), pod("a", init("3"), init("3")), ""},
		{"S12 fit: one init container is too large", node("pi", "oslo"), pod("a", init("3"), init("5")), "0/1 nodes are available: 1 Insufficient cpu."},
		{"S12 fit: a request of 0 of an unknown resource fits", node("pi", "oslo"), pod("a", requests(corev1.ResourceList{"example.com/tpu": resource.MustParse("0")})), ""},
		{"S12 fit: a request of an unknown resource does not fit", node("pi", "oslo"), pod("a", requests(corev1.ResourceList{"example.com/tpu": resource.MustParse("1")})), "0/1 nodes are available: 1 Insufficient example.com/tpu."},
		{"S12 fit: too many pods, even for a pod without requests", node("pi", "oslo", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("0") }), pod("a"), "0/1 nodes are available: 1 Too many pods."},
		{"overhead counts", node("pi", "oslo"), pod("a", asks("4", ""), func(p *corev1.Pod) { p.Spec.Overhead = list("1m", "") }), "0/1 nodes are available: 1 Insufficient cpu."},
		{"a node that is not ready without taints fits", node("pi", "oslo", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}), pod("a"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(c.node, c.pod).settle().quiet()
			if got := f.on("a"); (got == "pi") != (c.why == "") {
				t.Errorf("on %q", got)
			}
			if got := f.why("a"); got != c.why {
				t.Errorf("the reason is %q, want %q", got, c.why)
			}
		})
	}
}

func TestHostPorts(t *testing.T) {
	before := func(policy corev1.ContainerRestartPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", RestartPolicy: &policy,
				Ports: []corev1.ContainerPort{{HostPort: 80, Protocol: "TCP"}}}}
		}
	}
	for _, c := range []struct {
		name string
		a, b func(*corev1.Pod)
		fits bool
	}{
		{"the same port twice clashes", hostPort("", "TCP", 80), hostPort("", "TCP", 80), false},
		{"another protocol does not clash", hostPort("", "TCP", 80), hostPort("", "UDP", 80), true},
		{"another number does not clash", hostPort("", "TCP", 80), hostPort("", "TCP", 81), true},
		{"two addresses do not clash", hostPort("10.0.0.1", "TCP", 80), hostPort("10.0.0.2", "TCP", 80), true},
		{"one address and all addresses clash", hostPort("0.0.0.0", "TCP", 80), hostPort("10.0.0.2", "TCP", 80), false},
		{"an empty protocol is TCP", hostPort("", "", 80), hostPort("", "TCP", 80), false},
		{"a sidecar uses its port while the pod runs", before(corev1.ContainerRestartPolicyAlways), hostPort("", "TCP", 80), false},
		{"a sidecar needs its port free", hostPort("", "TCP", 80), before(corev1.ContainerRestartPolicyAlways), false},
		{"an init container's port does not count", before(""), hostPort("", "TCP", 80), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("pi", "oslo"), pod("a", c.a, onNode("pi")), pod("b", c.b)).settle().quiet()
			if got := f.on("b") == "pi"; got != c.fits {
				t.Errorf("fits=%v: %s", got, f.why("b"))
			}
		})
	}
}

func TestMessageCountsEveryReason(t *testing.T) {
	f := newFleet(t)
	for _, n := range names("tainted", 2) {
		f.put(node(n, "oslo", taint("node.kubernetes.io/unreachable", "", corev1.TaintEffectNoSchedule)))
	}
	for _, n := range names("full", 4) {
		f.put(node(n, "oslo", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("1Gi") }))
	}
	f.put(pod("a", asks("", "2Gi"))).settle().quiet()
	want := "0/6 nodes are available: 2 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 4 Insufficient memory."
	if got := f.why("a"); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	f.editNode("full-1", func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}).put(node("full-5", "oslo", cordoned)).settle().removeNode("full-5").settle()
	var told []string
	for _, c := range f.changes {
		if c.Reason == "FailedScheduling" && c.Warn && c.Source == "default-scheduler" {
			told = append(told, c.Why)
		}
	}
	more := "0/7 nodes are available: 1 node(s) were unschedulable, 2 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 4 Insufficient memory."
	if !slices.Equal(told, []string{want, more, want}) {
		t.Errorf("the messages are %q, want each only once", told)
	}
}

func TestTerminatingPodsCountUntilTheyAreGone(t *testing.T) {
	gone := metav1.NewTime(start)
	f := newFleet(t).put(node("pi", "oslo"), pod("old", asks("3", ""), onNode("pi"),
		func(p *corev1.Pod) { p.DeletionTimestamp = &gone }), pod("new", asks("3", ""))).settle().quiet()
	if f.on("new") != "" {
		t.Fatal("the pod is placed while the other pod still runs")
	}
	f.removePod("old").settle().quiet()
	if f.on("new") != "pi" {
		t.Errorf("the pod is not placed on free space: %s", f.why("new"))
	}
}

func TestPodsThatAreNotForThisScheduler(t *testing.T) {
	f := newFleet(t).put(node("pi", "oslo"),
		pod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}} }),
		pod("foreign", func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }),
		pod("named", onNode("nowhere"))).settle().quiet()
	if f.on("gated") != "" || f.on("foreign") != "" || f.on("named") != "nowhere" {
		t.Error("another scheduler's pod is changed")
	}
	f.editPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }).settle().quiet()
	if f.on("gated") != "pi" {
		t.Error("the pod is not placed after its gate was removed")
	}
}

func TestAffinityToOtherPods(t *testing.T) {
	const zone, host = corev1.LabelTopologyZone, corev1.LabelHostname
	fleetOf := func(t *testing.T) *fleet {
		return newFleet(t).put(node("a1", "a"), node("a2", "a"), node("b1", "b"), pod("db", app("db"), onNode("a1")))
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want map[string]bool // nodes that fit
		why  string
	}{
		{"near: in the same zone", pod("x", nearTo("db", zone)), map[string]bool{"a1": true, "a2": true}, ""},
		{"near: on the same node", pod("x", nearTo("db", host)), map[string]bool{"a1": true}, ""},
		{"near: no matching pod", pod("x", nearTo("web", host)), nil, "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."},
		{"near: the first pod, which matches itself", pod("x", app("web"), nearTo("web", host)), map[string]bool{"a1": true, "a2": true, "b1": true}, ""},
		{"away: not in the same zone", pod("x", awayFrom("db", zone)), map[string]bool{"b1": true}, ""},
		{"away: not on the same node", pod("x", awayFrom("db", host)), map[string]bool{"a2": true, "b1": true}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fleetOf(t).put(c.pod).settle().quiet()
			if got := f.on("x"); c.want[got] != (c.why == "") || f.why("x") != c.why {
				t.Errorf("the pod is on %q: %q", got, f.why("x"))
			}
		})
	}
	t.Run("the anti-affinity of a placed pod counts", func(t *testing.T) {
		f := newFleet(t).put(node("a1", "a"), node("b1", "b"), pod("loner", app("loner"), onNode("a1"),
			awayFrom("kiosk", zone)), pod("x")).settle().quiet()
		if f.on("x") != "b1" {
			t.Errorf("on %q", f.on("x"))
		}
		f.put(node("a2", "a"), pod("y", toNode("a2"))).settle().quiet()
		if want := "0/3 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules, 2 node(s) didn't match Pod's node affinity/selector."; f.why("y") != want {
			t.Errorf("%q, want %q", f.why("y"), want)
		}
		f.removePod("loner").settle().quiet()
		if f.on("y") != "a2" {
			t.Errorf("the pod is not placed after the other pod was removed: %s", f.why("y"))
		}
	})
	t.Run("an empty label is a domain, a missing label is not", func(t *testing.T) {
		const role = "node-role.kubernetes.io/gateway"
		gateway := func(n *corev1.Node) { n.Labels[role] = "" }
		for _, first := range []*corev1.Pod{pod("first", app("db"), onNode("g1")), pod("first", onNode("g1"),
			awayFrom("web", role))} {
			f := newFleet(t).put(node("g1", "a", gateway), node("g2", "b", gateway), node("n", "c"), first)
			f.put(pod("x", app("web"), awayFrom("db", role))).settle().quiet()
			if got := f.on("x"); got != "n" {
				t.Errorf("the pod is on %q, in a domain with a pod that it avoids", got)
			}
		}
	})
	t.Run("three pods that avoid each other get three nodes in one pass, the fourth none", func(t *testing.T) {
		f := fleetOf(t)
		for _, name := range names("p", 4) {
			f.put(pod(name, awayFrom("kiosk", host)))
		}
		f.settle().quiet()
		if got := count(f, func(n *corev1.Node) string { return n.Name }); got["a1"] != 2 || got["a2"] != 1 ||
			got["b1"] != 1 {
			t.Errorf("the pods are on the nodes %v", got)
		}
	})
}

func TestTopologySpread(t *testing.T) {
	spread := func(skew int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: skew,
				TopologyKey:       corev1.LabelTopologyZone,
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}}
		}
	}
	f := newFleet(t).put(node("a1", "a"), node("b1", "b",
		func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }),
		node("stray", "", func(n *corev1.Node) { n.Labels = nil }))
	for _, name := range names("p", 4) {
		f.put(pod(name, spread(1)))
	}
	f.settle().quiet()
	if got := count(f, state.SiteOf); got["a"] != 2 || got["b"] != 1 {
		t.Errorf("%v, want at most 2 pods in a with a skew of 1 and one place in b", got)
	}
	want := "0/3 nodes are available: 1 Too many pods, 1 node(s) didn't match pod topology spread constraints, 1 node(s) didn't match pod topology spread constraints (missing required label)."
	if got := f.why("p-4"); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	f.put(node("b2", "b")).settle().quiet()
	if f.on("p-4") != "b2" {
		t.Errorf("p-4 is on %q, want none", f.on("p-4"))
	}
}

func TestMinDomains(t *testing.T) {
	few := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, MinDomains: new(int32(2)),
			TopologyKey:       corev1.LabelTopologyZone,
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}}
	}
	f := newFleet(t).put(node("a1", "a"), pod("p", few), pod("q", few)).settle().quiet()
	if f.on("p") != "a1" || f.on("q") != "" {
		t.Errorf("p is on %q, q on %q; want one to wait, as minDomains is 2", f.on("p"), f.on("q"))
	}
}
