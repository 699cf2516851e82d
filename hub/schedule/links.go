package schedule

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"flotilla.dev/hub/state"
)

// links is what a pod must have to do with others: spread among its like, near
// to some, away from others.
type links struct {
	spread []*spread
	near   []map[string]int // per required affinity term: values of its key that have a match
	nearBy []string         // the terms' keys
	alone  bool             // nobody matches the affinity yet, and the pod itself does: any node will do
	away   map[place]bool   // where a pod is that this one avoids
	shun   map[place]bool   // where a pod is that avoids this one
}

// A place is one value of one topology key.
type place struct{ key, value string }

// A spread is one topology spread constraint with the pods per domain.
type spread struct {
	corev1.TopologySpreadConstraint
	self  int // 1 if the pod counts for its own constraint
	least int // pods in the emptiest domain
	in    map[string]int
}

// A term is a pod affinity term, ready to be matched.
type term struct {
	selector   labels.Selector
	namespaces map[string]bool
	spaces     labels.Selector // of namespaces, nil: none
	key        string
}

func (p *pass) term(owner *corev1.Pod, t corev1.PodAffinityTerm) term {
	out := term{selector: selectorOf(t.LabelSelector, t.MatchLabelKeys, t.MismatchLabelKeys, owner.Labels), key: t.TopologyKey, namespaces: map[string]bool{}}
	for _, ns := range t.Namespaces {
		out.namespaces[ns] = true
	}
	if t.NamespaceSelector != nil {
		out.spaces, _ = metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	} else if len(t.Namespaces) == 0 {
		out.namespaces[owner.Namespace] = true
	}
	return out
}

// selectorOf joins a selector with the pod's own values of the keys to match, and
// to differ in. One that cannot be read selects nothing.
func selectorOf(s *metav1.LabelSelector, match, differ []string, own map[string]string) labels.Selector {
	if s == nil {
		return labels.Nothing()
	}
	if len(match)+len(differ) > 0 {
		s = s.DeepCopy()
		for _, k := range match {
			if v, ok := own[k]; ok {
				s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpIn, Values: []string{v}})
			}
		}
		for _, k := range differ {
			if v, ok := own[k]; ok {
				s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpNotIn, Values: []string{v}})
			}
		}
	}
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return sel
}

func (p *pass) selects(t term, pod *corev1.Pod) bool {
	if !t.selector.Matches(labels.Set(pod.Labels)) {
		return false
	}
	if t.namespaces[pod.Namespace] {
		return true
	}
	if t.spaces == nil {
		return false
	}
	ns := p.s.Get(state.Key{Kind: state.Namespaces, Name: pod.Namespace})
	return ns != nil && t.spaces.Matches(labels.Set(ns.GetLabels()))
}

// repels tells whether a pod keeps others away from where it is.
func repels(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	return a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}

// repellers returns the placed pods that keep others away. They are looked up
// once a pass.
func (p *pass) repellers() []*corev1.Pod {
	if p.repelling == nil {
		p.repelling = []*corev1.Pod{}
		for pod := range p.s.Pods("") {
			if pod.Spec.NodeName != "" && repels(pod) {
				p.repelling = append(p.repelling, pod)
			}
		}
	}
	return p.repelling
}

// link looks up where those are that matter to the pod.
func (t *try) link() *links {
	l := &links{away: map[place]bool{}, shun: map[place]bool{}}
	for _, pod := range t.repellers() {
		if state.Terminated(pod) {
			continue
		}
		n := t.s.Node(pod.Spec.NodeName)
		for _, raw := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			if n != nil && t.selects(t.term(pod, raw), t.pod) {
				if v, ok := n.Labels[raw.TopologyKey]; ok {
					l.shun[place{raw.TopologyKey, v}] = true
				}
			}
		}
	}
	if a := t.pod.Spec.Affinity; a != nil {
		t.neighbors(l, a)
	}
	for _, c := range t.pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			l.spread = append(l.spread, t.spreadOf(c))
		}
	}
	if len(l.spread)+len(l.nearBy)+len(l.away)+len(l.shun) == 0 {
		return nil
	}
	return l
}

// neighbors looks up the pods that the required affinity and anti-affinity select.
func (t *try) neighbors(l *links, a *corev1.Affinity) {
	var near, away []term
	if a.PodAffinity != nil {
		for _, raw := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			near = append(near, t.term(t.pod, raw))
			l.nearBy, l.near = append(l.nearBy, raw.TopologyKey), append(l.near, map[string]int{})
		}
	}
	if a.PodAntiAffinity != nil {
		for _, raw := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			away = append(away, t.term(t.pod, raw))
		}
	}
	if len(near)+len(away) == 0 {
		return
	}
	all := func(pod *corev1.Pod) bool {
		return len(near) > 0 && !slices.ContainsFunc(near, func(tm term) bool { return !t.selects(tm, pod) })
	}
	found := false
	for pod := range t.s.Pods("") {
		if pod.Spec.NodeName == "" || state.Terminated(pod) {
			continue
		}
		n := t.s.Node(pod.Spec.NodeName)
		if n == nil {
			continue
		}
		if all(pod) {
			for i, key := range l.nearBy {
				if v, ok := n.Labels[key]; ok {
					l.near[i][v]++
					found = true
				}
			}
		}
		for _, tm := range away {
			if v, ok := n.Labels[tm.key]; ok && t.selects(tm, pod) {
				l.away[place{tm.key, v}] = true
			}
		}
	}
	l.alone = !found && all(t.pod)
}

// spreadOf counts the pods per domain of a constraint. A domain is one only if it
// has a node that the pod's own affinity allows (and, if the constraint says so,
// whose taints it tolerates).
func (t *try) spreadOf(c corev1.TopologySpreadConstraint) *spread {
	sel := selectorOf(c.LabelSelector, c.MatchLabelKeys, nil, t.pod.Labels)
	sp := &spread{TopologySpreadConstraint: c, in: map[string]int{}}
	if sel.Matches(labels.Set(t.pod.Labels)) {
		sp.self = 1
	}
	counted := map[string]string{}
	for n := range t.s.Nodes() {
		v, ok := n.Labels[c.TopologyKey]
		if !ok || !t.eligible(c, n) {
			continue
		}
		counted[n.Name] = v
		sp.in[v] += 0
	}
	for pod := range t.s.Pods(t.pod.Namespace) {
		if v, ok := counted[pod.Spec.NodeName]; ok && pod.DeletionTimestamp == nil && !state.Terminated(pod) && sel.Matches(labels.Set(pod.Labels)) {
			sp.in[v]++
		}
	}
	sp.least = math.MaxInt
	for _, n := range sp.in {
		sp.least = min(sp.least, n)
	}
	if c.MinDomains != nil && len(sp.in) < int(*c.MinDomains) || len(sp.in) == 0 {
		sp.least = 0
	}
	return sp
}

func (t *try) eligible(c corev1.TopologySpreadConstraint, n *corev1.Node) bool {
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if ok, err := t.fits.Match(n); err != nil || !ok {
			return false
		}
	}
	if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		for i := range n.Spec.Taints {
			if taint := &n.Spec.Taints[i]; taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(t.pod.Spec.Tolerations, taint) {
				return false
			}
		}
	}
	return true
}

// against returns why others keep the pod off the node, "" if they do not.
func (l *links) against(n *corev1.Node) string {
	for _, sp := range l.spread {
		v, ok := n.Labels[sp.TopologyKey]
		if !ok {
			return unlabeled
		}
		if sp.in[v]+sp.self-sp.least > int(sp.MaxSkew) {
			return wrongSpread
		}
	}
	for i, key := range l.nearBy {
		v, ok := n.Labels[key]
		if !ok || l.near[i][v] == 0 && !l.alone {
			return wrongNeighbors
		}
	}
	for at := range l.away {
		if n.Labels[at.key] == at.value && at.value != "" {
			return unwelcome
		}
	}
	for at := range l.shun {
		if n.Labels[at.key] == at.value && at.value != "" {
			return repelled
		}
	}
	return ""
}
