package schedule

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// brief returns an objection with its ways in one line.
func brief(o Objection) string {
	parts := []string{o.Reason.String()}
	switch o.Reason {
	case NodeAffinity:
		parts = append(parts, o.Label.Key, string(o.Label.Operator), strings.Join(o.Label.Values, "|"))
	case UntoleratedTaint, NodeNotReady, NodePressure:
		parts = append(parts, o.Taint.ToString())
	case InsufficientResource, TooManyPods:
		parts = append(parts, string(o.Resource), o.Want.String(), "of", o.Free.String())
	case NodePorts:
		parts = append(parts, fmt.Sprint(o.Port.Port))
	default:
		parts = append(parts, o.Key, strings.Join(o.Where, "|"))
	}
	for _, w := range o.Ways {
		way := "/" + string(w.Kind)
		if w.Kind == LowerRequest {
			way += " " + w.Amount.String()
		}
		for _, p := range w.Pods {
			way += " " + p.Name
		}
		parts = append(parts, way)
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

func selects(l map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = l }
}

func labelled(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func memory(amount string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse(amount) }
}

func expression(terms ...[]corev1.NodeSelectorRequirement) func(*corev1.Pod) {
	return affine(func(a *corev1.Affinity) {
		a.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}
		for _, t := range terms {
			all := &a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			*all = append(*all, corev1.NodeSelectorTerm{MatchExpressions: t})
		}
	})
}

func daemon(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d",
		Controller: new(true)}}
}

func TestWhyNamesTheObjections(t *testing.T) {
	in := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		with []state.Object
		best string // the first candidate
		want []string
	}{
		{"a label that no node has", pod("a", selects(map[string]string{"gpu": "true"})), []state.Object{node("n", "oslo")}, "n",
			[]string{"NodeAffinity gpu In true /SetLabel /DropSelector"}},
		{"a label reserved by Kubernetes cannot be set", pod("a", selects(map[string]string{corev1.LabelArchStable: "arm64"})), []state.Object{node("n", "oslo")}, "n",
			[]string{"NodeAffinity kubernetes.io/arch In arm64 /DropSelector"}},
		{"a label that the node must not have", pod("a", expression([]corev1.NodeSelectorRequirement{in("old", corev1.NodeSelectorOpDoesNotExist)})), []state.Object{node("n", "oslo", labelled("old", "1"))}, "n",
			[]string{"NodeAffinity old DoesNotExist /RemoveLabel /DropSelector"}},
		{"the closer one of two terms", pod("a", expression([]corev1.NodeSelectorRequirement{in("x", corev1.NodeSelectorOpExists), in("y", corev1.NodeSelectorOpExists)}, []corev1.NodeSelectorRequirement{in("z", corev1.NodeSelectorOpExists)})),
			[]state.Object{node("n", "oslo")}, "n", []string{"NodeAffinity z Exists /SetLabel /DropSelector"}},
		{"an affinity that matches no node", pod("a", expression([]corev1.NodeSelectorRequirement{})), []state.Object{node("n", "oslo")}, "n", []string{"NodeAffinity"}},
		{"too little memory, with a pod that could be deleted", pod("a", asks("", "3Gi")), []state.Object{node("n", "oslo"), node("o", "oslo", memory("1Gi")), pod("big", asks("", "2Gi"), onNode("n")), pod("small", asks("", "1Gi"), onNode("n"))}, "n",
			[]string{"InsufficientResource memory 3Gi of 1Gi /LowerRequest 1Gi /MakeRoom big"}},
		{"more memory than any node has", pod("a", asks("", "64Gi")), []state.Object{node("n", "oslo", memory("7372Mi")), node("o", "oslo", memory("1Gi"))}, "n",
			[]string{"InsufficientResource memory 64Gi of 7372Mi /LowerRequest 7372Mi"}},
		{"pods of daemon sets stay", pod("a", asks("", "3Gi")), []state.Object{node("n", "oslo"), pod("d", asks("", "2Gi"), onNode("n"), daemon)}, "n",
			[]string{"InsufficientResource memory 3Gi of 2Gi /LowerRequest 2Gi"}},
		{"a resource that no node has", pod("a", requests(corev1.ResourceList{"example.com/tpu": resource.MustParse("1")})), []state.Object{node("n", "oslo")}, "n",
			[]string{"InsufficientResource example.com/tpu 1 of 0 /LowerRequest 0"}},
		{"a cordon with its taint is one objection", pod("a"), []state.Object{node("n", "oslo", cordoned)}, "n", []string{"NodeUnschedulable /Uncordon"}},
		{"two objections: a cordoned node is closer", pod("a", asks("", "5Gi"), selects(map[string]string{"gpu": "true"})),
			[]state.Object{node("n", "oslo", cordoned, labelled("gpu", "true"), memory("8Gi")), node("o", "oslo", memory("8Gi")), node("p", "oslo")}, "n", []string{"NodeUnschedulable /Uncordon"}},
		{"a user's taint", pod("a"), []state.Object{node("n", "oslo", taint("camera", "broken", "NoSchedule"))}, "n", []string{"UntoleratedTaint camera=broken:NoSchedule /Tolerate /RemoveTaint"}},
		{"a node that is silent needs its device", pod("a"), []state.Object{node("n", "oslo", taint(corev1.TaintNodeUnreachable, "", "NoExecute"))}, "n", []string{"NodeNotReady node.kubernetes.io/unreachable:NoExecute"}},
		{"a node under pressure needs its device", pod("a"), []state.Object{node("n", "oslo", taint(corev1.TaintNodeMemoryPressure, "", "NoSchedule"))}, "n", []string{"NodePressure node.kubernetes.io/memory-pressure:NoSchedule"}},
		{"a port that is taken", pod("a", hostPort("", "TCP", 80)), []state.Object{node("n", "oslo"), pod("web", hostPort("", "TCP", 80), onNode("n"))}, "n", []string{"NodePorts 80 /DropHostPort /MakeRoom web"}},
		{"a node with its maximum number of pods", pod("a"), []state.Object{node("n", "oslo", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }), pod("b", onNode("n"))}, "n",
			[]string{"TooManyPods pods 1 of 0 /MakeRoom b"}},
		{"the pod's anti-affinity to pods on the node", pod("a", awayFrom("db", corev1.LabelHostname)), []state.Object{node("n", "oslo"), pod("db", app("db"), onNode("n"))}, "n", []string{"PodAntiAffinity kubernetes.io/hostname /Soften"}},
		{"the anti-affinity of pods on the node", pod("a"), []state.Object{node("n", "oslo"), pod("shy", awayFrom("kiosk", corev1.LabelHostname), onNode("n"))}, "n", []string{"Repelled kubernetes.io/hostname"}},
		{"the pod's affinity to pods on another node", pod("a", nearTo("db", corev1.LabelTopologyZone)), []state.Object{node("n", "oslo")}, "n", []string{"PodAffinity topology.kubernetes.io/zone /Soften"}},
		{"one node by name", pod("a", toNode("n")), []state.Object{node("n", "oslo", cordoned), node("o", "oslo")}, "n", []string{"NodeUnschedulable /Uncordon"}},
		{"one missing node by name", pod("a", toNode("x")), []state.Object{node("o", "oslo")}, "", nil},
		{"a node that fits, and another", pod("a"), []state.Object{node("n", "oslo", cordoned), node("o", "oslo")}, "", nil},
	} {
		f := newFleet(t).put(c.with...).put(c.pod)
		e := Why(f.s, f.s.Pod("default", "a"), f.now)
		var best string
		var got []string
		if len(e.Candidates) > 0 {
			best = e.Candidates[0].Node.Name
			for _, o := range e.Candidates[0].Against {
				got = append(got, brief(o))
			}
		}
		if best != c.best || !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s %q, want\n%s %q", c.name, best, got, c.best, c.want)
		}
	}
}

func TestWhyCountsTheNodesOfEachObjection(t *testing.T) {
	f := newFleet(t)
	for _, n := range names("hdd", 30) {
		f.put(node(n, "oslo", labelled("disk", "hdd")))
	}
	f.put(node("nvme", "oslo", labelled("disk", "nvme"), memory("6Gi")),
		pod("a", selects(map[string]string{"disk": "ssd"}), asks("", "64Gi")))
	e := Why(f.s, f.s.Pod("default", "a"), f.now)
	if len(e.Obstacles) != 2 || len(e.Candidates) != MaxCandidates || e.Candidates[0].Node.Name != "nvme" {
		t.Fatalf("%d obstacles, %d candidates", len(e.Obstacles), len(e.Candidates))
	}
	for _, o := range e.Obstacles {
		switch o.Reason {
		case NodeAffinity:
			if o.Nodes != 31 || !slices.Equal(o.Others, []string{"hdd", "nvme"}) {
				t.Errorf("%d nodes lack the label, its other values are %v", o.Nodes, o.Others)
			}
		case InsufficientResource:
			if o.Nodes != 31 || o.Node != "nvme" || o.Free.String() != "6Gi" {
				t.Errorf("%d nodes have too little, %s has the most: %s", o.Nodes, o.Node, o.Free.String())
			}
		}
	}
	none := Why(newFleet(t).s, f.s.Pod("default", "a"), f.now)
	if none.Nodes != 0 || len(none.Obstacles)+len(none.Candidates) > 0 {
		t.Errorf("in a fleet without nodes: %+v", none)
	}
	claim := pod("b", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	})
	if e := Why(f.put(claim).s, claim, f.now); e.Wrong != `persistentvolumeclaim "c" not found` || len(e.Candidates) > 0 {
		t.Errorf("without the claim: %+v", e)
	}
}

// FuzzWhy compares explanations with the scheduler: a node has no objection exactly if it accepts
// the pod, and each way removes its objection.
func FuzzWhy(f *testing.F) {
	for seed := range uint64(150) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 2))
		fl := newFleet(t)
		odd := func(n int) bool { return r.IntN(n) == 0 }
		keys, values := []string{"gpu", "disk", corev1.LabelArchStable}, []string{"a", "b"}
		for _, name := range names("n", 1+r.IntN(6)) {
			fl.put(node(name, []string{"oslo", "voss"}[r.IntN(2)], func(n *corev1.Node) {
				for _, k := range keys {
					if odd(2) {
						n.Labels[k] = values[r.IntN(2)]
					}
				}
				if odd(4) {
					cordoned(n)
				}
				if odd(4) {
					taint([]string{"camera", corev1.TaintNodeNotReady, corev1.TaintNodeDiskPressure, "spare"}[r.IntN(4)],
						values[r.IntN(2)], []corev1.TaintEffect{"NoSchedule", "NoExecute", "PreferNoSchedule"}[r.IntN(3)])(n)
				}
				if odd(6) {
					delete(n.Labels, corev1.LabelTopologyZone)
				}
				if odd(2) {
					n.Status.Allocatable["example.com/tpu"] = resource.MustParse("1")
				}
				n.Status.Allocatable[corev1.ResourcePods] = *resource.NewQuantity(int64(r.IntN(8)), resource.DecimalSI)
			}))
			for i := range r.IntN(5) {
				p := randomPod(r, fmt.Sprintf("%s-p%d", name, i), 0, []string{name})
				p.Spec.NodeName = name
				if odd(4) {
					daemon(p)
				}
				if odd(6) {
					p.DeletionTimestamp = &metav1.Time{Time: fl.now}
				}
				fl.put(p)
			}
		}
		if odd(3) {
			fl.put(pod("nominated", asks("1", "1Gi"), hostPort("", "TCP", 80), priority(9),
				func(p *corev1.Pod) { p.Status.NominatedNodeName = "n-1" }))
		}
		p := randomPod(r, "new", 0, names("n", 6))
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse([]string{"0", "1Gi", "4Gi",
			"9Gi"}[r.IntN(4)])
		if odd(4) {
			p.Spec.Containers[0].Resources.Requests["example.com/tpu"] = resource.MustParse("1")
		}
		for _, k := range keys {
			if odd(3) {
				if p.Spec.NodeSelector == nil {
					p.Spec.NodeSelector = map[string]string{}
				}
				p.Spec.NodeSelector[k] = values[r.IntN(2)]
			}
		}
		if p.Spec.Affinity == nil && odd(3) {
			ops := []corev1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}
			var terms [][]corev1.NodeSelectorRequirement
			for range 1 + r.IntN(2) {
				var term []corev1.NodeSelectorRequirement
				for range r.IntN(3) {
					e := corev1.NodeSelectorRequirement{Key: keys[r.IntN(3)], Operator: ops[r.IntN(4)]}
					if e.Operator == "In" || e.Operator == "NotIn" {
						e.Values = []string{values[r.IntN(2)]}
					}
					term = append(term, e)
				}
				terms = append(terms, term)
			}
			expression(terms...)(p)
		}
		fl.put(p)
		p = fl.s.Pod("default", "new")
		tried := newPass(fl.s, fl.now).try(p)
		fits := false
		for n := range fl.s.Nodes() {
			_, why := tried.against(n)
			objections := tried.objections(labelRequirementsOf(p), n, nil)
			if (len(why) == 0) != (len(objections) == 0) {
				t.Fatalf("seed %d: the scheduler refuses with %v on %s, the explanation has %v", seed, why, n.Name, objections)
			}
			fits = fits || len(why) == 0 && tried.wants(n.Name)
		}
		e := Why(fl.s, p, fl.now)
		if fits != (len(e.Candidates)+len(e.Obstacles) == 0) {
			t.Fatalf("seed %d: a node accepts the pod: %v; the explanation: %+v", seed, fits, e)
		}
		for _, c := range e.Candidates {
			for _, o := range c.Against {
				for _, w := range o.Ways {
					s, changed := done(fl.s, c.Node, p, w)
					for _, left := range newPass(s, fl.now).try(changed).objections(labelRequirementsOf(changed), s.Node(c.Node.Name),
						nil) {
						if same := left.Reason == o.Reason && left.Key == o.Key && left.Resource == o.Resource && left.Port == o.Port &&
							left.Taint == o.Taint && reflect.DeepEqual(left.Label, o.Label); same {
							t.Fatalf("seed %d: after %s on %s the objection %s remains", seed, w.Kind, c.Node.Name, brief(o))
						}
					}
				}
			}
		}
	})
}

// done applies a way as a user would, without calling the scheduler.
func done(s state.Snapshot, n *corev1.Node, p *corev1.Pod, w Way) (state.Snapshot, *corev1.Pod) {
	n, p = n.DeepCopy(), p.DeepCopy()
	changes := []state.Change{}
	spec := &p.Spec
	switch w.Kind {
	case Uncordon:
		n.Spec.Unschedulable = false
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints,
			func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable })
	case SetLabel:
		n.Labels[w.Label.Key] = append(w.Label.Values, "")[0]
	case RemoveLabel:
		delete(n.Labels, w.Label.Key)
	case RemoveTaint:
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t == w.Taint })
	case MakeRoom:
		for _, gone := range w.Pods {
			changes = append(changes, state.Remove(gone, ""))
		}
	case Tolerate:
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: w.Taint.Key, Operator: "Equal",
			Value: w.Taint.Value, Effect: w.Taint.Effect})
	case LowerRequest:
		spec.Containers[0].Resources.Requests[w.Resource] = w.Amount
	case DropHostPort:
		spec.Containers[0].Ports = slices.DeleteFunc(spec.Containers[0].Ports,
			func(c corev1.ContainerPort) bool { return c.HostPort == w.Port.Port })
	case Soften:
		spec.TopologySpreadConstraints = slices.DeleteFunc(spec.TopologySpreadConstraints,
			func(c corev1.TopologySpreadConstraint) bool { return c.TopologyKey == w.Key })
		if a := spec.Affinity; a != nil {
			other := func(t corev1.PodAffinityTerm) bool { return t.TopologyKey == w.Key }
			if a.PodAffinity != nil {
				a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = slices.DeleteFunc(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, other)
			}
			if a.PodAntiAffinity != nil {
				a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = slices.DeleteFunc(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, other)
			}
		}
	case DropSelector:
		if v, ok := spec.NodeSelector[w.Label.Key]; ok && reflect.DeepEqual(w.Label,
			corev1.NodeSelectorRequirement{Key: w.Label.Key, Operator: "In", Values: []string{v}}) {
			delete(spec.NodeSelector, w.Label.Key)
		}
		if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
			terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			for i := range terms {
				had := len(terms[i].MatchExpressions)
				terms[i].MatchExpressions = slices.DeleteFunc(terms[i].MatchExpressions,
					func(r corev1.NodeSelectorRequirement) bool { return reflect.DeepEqual(r, w.Label) })
				if had > 0 && len(terms[i].MatchExpressions) == 0 { // the term has lost its last requirement
					spec.Affinity = nil
					break
				}
			}
		}
	}
	s, _ = state.Apply(s, append(changes, state.Put(n, ""), state.Put(p, "")))
	return s, s.Pod(p.Namespace, p.Name)
}

// BenchmarkWhy explains why a pod fits none of 5,000 nodes because of a selector that no node
// matches, too large a memory request, and a spread constraint.
func BenchmarkWhy(b *testing.B) {
	f := fleetOf(b, 5_000)
	for name, p := range map[string]*corev1.Pod{
		"selector": pod("new", selects(map[string]string{"gpu": "true"})),
		"memory":   pod("new", asks("", "64Gi")),
		"both":     pod("new", selects(map[string]string{"gpu": "true"}), asks("9", "64Gi")),
		"spread": pod("new", selects(map[string]string{"gpu": "true"}), app("new"), func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
				TopologyKey:       corev1.LabelTopologyZone,
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "new"}}}}
		}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if e := Why(f.s, p, f.now); len(e.Candidates) != MaxCandidates {
					b.Fatalf("%d candidates", len(e.Candidates))
				}
			}
		})
	}
}
