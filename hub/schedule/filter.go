package schedule

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"flotilla.dev/hub/state"
)

type quantity = resource.Quantity

// Kubernetes' reasons for which a node is refused.
const (
	unschedulable  = "node(s) were unschedulable"
	wrongAffinity  = "node(s) didn't match Pod's node affinity/selector"
	wrongPorts     = "node(s) didn't have free ports for the requested pod ports"
	tooManyPods    = "Too many pods"
	wrongSpread    = "node(s) didn't match pod topology spread constraints"
	unlabeled      = "node(s) didn't match pod topology spread constraints (missing required label)"
	wrongNeighbors = "node(s) didn't match pod affinity rules"
	unwelcome      = "node(s) didn't match pod anti-affinity rules"
	repelled       = "node(s) didn't satisfy existing pods anti-affinity rules"
)

// info is a node with what its pods take, the nominated ones not included.
type info struct {
	node  *corev1.Node
	site  string
	usage state.Usage
}

// info returns what is known of a node; nil is nil.
func (p *pass) info(n *corev1.Node) *info {
	if n == nil {
		return nil
	}
	i, ok := p.infos[n.Name]
	if !ok {
		i = &info{n, state.SiteOf(n), p.s.Usage(n.Name)}
		p.infos[n.Name] = i
	}
	return i
}

// A need is how much of one resource a pod asks for.
type need struct {
	name   corev1.ResourceName
	amount quantity
}

// A try is one pod in search of a node.
type try struct {
	*pass
	pod      *corev1.Pod
	priority int32
	needs    []need
	ports    []state.HostPort
	fits     nodeaffinity.RequiredNodeAffinity
	only     map[string]bool // the nodes that its affinity names; nil: any
	links    *links          // nil: where others are does not matter
}

func (p *pass) try(pod *corev1.Pod) *try {
	t := &try{pass: p, pod: pod, priority: schedcorev1.PodPriority(pod), ports: state.HostPorts(pod), fits: nodeaffinity.GetRequiredNodeAffinity(pod), only: named(pod)}
	for name, amount := range state.Requests(pod) {
		if !amount.IsZero() {
			t.needs = append(t.needs, need{name, amount})
		}
	}
	slices.SortFunc(t.needs, func(a, b need) int { return cmp.Compare(a.name, b.name) })
	t.links = t.link()
	return t
}

// named returns the nodes that a pod's affinity names, as a DaemonSet's pod names
// its one: then no other is looked at.
func named(pod *corev1.Pod) map[string]bool {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	names := map[string]bool{}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		i := slices.IndexFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn
		})
		if i < 0 {
			return nil
		}
		for _, name := range term.MatchFields[i].Values {
			names[name] = true
		}
	}
	if len(names) == 0 {
		return nil
	}
	return names
}

func (t *try) wants(node string) bool { return t.only == nil || t.only[node] }

// against returns why the node will not do, nothing if it will. Filters come in
// Kubernetes' order, and the first that refuses says why.
func (t *try) against(n *info) []string {
	node := n.node
	if node.Spec.Unschedulable && !tolerates(t.pod.Spec.Tolerations, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return []string{unschedulable}
	}
	for i := range node.Spec.Taints {
		if taint := &node.Spec.Taints[i]; taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(t.pod.Spec.Tolerations, taint) {
			return []string{fmt.Sprintf("node(s) had untolerated taint {%s: %s}", taint.Key, taint.Value)}
		}
	}
	if ok, err := t.fits.Match(node); err != nil || !ok {
		return []string{wrongAffinity}
	}
	usage := t.withNominated(n)
	if clash(usage.Ports, t.ports) {
		return []string{wrongPorts}
	}
	if reasons := t.short(node, usage); len(reasons) > 0 {
		return reasons
	}
	if t.links != nil {
		if reason := t.links.against(node); reason != "" {
			return []string{reason}
		}
	}
	return nil
}

// tolerates tells whether any toleration tolerates the taint.
func tolerates(all []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range all {
		if all[i].ToleratesTaint(klog.Logger{}, taint, false) {
			return true
		}
	}
	return false
}

// short returns what the node has too little of: first a place among its pods,
// then each resource. What just fits, fits.
func (t *try) short(node *corev1.Node, usage state.Usage) (reasons []string) {
	if most, ok := node.Status.Allocatable[corev1.ResourcePods]; !ok || usage.Pods+1 > most.Value() {
		reasons = append(reasons, tooManyPods)
	}
	for _, need := range t.needs {
		free, ok := node.Status.Allocatable[need.name]
		if !ok {
			reasons = append(reasons, "Insufficient "+string(need.name))
			continue
		}
		if used, ok := usage.Requests[need.name]; ok {
			free = free.DeepCopy() // a big number shares its digits
			free.Sub(used)
		}
		if need.amount.Cmp(free) > 0 {
			reasons = append(reasons, "Insufficient "+string(need.name))
		}
	}
	return reasons
}

// withNominated adds to a node's usage the pods, of this priority or above, for
// which room is being made there.
func (t *try) withNominated(n *info) state.Usage {
	if t.nominated == nil {
		t.nominated = map[string][]*corev1.Pod{}
		for pod := range t.s.PodsOn("") {
			if at := pod.Status.NominatedNodeName; at != "" && waits(pod) {
				t.nominated[at] = append(t.nominated[at], pod)
			}
		}
	}
	usage := n.usage
	for _, pod := range t.nominated[n.node.Name] {
		if pod.UID == t.pod.UID && pod.Name == t.pod.Name || schedcorev1.PodPriority(pod) < t.priority {
			continue
		}
		sum := maps.Clone(usage.Requests)
		if sum == nil {
			sum = corev1.ResourceList{}
		}
		for name, q := range state.Requests(pod) {
			have := sum[name].DeepCopy()
			have.Add(q)
			sum[name] = have
		}
		usage = state.Usage{Pods: usage.Pods + 1, Requests: sum, Ports: append(slices.Clone(usage.Ports), state.HostPorts(pod)...)}
	}
	return usage
}

// clash tells whether a port that is wanted is taken: the same number and
// protocol, on the same address or where either is on all.
func clash(taken, wanted []state.HostPort) bool {
	any := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	for _, w := range wanted {
		for _, h := range taken {
			if w.Port == h.Port && cmp.Or(w.Protocol, corev1.ProtocolTCP) == cmp.Or(h.Protocol, corev1.ProtocolTCP) &&
				(w.IP == h.IP || any(w.IP) || any(h.IP)) {
				return true
			}
		}
	}
	return false
}

// A tally counts the nodes that were refused, by reason.
type tally struct {
	nodes int
	count map[string]int
	// curable are the nodes that would do if lower pods went.
	curable []string
}

func (c tally) String() string {
	if c.nodes == 0 {
		return "no nodes available to schedule pods"
	}
	var parts []string
	for reason, n := range c.count {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", c.nodes, strings.Join(parts, ", "))
}

func (c *tally) add(node string, reasons []string) {
	curable := true
	for _, r := range reasons {
		c.count[r]++
		switch r {
		case unschedulable, wrongAffinity, unlabeled, wrongNeighbors:
			curable = false
		default:
			curable = curable && !strings.HasPrefix(r, "node(s) had untolerated taint")
		}
	}
	if curable {
		c.curable = append(c.curable, node)
	}
}

// search returns the nodes that will do. In a fleet of more than 500 nodes it
// stops when it has as many as Kubernetes would look at (half of them, down to a
// twentieth as the fleet grows, at least 500): it takes every k-th node by name,
// so that every site is among them, beginning with one that follows from the
// pod's uid.
func (t *try) search() ([]*info, tally) {
	total := t.s.Len(state.Nodes)
	c := tally{nodes: total, count: map[string]int{}}
	if t.only != nil {
		var fits []*info
		looked := 0
		for _, name := range slices.Sorted(maps.Keys(t.only)) {
			if n := t.info(t.s.Node(name)); n != nil {
				looked++
				if why := t.against(n); len(why) > 0 {
					c.add(name, why)
				} else {
					fits = append(fits, n)
				}
			}
		}
		if rest := total - looked; rest > 0 {
			c.count[wrongAffinity] += rest
		}
		return fits, c
	}
	enough, stride := total, 1
	if total > 500 {
		enough = max(500, total*max(50-total/125, 5)/100)
		stride = max(1, total/(2*enough))
	}
	var fits []*info
	start := int(seed(t.pod) % uint32(stride))
	for step := range stride {
		i, turn := 0, (start+step)%stride
		for node := range t.s.Nodes() {
			if i++; (i-1)%stride != turn {
				continue
			}
			n := t.info(node)
			if why := t.against(n); len(why) > 0 {
				c.add(node.Name, why)
			} else {
				fits = append(fits, n)
			}
		}
		if len(fits) >= enough {
			break
		}
	}
	return fits, c
}

func seed(pod *corev1.Pod) uint32 {
	h := fnv.New32a()
	h.Write([]byte(pod.UID))
	return h.Sum32()
}
