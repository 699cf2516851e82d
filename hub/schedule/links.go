package schedule

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"flotilla.dev/hub/state"
)

// links counts the placed pods that matter for a class's spread constraints, affinity and
// anti-affinity. A caller can add or remove a pod to see the effect.
type links struct {
	spread       []*spread
	near         []term           // required affinity
	by           []map[string]int // for each term of near: matching pods by value of the topology key
	found        int              // matching pods over all terms
	self         bool             // the class's own pods match near; then any node fits while no pod matches
	antiAffinity []term           // required anti-affinity
	away         map[domain]int   // number of pods that the class avoids, by domain
	avoidedBy    map[domain]int   // number of pods that avoid the class, by domain
	keys         map[string]bool  // topology keys of avoidedBy
}

// A domain is one value of one topology key.
type domain struct{ key, value string }

// A spread is a hard topology spread constraint with the number of pods in each domain.
type spread struct {
	corev1.TopologySpreadConstraint
	selector labels.Selector
	self     int               // 1 if the pod counts for its own constraint
	domain   map[string]string // domain of each node that counts
	in       map[string]int
	levels   map[int]int // number of domains by their number of pods
	least    int         // pods in the emptiest domain
}

// A term is a pod affinity term prepared for matching.
type term struct {
	selector   labels.Selector
	namespaces map[string]bool
	spaces     labels.Selector // selects namespaces; nil: none
	key        string
}

func (p *pass) term(owner *corev1.Pod, t corev1.PodAffinityTerm) term {
	out := term{selector: selectorOf(t.LabelSelector, t.MatchLabelKeys, t.MismatchLabelKeys, owner.Labels),
		key: t.TopologyKey, namespaces: map[string]bool{}}
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

// selectorOf adds the pod's values of matchLabelKeys and mismatchLabelKeys to a selector. An
// invalid selector matches nothing.
func selectorOf(s *metav1.LabelSelector, match, differ []string, own map[string]string) labels.Selector {
	if s == nil {
		return labels.Nothing()
	}
	if len(match)+len(differ) > 0 {
		s = s.DeepCopy()
		for _, k := range match {
			if v, ok := own[k]; ok {
				s.MatchExpressions = append(s.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpIn, Values: []string{v}})
			}
		}
		for _, k := range differ {
			if v, ok := own[k]; ok {
				s.MatchExpressions = append(s.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpNotIn, Values: []string{v}})
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

// link counts the placed pods that matter for the class.
func (k *class) link() {
	l := newLinks()
	for pod := range k.s.AntiAffinityPods() {
		l.repelled(k, pod, k.s.Node(pod.Spec.NodeName), 1)
	}
	if a := k.pod.Spec.Affinity; a != nil {
		k.neighbors(l, a)
	}
	for _, c := range k.pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			l.spread = append(l.spread, k.spreadOf(c))
		}
	}
	if len(l.spread)+len(l.near)+len(l.antiAffinity)+len(l.avoidedBy) > 0 {
		k.links = l
	}
}

func newLinks() *links {
	return &links{away: map[domain]int{}, avoidedBy: map[domain]int{}, keys: map[string]bool{}}
}

// linked counts one more placed pod. It returns whether nodes may stop fitting (forbids) or start
// to fit because of the pod.
func (k *class) linked(pod *corev1.Pod, n *corev1.Node) (forbids, allows bool) {
	if k.links == nil && !repels(pod) {
		return false, false
	}
	l := k.links
	if l == nil {
		l = newLinks()
	}
	forbids, allows = l.count(k, pod, n, 1)
	if forbids {
		k.links = l
	}
	return forbids, allows
}

// repels tells whether a pod has a required anti-affinity.
func repels(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	return a != nil && a.PodAntiAffinity != nil &&
		len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}

// count adds a placed pod (by 1) or removes it (by -1), and tells whether that can forbid or allow
// nodes. l and n may be nil.
func (l *links) count(k *class, pod *corev1.Pod, n *corev1.Node, by int) (forbids, allows bool) {
	if l == nil || n == nil {
		return false, false
	}
	forbids = l.repelled(k, pod, n, by)
	for _, sp := range l.spread {
		counts, raised := sp.count(k, pod, by)
		forbids, allows = forbids || counts, allows || raised
	}
	away, near := l.neighbor(k, pod, n, by)
	return forbids || away, allows || near
}

// repelled counts a placed pod whose anti-affinity selects the class.
func (l *links) repelled(k *class, pod *corev1.Pod, n *corev1.Node, by int) (hit bool) {
	if !repels(pod) || n == nil {
		return false
	}
	for _, raw := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if v, ok := n.Labels[raw.TopologyKey]; ok && k.selects(k.term(pod, raw), k.pod) {
			l.avoidedBy[domain{raw.TopologyKey, v}] += by
			l.keys[raw.TopologyKey], hit = true, true
		}
	}
	return hit
}

// neighbors counts the pods that the required affinity and anti-affinity select.
func (k *class) neighbors(l *links, a *corev1.Affinity) {
	if a.PodAffinity != nil {
		for _, raw := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			l.near, l.by = append(l.near, k.term(k.pod, raw)), append(l.by, map[string]int{})
		}
	}
	if a.PodAntiAffinity != nil {
		for _, raw := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			l.antiAffinity = append(l.antiAffinity, k.term(k.pod, raw))
		}
	}
	if len(l.near)+len(l.antiAffinity) == 0 {
		return
	}
	l.self = l.all(k, k.pod)
	for pod := range k.s.Pods("") {
		if pod.Spec.NodeName != "" && !state.Terminated(pod) {
			l.neighbor(k, pod, nil, 1)
		}
	}
}

// all tells whether every term of the required affinity selects the pod.
func (l *links) all(k *class, pod *corev1.Pod) bool {
	return len(l.near) > 0 && !slices.ContainsFunc(l.near, func(tm term) bool { return !k.selects(tm, pod) })
}

// neighbor counts a placed pod if a term selects it. n is the pod's node; nil: it is looked up if
// needed.
func (l *links) neighbor(k *class, pod *corev1.Pod, n *corev1.Node, by int) (away, near bool) {
	if len(l.near)+len(l.antiAffinity) == 0 {
		return false, false
	}
	value := func(key string) (string, bool) {
		if n == nil {
			if n = k.s.Node(pod.Spec.NodeName); n == nil {
				return "", false
			}
		}
		v, ok := n.Labels[key]
		return v, ok
	}
	if l.all(k, pod) {
		for i, tm := range l.near {
			if v, ok := value(tm.key); ok {
				near = near || l.found == 0 || l.by[i][v] == 0
				l.by[i][v] += by
				l.found += by
			}
		}
	}
	for _, tm := range l.antiAffinity {
		if !k.selects(tm, pod) {
			continue
		}
		if v, ok := value(tm.key); ok {
			l.away[domain{tm.key, v}] += by
			away = true
		}
	}
	return away, near
}

// spreadOf counts the pods in each domain of a constraint. A domain counts if it has an eligible
// node: the pod's affinity allows the node, the pod tolerates its taints if the constraint says so,
// and the node has the keys of all hard constraints.
func (k *class) spreadOf(c corev1.TopologySpreadConstraint) *spread {
	sp := &spread{
		TopologySpreadConstraint: c, selector: selectorOf(c.LabelSelector, c.MatchLabelKeys, nil, k.pod.Labels),
		domain: map[string]string{}, in: map[string]int{}, levels: map[int]int{},
	}
	if sp.selector.Matches(labels.Set(k.pod.Labels)) {
		sp.self = 1
	}
	for n := range k.s.Nodes() {
		if v, ok := n.Labels[c.TopologyKey]; ok && k.hasKeys(n, corev1.DoNotSchedule) && k.eligible(c, n) {
			sp.domain[n.Name] = v
			sp.in[v] = 0
		}
	}
	sp.levels[0] = len(sp.in)
	for pod := range k.s.Pods(k.pod.Namespace) {
		sp.count(k, pod, 1)
	}
	return sp
}

// count adds or removes a pod that the constraint counts, and updates the emptiest domain. raised
// tells whether the minimum has grown, so that other domains may take more pods.
func (sp *spread) count(k *class, pod *corev1.Pod, by int) (counts, raised bool) {
	v, ok := sp.domain[pod.Spec.NodeName]
	if counts = ok && pod.Namespace == k.pod.Namespace && pod.DeletionTimestamp == nil && !state.Terminated(pod) &&
		sp.selector.Matches(labels.Set(pod.Labels)); !counts {
		return false, false
	}
	before := sp.least
	sp.levels[sp.in[v]]--
	sp.in[v] += by
	sp.levels[sp.in[v]]++
	for sp.least = min(sp.least, sp.in[v]); sp.levels[sp.least] == 0; {
		sp.least++
	}
	return true, sp.least > before
}

// emptiest returns the number of pods in the emptiest domain: 0 while there are fewer domains than
// minDomains.
func (sp *spread) emptiest() int {
	if sp.MinDomains != nil && len(sp.in) < int(*sp.MinDomains) {
		return 0
	}
	return sp.least
}

// hasKeys tells whether a node has the topology keys of all hard (or all soft) constraints.
func (k *class) hasKeys(n *corev1.Node, kind corev1.UnsatisfiableConstraintAction) bool {
	for _, c := range k.pod.Spec.TopologySpreadConstraints {
		if _, ok := n.Labels[c.TopologyKey]; !ok && c.WhenUnsatisfiable == kind {
			return false
		}
	}
	return true
}

func (k *class) eligible(c corev1.TopologySpreadConstraint, n *corev1.Node) bool {
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if ok, err := k.fits.Match(n); err != nil || !ok {
			return false
		}
	}
	if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		for i := range n.Spec.Taints {
			if taint := &n.Spec.Taints[i]; taint.Effect != corev1.TaintEffectPreferNoSchedule &&
				!state.Tolerates(k.pod.Spec.Tolerations, taint) {
				return false
			}
		}
	}
	return true
}

// against returns why other pods forbid the node, Fits if they do not.
func (l *links) against(n *corev1.Node) Reason {
	for _, sp := range l.spread {
		if kind := sp.against(n); kind != Fits {
			return kind
		}
	}
	for i := range l.near {
		if l.lacksAffinity(i, n) {
			return PodAffinity
		}
	}
	for _, tm := range l.antiAffinity {
		if l.hasAntiAffinity(tm, n) {
			return PodAntiAffinity
		}
	}
	for key := range l.keys {
		if l.repelledByOthers(key, n) {
			return Repelled
		}
	}
	return Fits
}

// against returns why the constraint forbids the node, Fits if it does not.
func (sp *spread) against(n *corev1.Node) Reason {
	v, ok := n.Labels[sp.TopologyKey]
	switch {
	case !ok:
		return TopologyLabel
	case sp.in[v]+sp.self-sp.emptiest() > int(sp.MaxSkew):
		return TopologySpread
	}
	return Fits
}

// lacksAffinity tells whether the node's domain has no pod that the term requires.
func (l *links) lacksAffinity(i int, n *corev1.Node) bool {
	v, ok := n.Labels[l.near[i].key]
	return !ok || l.by[i][v] == 0 && (l.found > 0 || !l.self)
}

// hasAntiAffinity tells whether the node's domain has a pod that the term forbids.
func (l *links) hasAntiAffinity(tm term, n *corev1.Node) bool {
	v, ok := n.Labels[tm.key]
	return ok && l.away[domain{tm.key, v}] > 0
}

// repelledByOthers tells whether the node's domain has a pod whose anti-affinity forbids the class.
func (l *links) repelledByOthers(key string, n *corev1.Node) bool {
	v, ok := n.Labels[key]
	return ok && l.avoidedBy[domain{key, v}] > 0
}
