package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/fleet"
)

// hintsFrom parses hints: "01+ 0" is nodes 0 and 1, preferred, or node 0; "-" means any node; "!"
// means no hint.
func hintsFrom(text string) []hint {
	out := []hint{}
	for _, word := range strings.Fields(text) {
		switch word {
		case "-":
			return nil
		case "!":
			return out
		}
		var h hint
		for _, c := range word {
			if c == '+' {
				h.preferred = true
			} else {
				h.nodes |= 1 << (c - '0')
			}
		}
		out = append(out, h)
	}
	return out
}

func (h hint) String() string {
	s := ""
	for i := range 16 {
		if h.nodes&(1<<i) != 0 {
			s += strconv.Itoa(i)
		}
	}
	if h.preferred {
		s += "+"
	}
	return s
}

// The rows are the kubelet's (topologymanager/policy_test.go), with four nodes; "" is any node.
func TestHintsAreMergedAsTheKubeletDoes(t *testing.T) {
	const be, re, si = "best-effort", "restricted", "single-numa-node"
	for _, c := range []struct {
		name      string
		policy    TopologyPolicy
		resources []string
		want      string // the expected hint
		admit     bool
	}{
		{"two providers, one hint each, same mask, both preferred", be, []string{"0+", "0+"}, "0+", true},
		{"two providers, one hint each, on another node", si, []string{"1+", "1+"}, "1+", true},
		{"one provider without a preference, one preferred", re, []string{"-", "0+"}, "0+", true},
		{"two hints, and one hint that matches the first", be, []string{"0+ 1+", "0+"}, "0+", true},
		{"two hints, and one hint that matches the second", re, []string{"0+ 1+", "1+"}, "1+", true},
		{"two providers with two hints each: the narrower preferred hint", be, []string{"0+ 1+", "0+ 01"}, "0+", true},
		{"a wider preferred hint over a narrower hint that is not preferred", re, []string{"1+ 01", "0 1+ 01"}, "1+", true},
		{"no preference", be, nil, "+", true},
		{"no preference, single-numa-node", si, []string{"-", "-"}, "+", true},
		{"not available, best-effort", be, []string{"!"}, "", true},
		{"not available", re, []string{"!"}, "", false},
		{"not available, single-numa-node", si, []string{"!"}, "", false},
		{"no common mask", be, []string{"0+", "1+"}, "", true},
		{"no common mask, restricted", re, []string{"0+", "1+"}, "", false},
		{"no common mask, one node", si, []string{"0+", "1+"}, "", false},
		{"same mask, one preferred", be, []string{"0+", "0"}, "0", true},
		{"same mask, one preferred, restricted", re, []string{"0+", "0"}, "0", false},
		{"same mask, one preferred, one node", si, []string{"0+", "0"}, "", false},
		{"a wider mask is not the same preference", be, []string{"0+", "01+"}, "0", true},
		{"a wider mask is not the same preference, restricted", re, []string{"0+", "01+"}, "0", false},
		{"a wider mask is not a single node", si, []string{"01+"}, "", false},
		{"two nodes if that is the minimum", re, []string{"01+"}, "01+", true},
		{"the best hint that is not preferred has as many nodes as one resource needs (1)", be, []string{"01 0123", "01 0123"}, "01", true},
		{"the best hint that is not preferred (2)", be, []string{"0 01 0123", "01 0123"}, "01", true},
		{"the best hint that is not preferred (3)", be, []string{"01 0123", "0 1 01"}, "01", true},
		{"the lower of two equal hints", be, []string{"2 3", "2 3"}, "2", true},
	} {
		var lists [][]hint
		for _, r := range c.resources {
			lists = append(lists, hintsFrom(r))
		}
		best, admit := merge(c.policy, 4, lists)
		if best.String() != c.want || admit != c.admit {
			t.Errorf("%s: %q %v, want %q %v", c.name, best, admit, c.want, c.admit)
		}
	}
}

// As in the kubelet's generateDeviceTopologyHints, a hint is preferred if no smaller set of nodes
// could ever have the amount, free or not.
func TestHintsOfAResource(t *testing.T) {
	for _, c := range []struct {
		name        string
		total, free []int64
		amount      int64
		want        string
	}{
		{"one device is requested, each node has one", []int64{1, 1}, []int64{1, 1}, 1, "[0+ 1+ 01]"},
		{"two devices are requested, each node has one", []int64{1, 1}, []int64{1, 1}, 2, "[01+]"},
		{"two devices are requested, one of node 0's two is in use", []int64{2, 1}, []int64{1, 1}, 2, "[01]"},
		{"the other node's device is in use", []int64{1, 1}, []int64{1, 0}, 1, "[0+ 01]"},
		{"all devices are in use", []int64{1, 1}, []int64{0, 0}, 1, "[]"},
		{"more devices than the board has", []int64{1, 1}, []int64{1, 1}, 3, "[]"},
		{"three nodes", []int64{1, 1, 2}, []int64{1, 1, 2}, 2, "[01 2+ 02 12 012]"},
	} {
		if got := fmt.Sprint(hints(c.total, c.free, c.amount)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestTopologyPolicies(t *testing.T) {
	for _, s := range []string{"none", "best-effort", "restricted", "single-numa-node"} {
		if p, err := ParseTopologyPolicy(s, 8); err != nil || string(p) != s {
			t.Errorf("%s is parsed as %q, error %v", s, p, err)
		}
	}
	if _, err := ParseTopologyPolicy("none", 9); err != nil {
		t.Error(err)
	}
	if _, err := ParseTopologyPolicy("restricted", 9); err == nil ||
		!strings.Contains(err.Error(), "more than 8 NUMA nodes, and this one has 9") {
		t.Error(err)
	}
}

func TestPodsAreAlignedOrRejected(t *testing.T) {
	each := []hardware.Device{onNode(chip("0"), 0), onNode(chip("1"), 1)}
	both := slices.Concat(each, []hardware.Device{onNode(port("a", "ttyS0"), 0), onNode(port("b", "ttyS1"), 1)})
	onOne := []hardware.Device{onNode(chip("0"), 1), onNode(port("a", "ttyS0"), 1), onNode(port("b", "ttyS1"), 0)}
	apart := []hardware.Device{onNode(chip("0"), 0), onNode(port("a", "ttyS0"), 1)}
	with := func(p corev1.Pod, device, n string) corev1.Pod {
		r := p.Spec.Containers[0].Resources
		r.Limits[fleet.ResourceName(device)] = resource.MustParse(n)
		return p
	}
	for _, c := range []struct {
		rule    string
		policy  TopologyPolicy
		nodes   []hardware.NUMANode
		devices []hardware.Device
		pods    []corev1.Pod
		want    string // the nodes of each pod's containers, or "no"
	}{
		{"policy none: any node", AnyTopology, twoNodes, apart, []corev1.Pod{with(requesting("a", "gpiochip", "1", "wait"), "serial", "1")}, "a[]"},
		{"a device is taken from the lower node", SingleNUMANode, twoNodes, each, []corev1.Pod{requesting("a", "gpiochip", "1", "wait")}, "a[0]"},
		{"the next device is taken from the other node", SingleNUMANode, twoNodes, each, []corev1.Pod{requesting("a", "gpiochip", "1", "wait"), requesting("b", "gpiochip", "1", "wait")}, "a[0] b[1]"},
		{"two devices on different nodes: single-numa-node", SingleNUMANode, twoNodes, each, []corev1.Pod{requesting("a", "gpiochip", "2", "wait")}, "a no"},
		{"two devices on different nodes: restricted", Restricted, twoNodes, each, []corev1.Pod{requesting("a", "gpiochip", "2", "wait")}, "a[]"},
		{"two resources are taken from the node that has both", Restricted, twoNodes, onOne, []corev1.Pod{with(requesting("a", "gpiochip", "1", "wait"), "serial", "1")}, "a[1]"},
		{"two resources on different nodes: restricted", Restricted, twoNodes, apart, []corev1.Pod{with(requesting("a", "gpiochip", "1", "wait"), "serial", "1")}, "a no"},
		{"two resources on different nodes: best-effort", BestEffort, twoNodes, apart, []corev1.Pod{with(requesting("a", "gpiochip", "1", "wait"), "serial", "1")}, "a[0]"},
		{"two resources on different nodes, because another pod has the near device", SingleNUMANode, twoNodes, both, []corev1.Pod{
			requesting("a", "gpiochip", "1", "wait"), with(requesting("b", "gpiochip", "1", "wait"), "serial", "2"),
			with(requesting("c", "gpiochip", "1", "wait"), "serial", "1")}, "a[0] b no c[1]"},
		{"a device without a node is near to all", SingleNUMANode, twoNodes, []hardware.Device{chip("0"), chip("1")}, []corev1.Pod{requesting("a", "gpiochip", "2", "wait")}, "a[]"},
		{"whole processors of a guaranteed pod", SingleNUMANode, twoNodes, nil, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "2"), guaranteedPod(makePod("b", "wait"), "2")}, "a[0] b[1]"},
		{"other pods use CPUs of one node", SingleNUMANode, twoNodes, nil, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "1"), guaranteedPod(makePod("b", "wait"), "2"), guaranteedPod(makePod("c", "wait"), "1")}, "a[0] b[1] c[0]"},
		{"no node has two free CPUs", SingleNUMANode, twoNodes, nil, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "1"), guaranteedPod(makePod("b", "wait", "wait"), "1")}, "a[0] b[0][1]"},
		{"no node has three CPUs", SingleNUMANode, twoNodes, nil, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "3")}, "a no"},
		{"three CPUs from both nodes", Restricted, twoNodes, nil, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "3"), guaranteedPod(makePod("b", "wait"), "1")}, "a[] b[1]"},
		{"two free CPUs on different nodes", Restricted, twoNodes, nil, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "1"), guaranteedPod(makePod("b", "wait"), "1"), guaranteedPod(makePod("c", "wait"), "2")}, "a[0] b[0] c[1]"},
		{"half a CPU is not exclusive", SingleNUMANode, twoNodes, nil, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "1500m")}, "a[]"},
		{"processors and a device", SingleNUMANode, twoNodes, []hardware.Device{onNode(chip("0"), 1)}, []corev1.Pod{guaranteedPod(requesting("a", "gpiochip", "1", "wait"), "2")}, "a[1]"},
		{"no free CPUs on the device's node", SingleNUMANode, twoNodes, []hardware.Device{onNode(chip("0"), 0)}, []corev1.Pod{guaranteedPod(makePod("a", "wait"), "1"), guaranteedPod(requesting("b", "gpiochip", "1", "wait"), "2")}, "a[0] b no"},
		{"a board with one node: all devices are near", SingleNUMANode, nil, each[:1], []corev1.Pod{requesting("a", "gpiochip", "1", "wait")}, "a[]"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(c.pods...)
			w.o.Node.Topology, w.o.Node.NUMA, w.o.Node.Offers = c.policy, c.nodes, hardware.Resources(c.devices, nil)
			for _, o := range w.o.Node.Offers {
				w.o.Node.Allocatable[o.Name] = *resource.NewQuantity(o.Amount(), resource.DecimalSI)
			}
			steps, _ := Steps(w.d, &w.o, w.now)
			var got []string
			for _, p := range c.pods {
				for _, s := range steps {
					if s.Place.Pod != p.UID {
						continue
					}
					line := p.Name
					for _, spec := range p.Spec.Containers {
						line += fmt.Sprint(s.NUMA[spec.Name])
					}
					if s.Action == Reject {
						line = p.Name + " no"
						if s.Verdict.Reason != "TopologyAffinityError" ||
							s.Verdict.Message != "Resources cannot be allocated with Topology locality" {
							t.Errorf("the verdict is %+v, want TopologyAffinityError", s.Verdict)
						}
					}
					got = append(got, line)
				}
			}
			if have := strings.Join(got, " "); have != c.want {
				t.Errorf("the pods get %s, want %s", have, c.want)
			}
		})
	}
}

func TestThePodScopeAlignsAllContainersOfAPod(t *testing.T) {
	inInit := func(p corev1.Pod, cpu string) corev1.Pod {
		first := *p.Spec.Containers[0].DeepCopy()
		first.Name = "prepare"
		q := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse("1Mi")}
		first.Resources = corev1.ResourceRequirements{Requests: q, Limits: q.DeepCopy()}
		p.Spec.InitContainers = []corev1.Container{first}
		return p
	}
	three := []hardware.NUMANode{{ID: 0, CPUs: "0-2"}, {ID: 1, CPUs: "3-5"}}
	for _, c := range []struct {
		rule  string
		scope TopologyScope
		nodes []hardware.NUMANode
		pods  []corev1.Pod
		want  string
	}{
		{"two containers that fit on one node together", PodScope, twoNodes, []corev1.Pod{guaranteedPod(makePod("a", "wait", "wait"), "1")}, "a[0][0]"},
		{"a pod uses half of the lower node: both containers on the other node", PodScope, twoNodes, []corev1.Pod{
			guaranteedPod(makePod("a", "wait"), "1"), guaranteedPod(makePod("b", "wait", "wait"), "1")},
			"a[0] b[1][1]"},
		{"each container is aligned alone", ContainerScope, twoNodes, []corev1.Pod{
			guaranteedPod(makePod("a", "wait"), "1"), guaranteedPod(makePod("b", "wait", "wait"), "1")},
			"a[0] b[0][1]"},
		{"two containers that do not fit on one node together", PodScope, three, []corev1.Pod{guaranteedPod(makePod("a", "wait", "wait"), "2")}, "a no"},
		{"an init container releases its resources", PodScope, twoNodes, []corev1.Pod{inInit(guaranteedPod(makePod("a", "wait"), "1"), "2")}, "a[0]"},
		{"an init container needs more than a node has", PodScope, twoNodes, []corev1.Pod{inInit(guaranteedPod(makePod("a", "wait"), "1"), "3")}, "a no"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(c.pods...)
			w.o.Node.Topology, w.o.Node.Scope, w.o.Node.NUMA = SingleNUMANode, c.scope, c.nodes
			w.o.Node.Allocatable[corev1.ResourceCPU] = resource.MustParse("6")
			steps, _ := Steps(w.d, &w.o, w.now)
			var got []string
			for _, p := range c.pods {
				for _, s := range steps {
					switch {
					case s.Place.Pod != p.UID:
					case s.Action == Reject:
						got = append(got, p.Name+" no")
					case s.Action == Admit:
						line := p.Name
						for _, spec := range p.Spec.Containers {
							line += fmt.Sprint(s.NUMA[spec.Name])
						}
						got = append(got, line)
					}
				}
			}
			if have := strings.Join(got, " "); have != c.want {
				t.Errorf("the pods get %s, want %s", have, c.want)
			}
		})
	}
}

// An aligned container gets devices of its own nodes, and waits for them rather than take others.
func TestDevicesComeFromThePodsNodes(t *testing.T) {
	w := newWorld()
	w.o.Node.Topology, w.o.Node.NUMA = Restricted, twoNodes
	w.o.Node.Offers = hardware.Resources([]hardware.Device{onNode(chip("0"), 0), onNode(chip("1"), 1)}, nil)
	p := requesting("a", "gpiochip", "1", "wait")
	at := Place{p.UID, "c0"}
	w.o.Pods = map[types.UID]*Record{p.UID: {Admitted: true, NUMA: map[string][]int{"c0": {1}}}}
	pass := &pass{o: &w.o}
	if d, lacks := pass.assignDevices(at, &p.Spec.Containers[0]); lacks != "" || len(d) != 1 || d[0].ID != "gpiochip1" {
		t.Errorf("the container gets %+v, missing %q; want gpiochip1", d, lacks)
	}
	w.o.Node.Offers = hardware.Resources([]hardware.Device{onNode(chip("0"), 0)}, nil)
	if d, lacks := pass.assignDevices(at, &p.Spec.Containers[0]); lacks == "" {
		t.Errorf("restricted policy, device on another node: got %+v", d)
	}
	w.o.Node.Topology = BestEffort
	if d, lacks := pass.assignDevices(at, &p.Spec.Containers[0]); lacks != "" || d[0].ID != "gpiochip0" {
		t.Errorf("best-effort policy, device on another node: got %+v %s", d, lacks)
	}
}
