package plan

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
)

// TopologyPolicy says what the NUMA nodes of a container's resources have to do with each other;
// the kubelet's --topology-manager-policy.
type TopologyPolicy string

// Topology policies.
const (
	AnyTopology    TopologyPolicy = "none"
	BestEffort     TopologyPolicy = "best-effort"      // from as few nodes as can be
	Restricted     TopologyPolicy = "restricted"       // from as few as their number takes, or the pod fails
	SingleNUMANode TopologyPolicy = "single-numa-node" // from one, or the pod fails
)

// TopologyScope says what is aligned as one; the kubelet's --topology-manager-scope.
type TopologyScope string

// Topology scopes.
const (
	ContainerScope TopologyScope = "container" // each container by itself
	PodScope       TopologyScope = "pod"       // all containers of a pod to the same nodes
)

// ParseTopologyScope reads the word of a flag.
func ParseTopologyScope(s string) (TopologyScope, error) {
	if scope := TopologyScope(s); scope == ContainerScope || scope == PodScope {
		return scope, nil
	}
	return "", fmt.Errorf("%q is neither container nor pod", s)
}

// LabelNUMA is the label of every container of a pod that says to which NUMA nodes each of them is
// aligned, in JSON. As with devices it is the only record of it.
const LabelNUMA = "flotilla.dev/numa"

const (
	topologyAffinityError = "TopologyAffinityError"
	maxNUMA               = 8 // the kubelet's: every combination of nodes is looked at
)

// ParseTopologyPolicy reads the word of a flag, for a device with so many NUMA nodes.
func ParseTopologyPolicy(s string, nodes int) (TopologyPolicy, error) {
	p := TopologyPolicy(s)
	if !slices.Contains([]TopologyPolicy{AnyTopology, BestEffort, Restricted, SingleNUMANode}, p) {
		return "", fmt.Errorf("%q is none of none, best-effort, restricted and single-numa-node", s)
	}
	if p != AnyTopology && nodes > maxNUMA {
		return "", fmt.Errorf("%s is not supported on a device with more than %d NUMA nodes, and this one has %d: use none",
			p, maxNUMA, nodes)
	}
	return p, nil
}

// A nodeSet is a set of NUMA nodes, a bit for each by its place in the list of them.
type nodeSet uint16

func (s nodeSet) count() int { return bits.OnesCount16(uint16(s)) }

// narrower tells whether one of two sets is the better one, all else being equal: of fewer nodes,
// or of lower ones.
func (s nodeSet) narrower(t nodeSet) bool {
	if s.count() == t.count() {
		return s < t
	}
	return s.count() < t.count()
}

// A hint is a set of nodes that a resource could come from; preferred, if none of fewer nodes ever
// could give it. The empty set is no wish.
type hint struct {
	nodes     nodeSet
	preferred bool
}

// hints are the sets of nodes that so much of a resource could come from: of total on each node,
// free is not taken.
func hints(total, free []int64, amount int64) []hint {
	out, least := []hint{}, len(total)
	for s := nodeSet(1); s < 1<<len(total); s++ {
		var has, left int64
		for i := range total {
			if s&(1<<i) != 0 {
				has, left = has+total[i], left+free[i]
			}
		}
		if has >= amount {
			least = min(least, s.count())
		}
		if left >= amount {
			out = append(out, hint{nodes: s})
		}
	}
	for i := range out {
		out[i].preferred = out[i].nodes.count() == least
	}
	return out
}

// merge finds the nodes for a container from the hints of each of its resources (nil: no wish;
// empty: it cannot be had), and says whether the policy lets it run. It is the kubelet's
// HintMerger, with its order among hints.
func merge(policy TopologyPolicy, nodes int, resources [][]hint) (best hint, admit bool) {
	all := nodeSet(1<<nodes - 1)
	lists := make([][]hint, len(resources))
	most := 0 // how many nodes the resource needs that needs the most
	for i, list := range resources {
		switch {
		case list == nil:
			list = []hint{{preferred: true}}
		case len(list) == 0:
			list = []hint{{}}
		}
		if policy == SingleNUMANode {
			list = slices.DeleteFunc(slices.Clone(list), func(h hint) bool { return !h.preferred || h.nodes.count() > 1 })
		}
		least := 0
		for _, h := range list {
			if n := h.nodes.count(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		most = max(most, least)
		lists[i] = list
	}
	found := false
	var walk func(at int, merged hint, first nodeSet)
	walk = func(at int, merged hint, first nodeSet) {
		if at == len(lists) {
			if merged.nodes != 0 && (!found || better(merged, best, most)) {
				best, found = merged, true
			}
			return
		}
		for _, h := range lists[at] {
			next, from := hint{merged.nodes, merged.preferred && h.preferred}, first
			if h.nodes != 0 {
				if from == 0 {
					from = h.nodes
				}
				next.nodes, next.preferred = next.nodes&h.nodes, next.preferred && h.nodes == from
			}
			walk(at+1, next, from)
		}
	}
	walk(0, hint{all, true}, 0)
	if !found {
		best = hint{nodes: all}
	}
	if best.nodes == all {
		best.nodes = 0 // wherever
	}
	return best, best.preferred || policy == BestEffort
}

// better tells whether a merged hint is better than the best so far. Of those that are not
// preferred, the best has as many nodes as the resource needs that needs the most.
func better(h, best hint, most int) bool {
	if h.preferred != best.preferred {
		return h.preferred
	}
	n, b := h.nodes.count(), best.nodes.count()
	switch {
	case h.preferred || b > most || n == b:
		return h.nodes.narrower(best.nodes)
	case b == most:
		return false
	}
	return n <= most && n > b
}

// align finds the NUMA nodes of a new pod's containers: nil where the policy does not let it run
// here; wait where it would, once those that are leaving have gone.
func (p *pass) align(pod *corev1.Pod, holders, leaving []*corev1.Pod) (numa map[string][]int, wait bool) {
	node := p.o.Node
	if node.Topology == AnyTopology || node.Topology == "" || len(node.NUMA) < 2 || len(node.NUMA) > maxNUMA {
		return map[string][]int{}, false // the nodes of a device that has one are the same
	}
	if numa = p.place(pod, holders); numa == nil || len(leaving) == 0 {
		return numa, false
	}
	numa = p.place(pod, slices.Concat(holders, leaving))
	return numa, numa == nil
}

// place finds the NUMA nodes of a pod's containers, one after the other, beside what others hold;
// nil: the policy forbids.
func (p *pass) place(pod *corev1.Pod, others []*corev1.Pod) map[string][]int {
	node := p.o.Node
	taken := p.taken(others)
	numa := map[string][]int{}
	var best hint
	admit := true
	if node.Scope == PodScope {
		cpus, devices := needOf(pod)
		best, admit = merge(node.Topology, len(node.NUMA), p.hintsFor(cpus, devices, taken))
	}
	for _, w := range podspec.Containers(pod) {
		if node.Scope != PodScope {
			best, admit = merge(node.Topology, len(node.NUMA), p.hintsFor(wholeCPUs(pod, w.Spec), asked(w.Spec), taken))
		}
		if !admit {
			return nil
		}
		for i := range node.NUMA {
			if best.nodes&(1<<i) != 0 {
				numa[w.Spec.Name] = append(numa[w.Spec.Name], node.NUMA[i].ID)
			}
		}
		// what an init container has is free again before the others start
		if w.Kind == podspec.KindApp || podspec.IsSidecar(w) {
			taken.take(pod, w, numa[w.Spec.Name], nil, node)
		}
	}
	return numa
}

// hintsFor are the hints for so many whole processors and devices, beside what is taken.
func (p *pass) hintsFor(cpus int64, devices map[corev1.ResourceName]int64, taken *taken) (lists [][]hint) {
	node := p.o.Node
	if cpus > 0 {
		total, free := make([]int64, len(node.NUMA)), make([]int64, len(node.NUMA))
		for i := range node.NUMA {
			total[i] = node.NUMA[i].Count()
			free[i] = total[i] - taken.cpus[i]
		}
		lists = append(lists, hints(total, free, cpus))
	}
	for _, offer := range node.Offers {
		n := devices[offer.Name]
		total, free, near := taken.of(offer, node.NUMA)
		if n == 0 || !near {
			continue // what is on no node is near to all
		}
		lists = append(lists, hints(total, free, n))
	}
	return lists
}

// needOf is what a pod holds at most at one moment: its containers and sidecars, or an init
// container beside the sidecars before it.
func needOf(pod *corev1.Pod) (cpus int64, devices map[corev1.ResourceName]int64) {
	devices = map[corev1.ResourceName]int64{}
	var running int64
	runningDevices := map[corev1.ResourceName]int64{}
	for _, w := range podspec.Containers(pod) { // init containers first
		n, want := wholeCPUs(pod, w.Spec), asked(w.Spec)
		cpus = max(cpus, running+n)
		for name, k := range want {
			devices[name] = max(devices[name], runningDevices[name]+k)
		}
		if w.Kind == podspec.KindInit && !podspec.IsSidecar(w) {
			continue
		}
		running += n
		for name, k := range want {
			runningDevices[name] += k
		}
	}
	return cpus, devices
}

// taken is what pods have: processors by NUMA node, and how many have each device.
type taken struct {
	cpus    []int64
	devices []holding
}

type holding struct {
	hardware.Device
	holders int64
}

func (t *taken) held(d hardware.Device) int64 {
	if i := slices.IndexFunc(t.devices, func(h holding) bool { return h.Same(d) }); i >= 0 {
		return t.devices[i].holders
	}
	return 0
}

func (t *taken) hold(d hardware.Device) {
	i := slices.IndexFunc(t.devices, func(h holding) bool { return h.Same(d) })
	if i < 0 {
		i, t.devices = len(t.devices), append(t.devices, holding{Device: d})
	}
	t.devices[i].holders++
}

// of is how much of a resource there is on each NUMA node, and how much of that is free; near tells
// whether any of it is on one.
func (t *taken) of(offer hardware.Resource, nodes []hardware.NUMANode) (total, free []int64, near bool) {
	total, free = make([]int64, len(nodes)), make([]int64, len(nodes))
	for _, d := range offer.Devices {
		for i, n := range nodes {
			if d.NUMA != nil && *d.NUMA == n.ID {
				near = true
				total[i] += offer.Sharing
				free[i] += max(offer.Sharing-t.held(d), 0)
			}
		}
	}
	return total, free, near
}

// taken is what these pods have, or will have once they run.
func (p *pass) taken(pods []*corev1.Pod) *taken {
	t := &taken{cpus: make([]int64, len(p.o.Node.NUMA))}
	for _, pod := range pods {
		for _, w := range podspec.Containers(pod) {
			if w.Kind == podspec.KindInit && !podspec.IsSidecar(w) {
				continue
			}
			at := Place{pod.UID, w.Spec.Name}
			var has []hardware.Device
			for _, in := range p.instances[pod.UID] {
				if in.Place == at {
					has = DevicesOf(in)
					break // the newest
				}
			}
			t.take(pod, w, p.nearTo(at), has, p.o.Node)
		}
	}
	return t
}

// take takes what a container has: these devices or, where it has none yet, those that it will be
// given.
func (t *taken) take(pod *corev1.Pod, w podspec.Container, near []int, has []hardware.Device, node Facts) {
	left := wholeCPUs(pod, w.Spec)
	for i, n := range node.NUMA {
		if near == nil || slices.Contains(near, n.ID) {
			some := max(min(left, n.Count()-t.cpus[i]), 0)
			t.cpus[i], left = t.cpus[i]+some, left-some
		}
	}
	for _, d := range has {
		t.hold(d)
	}
	if len(has) > 0 {
		return
	}
	for name, n := range asked(w.Spec) {
		for _, offer := range node.Offers {
			if offer.Name != name {
				continue
			}
			order := slices.Clone(offer.Devices)
			sort.SliceStable(order, func(i, j int) bool {
				a, b := order[i], order[j]
				if isNear(a, near) != isNear(b, near) {
					return isNear(a, near)
				}
				return t.held(a) < t.held(b)
			})
			for _, d := range order[:min(n, int64(len(order)))] {
				t.hold(d)
			}
		}
	}
}

// nearTo are the NUMA nodes that a container is aligned to; nil: none in particular.
func (p *pass) nearTo(at Place) []int {
	if numa, ok := p.aligned[at.Pod]; ok {
		return numa[at.Container]
	}
	if r := p.o.Pods[at.Pod]; r != nil {
		return r.NUMA[at.Container]
	}
	return nil
}

// isNear tells whether a device is on one of these NUMA nodes; what is on none is near to all.
func isNear(d hardware.Device, nodes []int) bool {
	return d.NUMA == nil || nodes == nil || slices.Contains(nodes, *d.NUMA)
}

// numaOf are the NUMA nodes that an instance's label names.
func numaOf(in Instance) (numa map[string][]int) {
	if json.Unmarshal([]byte(in.Labels[LabelNUMA]), &numa) != nil {
		return nil
	}
	return numa
}
