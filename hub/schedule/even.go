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

// A soft is one soft spread constraint with the pods per domain.
type soft struct {
	of   func(*corev1.Node) string // the domain of a node
	in   map[string]int
	skew int32
	host bool // every node is a domain of its own
}

// like says where the placed pods of one controller are.
type like struct{ nodes, sites map[string]int }

func counts(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && !state.Terminated(pod)
}

// likeOf counts the pods of a controller, once a pass.
func (p *pass) likeOf(controller types.UID) *like {
	l := p.like[controller]
	if l == nil {
		l = &like{map[string]int{}, map[string]int{}}
		for o := range p.s.Owned(controller, state.Pods) {
			p.place(l, o.(*corev1.Pod), 1)
		}
		p.like[controller] = l
	}
	return l
}

func (p *pass) place(l *like, pod *corev1.Pod, by int) {
	if n := p.s.Node(pod.Spec.NodeName); n != nil && counts(pod) {
		l.nodes[n.Name] += by
		l.sites[state.SiteOf(n)] += by
	}
}

// recount keeps the counts up when the pass is about to change a pod.
func (p *pass) recount(c state.Change) {
	ref := metav1.GetControllerOfNoCopy(c.Object)
	if ref == nil || p.like[ref.UID] == nil {
		return
	}
	if old := p.s.Pod(c.Object.GetNamespace(), c.Object.GetName()); old != nil {
		p.place(p.like[ref.UID], old, -1)
	}
	if !c.Delete {
		p.place(p.like[ref.UID], c.Object.(*corev1.Pod), 1)
	}
}

// softs returns the pod's own soft constraints or, if it has no constraints at
// all, Kubernetes' default ones, which spread the pods of one controller over
// nodes (skew 3) and zones (skew 5).
func (t *try) softs() (all []soft) {
	if len(t.pod.Spec.TopologySpreadConstraints) == 0 {
		ref := metav1.GetControllerOfNoCopy(t.pod)
		if ref == nil || t.only != nil {
			return nil
		}
		l := t.likeOf(ref.UID)
		return []soft{{func(n *corev1.Node) string { return n.Name }, l.nodes, 3, true}, {state.SiteOf, l.sites, 5, false}}
	}
	for _, c := range t.pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			continue
		}
		sel := selectorOf(c.LabelSelector, c.MatchLabelKeys, nil, t.pod.Labels)
		s := soft{func(n *corev1.Node) string { return n.Labels[c.TopologyKey] }, map[string]int{}, c.MaxSkew, c.TopologyKey == corev1.LabelHostname}
		for pod := range t.s.Pods(t.pod.Namespace) {
			if n := t.s.Node(pod.Spec.NodeName); n != nil && counts(pod) && sel.Matches(labels.Set(pod.Labels)) {
				s.in[s.of(n)]++
			}
		}
		all = append(all, s)
	}
	return all
}

// evenness scores nodes by how few of the pod's like are in the same domains, in
// Kubernetes' measure: the more domains, the more a pod in one of them weighs.
func (t *try) evenness(fits []*info) []int64 {
	all := t.softs()
	if len(all) == 0 {
		return nil
	}
	raw := make([]float64, len(fits))
	for _, s := range all {
		size := len(fits)
		if !s.host {
			seen := map[string]bool{}
			for _, n := range fits {
				seen[s.of(n.node)] = true
			}
			size = len(seen)
		}
		weight := math.Log(float64(size + 2))
		for i, n := range fits {
			raw[i] += float64(s.in[s.of(n.node)])*weight + float64(s.skew-1)
		}
	}
	least, most := math.Round(slices.Min(raw)), math.Round(slices.Max(raw))
	out := make([]int64, len(fits))
	for i := range raw {
		if most == 0 {
			out[i] = 100
		} else {
			out[i] = int64(100 * (most + least - math.Round(raw[i])) / most)
		}
	}
	return out
}
