package schedule

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// A soft is a soft spread constraint with the number of pods in each domain.
type soft struct {
	of     func(*info) string                   // the domain of a node
	counts func(*corev1.Pod, *corev1.Node) bool // nil: siblings counts the pods
	in     map[string]int
	skew   int32
	host   bool // every node is its own domain
}

func (s *soft) add(pod *corev1.Pod, n *corev1.Node) {
	if n != nil && s.counts(pod, n) {
		s.in[s.of(&info{node: n})]++
	}
}

// softOf counts the pods of a class's soft constraint. It counts nodes that have every constraint's
// key. Unless each node is a domain, the pod's affinity must also allow the node.
func (k *class) softOf(c corev1.TopologySpreadConstraint) *soft {
	sel := selectorOf(c.LabelSelector, c.MatchLabelKeys, nil, k.pod.Labels)
	s := &soft{
		of: func(n *info) string { return n.node.Labels[c.TopologyKey] },
		counts: func(pod *corev1.Pod, n *corev1.Node) bool {
			return pod.Namespace == k.pod.Namespace && counts(pod) && sel.Matches(labels.Set(pod.Labels)) &&
				k.hasKeys(n, corev1.ScheduleAnyway) && (c.TopologyKey == corev1.LabelHostname || k.eligible(c, n))
		},
		in: map[string]int{}, skew: c.MaxSkew, host: c.TopologyKey == corev1.LabelHostname,
	}
	for pod := range k.s.Pods(k.pod.Namespace) {
		if counts(pod) {
			s.add(pod, k.s.Node(pod.Spec.NodeName))
		}
	}
	return s
}

// siblings counts the placed pods of one controller by node and site.
type siblings struct{ nodes, sites map[string]int }

func counts(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && !state.Terminated(pod)
}

// siblingsOf counts the pods of a controller, once per pass.
func (p *pass) siblingsOf(controller types.UID) *siblings {
	l := p.siblings[controller]
	if l == nil {
		l = &siblings{map[string]int{}, map[string]int{}}
		for o := range p.s.Owned(controller, state.Pods) {
			p.place(l, o.(*corev1.Pod), 1)
		}
		p.siblings[controller] = l
	}
	return l
}

func (p *pass) place(l *siblings, pod *corev1.Pod, by int) {
	if n := p.s.Node(pod.Spec.NodeName); n != nil && counts(pod) {
		l.nodes[n.Name] += by
		l.sites[state.SiteOf(n)] += by
	}
}

// recount updates the counts before the pass changes a pod.
func (p *pass) recount(c state.Change) {
	ref := metav1.GetControllerOfNoCopy(c.Object)
	if ref == nil || p.siblings[ref.UID] == nil {
		return
	}
	if old := p.s.Pod(c.Object.GetNamespace(), c.Object.GetName()); old != nil {
		p.place(p.siblings[ref.UID], old, -1)
	}
	if !c.Delete {
		p.place(p.siblings[ref.UID], c.Object.(*corev1.Pod), 1)
	}
}

// softConstraints returns the pod's soft constraints. A pod without any constraint gets Kubernetes'
// defaults, which spread the pods of a controller over nodes (skew 3) and zones (skew 5).
func (t try) softConstraints() []*soft {
	if len(t.pod.Spec.TopologySpreadConstraints) > 0 {
		return t.soft
	}
	ref := metav1.GetControllerOfNoCopy(t.pod)
	if ref == nil || t.only != nil {
		return nil
	}
	l := t.siblingsOf(ref.UID)
	return []*soft{
		{of: func(n *info) string { return n.node.Name }, in: l.nodes, skew: 3, host: true},
		{of: func(n *info) string { return n.site }, in: l.sites, skew: 5},
	}
}

// topologySpread scores nodes higher the fewer matching pods their domains have. The weights are
// Kubernetes': the more domains, the more one pod counts. A node without the key of a constraint
// scores 0.
func (t try) topologySpread(fits []*candidate) []int64 {
	all := t.softConstraints()
	if len(all) == 0 {
		return nil
	}
	out := make([]int64, len(fits))
	var in []int
	for i, n := range fits {
		if len(t.soft) == 0 || t.hasKeys(n.node, corev1.ScheduleAnyway) {
			in = append(in, i)
		}
	}
	if len(in) == 0 {
		return out
	}
	raw := make([]float64, len(in))
	for _, s := range all {
		size := len(in)
		if !s.host {
			seen := map[string]bool{}
			for _, i := range in {
				seen[s.of(fits[i].info)] = true
			}
			size = len(seen)
		}
		weight := math.Log(float64(size + 2))
		for j, i := range in {
			raw[j] += float64(s.in[s.of(fits[i].info)])*weight + float64(s.skew-1)
		}
	}
	least, most := math.Round(slices.Min(raw)), math.Round(slices.Max(raw))
	for j, i := range in {
		if most == 0 {
			out[i] = 100
		} else {
			out[i] = int64(100 * (most + least - math.Round(raw[j])) / most)
		}
	}
	return out
}
