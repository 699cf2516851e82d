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

// TopologyPolicy is the kubelet's --topology-manager-policy: how a container's resources relate to
// NUMA nodes.
type TopologyPolicy string

// Topology policies.
const (
	AnyTopology    TopologyPolicy = "none"
	BestEffort     TopologyPolicy = "best-effort"      // from as few nodes as possible
	Restricted     TopologyPolicy = "restricted"       // from the fewest nodes possible, or the pod fails
	SingleNUMANode TopologyPolicy = "single-numa-node" // from one node, or the pod fails
)

// TopologyScope is the kubelet's --topology-manager-scope: which containers are aligned together.
type TopologyScope string

// Topology scopes.
const (
	ContainerScope TopologyScope = "container" // each container is aligned alone
	PodScope       TopologyScope = "pod"       // all containers of a pod are aligned together
)

// ParseTopologyScope parses a flag's value.
func ParseTopologyScope(s string) (TopologyScope, error) {
	if scope := TopologyScope(s); scope == ContainerScope || scope == PodScope {
		return scope, nil
	}
	return "", fmt.Errorf("%q is not a topology scope: use container or pod", s)
}

// LabelNUMA is the label with the NUMA nodes of each aligned container of the pod, in JSON. They
// are recorded only in this label.
const LabelNUMA = "flotilla.dev/numa"

const (
	topologyAffinityError = "TopologyAffinityError"
	maxNUMA               = 8 // the kubelet's limit, because every combination of nodes is tried
)

// ParseTopologyPolicy parses a flag's value for a device with the given number of NUMA nodes.
func ParseTopologyPolicy(s string, nodes int) (TopologyPolicy, error) {
	p := TopologyPolicy(s)
	if !slices.Contains([]TopologyPolicy{AnyTopology, BestEffort, Restricted, SingleNUMANode}, p) {
		return "", fmt.Errorf("%q is not a topology policy: use none, best-effort, restricted or single-numa-node", s)
	}
	if p != AnyTopology && nodes > maxNUMA {
		return "", fmt.Errorf("%s is not supported on a device with more than %d NUMA nodes, and this one has %d: use none",
			p, maxNUMA, nodes)
	}
	return p, nil
}

// A nodeSet is a set of NUMA nodes: bit i is the i-th node of the list.
type nodeSet uint16

func (s nodeSet) count() int { return bits.OnesCount16(uint16(s)) }

// narrower reports whether s is better than t: s has fewer nodes, or the same number of lower
// nodes.
func (s nodeSet) narrower(t nodeSet) bool {
	if s.count() == t.count() {
		return s < t
	}
	return s.count() < t.count()
}

// A hint is a set of nodes that could provide a resource. It is preferred if no smaller set could
// ever provide the resource. The empty set means that any node will do.
type hint struct {
	nodes     nodeSet
	preferred bool
}

// hints are the sets of nodes that together have amount free. total and free are amounts per node.
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

// merge finds the nodes for a container from the hints of each resource, and reports whether the
// policy admits the container. Nil hints mean any node; empty hints mean that the resource is not
// available. It is the kubelet's HintMerger, with its order of hints.
func merge(policy TopologyPolicy, nodes int, resources [][]hint) (best hint, admit bool) {
	all := nodeSet(1<<nodes - 1)
	lists := make([][]hint, len(resources))
	most := 0 // maximum, over the resources, of the fewest nodes that a resource needs
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
		best.nodes = 0 // any node will do
	}
	return best, best.preferred || policy == BestEffort
}

// better reports whether a merged hint is better than the best so far. Among hints that are not
// preferred, the best one has as many nodes as most.
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

// align finds the NUMA nodes of a new pod's containers. It returns nil if the policy rejects the
// pod. wait means that the pod would fit once the leaving pods have gone.
func (p *pass) align(pod *corev1.Pod, holders, leaving []*corev1.Pod) (numa map[string][]int, wait bool) {
	node := p.o.Node
	if node.Topology == AnyTopology || node.Topology == "" || len(node.NUMA) < 2 || len(node.NUMA) > maxNUMA {
		return map[string][]int{}, false // there is nothing to align
	}
	if numa = p.place(pod, holders); numa == nil || len(leaving) == 0 {
		return numa, false
	}
	numa = p.place(pod, slices.Concat(holders, leaving))
	return numa, numa == nil
}

// place finds the NUMA nodes of a pod's containers one after another, beside the containers of the
// other pods. It returns nil if the policy rejects the pod.
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
			hints := p.hintsFor(wholeCPUs(pod, w.Spec), requestedDevices(w.Spec), taken)
			best, admit = merge(node.Topology, len(node.NUMA), hints)
		}
		if !admit {
			return nil
		}
		for i := range node.NUMA {
			if best.nodes&(1<<i) != 0 {
				numa[w.Spec.Name] = append(numa[w.Spec.Name], node.NUMA[i].ID)
			}
		}
		// An init container releases its resources before the next containers start.
		if w.Kind == podspec.KindApp || podspec.IsSidecar(w) {
			taken.take(pod, w, numa[w.Spec.Name], nil, node)
		}
	}
	return numa
}

// hintsFor are the hints for whole CPUs and devices that are not taken.
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
			continue // a resource without a NUMA node matches all
		}
		lists = append(lists, hints(total, free, n))
	}
	return lists
}

// needOf is the highest amount that a pod needs at one time: all app containers and sidecars, or an
// init container with the sidecars before it.
func needOf(pod *corev1.Pod) (cpus int64, devices map[corev1.ResourceName]int64) {
	devices = map[corev1.ResourceName]int64{}
	var running int64
	runningDevices := map[corev1.ResourceName]int64{}
	for _, w := range podspec.Containers(pod) { // init containers are first in the list
		n, want := wholeCPUs(pod, w.Spec), requestedDevices(w.Spec)
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

// taken is the amount that pods have taken: CPUs by NUMA node, and the uses of each device.
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

// of is a resource's total and free amount on each NUMA node. near means that a part of the
// resource is on a node.
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

// taken is the amount that the given pods have taken, or take once they run.
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
					break // older instances do not matter
				}
			}
			t.take(pod, w, p.nearTo(at), has, p.o.Node)
		}
	}
	return t
}

// take adds a container's devices. If it has none yet, take adds the devices that it is going to
// get.
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
	for name, n := range requestedDevices(w.Spec) {
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

// nearTo are the NUMA nodes of an aligned container. The result is nil if the container is not
// aligned.
func (p *pass) nearTo(at Place) []int {
	if numa, ok := p.aligned[at.Pod]; ok {
		return numa[at.Container]
	}
	if r := p.o.Pods[at.Pod]; r != nil {
		return r.NUMA[at.Container]
	}
	return nil
}

// isNear reports whether a device is on one of these NUMA nodes. A device without a node is near to
// all nodes.
func isNear(d hardware.Device, nodes []int) bool {
	return d.NUMA == nil || nodes == nil || slices.Contains(nodes, *d.NUMA)
}

// numaOf are the NUMA nodes in an instance's label.
func numaOf(in Instance) (numa map[string][]int) {
	if json.Unmarshal([]byte(in.Labels[LabelNUMA]), &numa) != nil {
		return nil
	}
	return numa
}
