package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"flotilla.dev/hub/state"
)

// placedOn returns the placed, unfinished pods with their nodes.
func placedOn(s state.Snapshot) map[*corev1.Pod]*corev1.Node {
	out := map[*corev1.Pod]*corev1.Node{}
	for p := range s.Pods("") {
		if n := s.Node(p.Spec.NodeName); n != nil && p.Status.Phase != corev1.PodSucceeded &&
			p.Status.Phase != corev1.PodFailed {
			out[p] = n
		}
	}
	return out
}

func plainSelector(sel *metav1.LabelSelector, match, differ []string, own map[string]string) labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(sel)
	if err != nil {
		panic(err)
	}
	for i, keys := range [][]string{match, differ} {
		for _, k := range keys {
			if v, ok := own[k]; ok {
				op := metav1.LabelSelectorOpIn
				if i == 1 {
					op = metav1.LabelSelectorOpNotIn
				}
				more, _ := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: k, Operator: op, Values: []string{v}}}})
				r, _ := more.Requirements()
				s = s.Add(r...)
			}
		}
	}
	return s
}

// meant tells whether a term of a pod selects another pod.
func meant(s state.Snapshot, owner *corev1.Pod, t corev1.PodAffinityTerm, other *corev1.Pod) bool {
	if !plainSelector(t.LabelSelector, t.MatchLabelKeys, t.MismatchLabelKeys,
		owner.Labels).Matches(labels.Set(other.Labels)) {
		return false
	}
	if slices.Contains(t.Namespaces, other.Namespace) {
		return true
	}
	if t.NamespaceSelector == nil {
		return len(t.Namespaces) == 0 && owner.Namespace == other.Namespace
	}
	ns := s.Get(state.Key{Kind: state.Namespaces, Name: other.Namespace})
	sel, _ := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	return ns != nil && sel.Matches(labels.Set(ns.GetLabels()))
}

func matchesSelector(p *corev1.Pod, n *corev1.Node) bool {
	for k, v := range p.Spec.NodeSelector {
		if n.Labels[k] != v {
			return false
		}
	}
	return true
}

func tolerates(p *corev1.Pod, n *corev1.Node) bool {
	for _, tn := range n.Spec.Taints {
		if tn.Effect != corev1.TaintEffectPreferNoSchedule && len(p.Spec.Tolerations) == 0 { // pods with tolerations tolerate every taint in this test
			return false
		}
	}
	return true
}

// mayBeOn implements Kubernetes' rules a second time, for a fleet without nominated pods. It
// returns "" if the pod fits the node, otherwise the reason.
func mayBeOn(s state.Snapshot, p *corev1.Pod, n *corev1.Node) string {
	all := placedOn(s)
	if !tolerates(p, n) {
		return "taint"
	}
	if !matchesSelector(p, n) {
		return "selector"
	}
	cpu := p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
	for o, at := range all {
		if at != n {
			continue
		}
		cpu += o.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		for _, x := range o.Spec.Containers[0].Ports {
			for _, y := range p.Spec.Containers[0].Ports {
				if x.HostPort == y.HostPort {
					return "port"
				}
			}
		}
	}
	if cpu > n.Status.Allocatable.Cpu().MilliValue() && p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() > 0 {
		return "cpu"
	}
	for name := range state.ClaimsOf(p) { // the claims are bound
		c := s.Claim(p.Namespace, name)
		if state.NodeOfVolume(s.Volume(c.Spec.VolumeName)) != n.Name {
			return "volume"
		}
		for o := range all {
			if slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) &&
				slices.Contains(slices.Collect(state.ClaimsOf(o)), name) {
				return "used"
			}
		}
	}
	var hard []corev1.TopologySpreadConstraint
	for _, c := range p.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			hard = append(hard, c)
		}
	}
	for _, c := range hard {
		sel := plainSelector(c.LabelSelector, c.MatchLabelKeys, nil, p.Labels)
		in := map[string]int{}
		for m := range s.Nodes() {
			every := true
			for _, h := range hard {
				if _, ok := m.Labels[h.TopologyKey]; !ok {
					every = false
				}
			}
			if !every || (c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == "Honor") && !matchesSelector(p, m) ||
				c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == "Honor" && !tolerates(p, m) {
				continue
			}
			v := m.Labels[c.TopologyKey]
			in[v] += 0
			for o, at := range all {
				if at == m && o.Namespace == p.Namespace && o.DeletionTimestamp == nil && sel.Matches(labels.Set(o.Labels)) {
					in[v]++
				}
			}
		}
		least := 0
		if c.MinDomains == nil && len(in) > 0 || c.MinDomains != nil && len(in) >= int(*c.MinDomains) {
			first := true
			for _, k := range in {
				if first || k < least {
					least, first = k, false
				}
			}
		}
		v, ok := n.Labels[c.TopologyKey]
		self := 0
		if sel.Matches(labels.Set(p.Labels)) {
			self = 1
		}
		if !ok || in[v]+self-least > int(c.MaxSkew) {
			return "spread"
		}
	}
	same := func(a, b *corev1.Node, key string) bool {
		x, ok := a.Labels[key]
		y, too := b.Labels[key]
		return ok && too && x == y
	}
	for o, at := range all {
		if a := o.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
			for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				if meant(s, o, term, p) && same(at, n, term.TopologyKey) {
					return "repelled"
				}
			}
		}
	}
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			for o, at := range all {
				if meant(s, p, term, o) && same(at, n, term.TopologyKey) {
					return "unwelcome"
				}
			}
		}
	}
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil &&
		len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		terms := a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		every := func(o *corev1.Pod) bool {
			return !slices.ContainsFunc(terms, func(tm corev1.PodAffinityTerm) bool { return !meant(s, p, tm, o) })
		}
		matched, near := false, true
		for _, term := range terms {
			found := false
			if _, ok := n.Labels[term.TopologyKey]; !ok {
				return "neighbors"
			}
			for o, at := range all {
				if every(o) {
					_, has := at.Labels[term.TopologyKey]
					matched = matched || has
					found = found || same(at, n, term.TopologyKey)
				}
			}
			near = near && found
		}
		if !near && (matched || !every(p)) {
			return "neighbors"
		}
	}
	return ""
}

// FuzzPlacementsFollowTheRules changes a fleet at random. It checks every placement and every
// pending pod against mayBeOn.
func FuzzPlacementsFollowTheRules(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 7))
		fl := newFleet(t)
		one := func(of ...string) string { return of[r.IntN(len(of))] }
		spaces := []string{"default", "shop", "lab"}
		for i, name := range spaces {
			fl.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
				Labels: map[string]string{"team": fmt.Sprint(i % 2)}}})
		}
		sel := func() *metav1.LabelSelector {
			if r.IntN(4) == 0 {
				return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app",
					Operator: metav1.LabelSelectorOpNotIn, Values: []string{one("a", "b")}}}}
			}
			return &metav1.LabelSelector{MatchLabels: map[string]string{"app": one("a", "b", "c")}}
		}
		keys := func() []string {
			if r.IntN(3) == 0 {
				return []string{one("v", "none")}
			}
			return nil
		}
		term := func() (tm corev1.PodAffinityTerm) {
			tm = corev1.PodAffinityTerm{LabelSelector: sel(), TopologyKey: one(corev1.LabelHostname, corev1.LabelTopologyZone,
				"rack"), MatchLabelKeys: keys(), MismatchLabelKeys: keys()}
			switch r.IntN(5) {
			case 0:
				tm.Namespaces = []string{one(spaces...)}
			case 1:
				tm.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": one("0", "1")}}
			case 2:
				tm.NamespaceSelector = &metav1.LabelSelector{}
			}
			return tm
		}
		newNode := func(name string) *corev1.Node {
			n := node(name, one("x", "y", "z"))
			if r.IntN(3) > 0 {
				n.Labels["rack"] = one("1", "2")
			}
			if r.IntN(4) == 0 {
				delete(n.Labels, corev1.LabelTopologyZone)
			}
			if r.IntN(3) == 0 {
				n.Labels["disk"] = "ssd"
			}
			if r.IntN(4) == 0 {
				taint("k", "v", corev1.TaintEffectNoSchedule)(n)
			}
			n.Status.Allocatable[corev1.ResourceCPU] = list(fmt.Sprint(2+r.IntN(4)), "")[corev1.ResourceCPU]
			return n
		}
		newPod := func(space, name string) *corev1.Pod {
			p := pod(name, asks(fmt.Sprintf("%dm", 100*r.IntN(12)), ""))
			p.Namespace, p.UID = space, typesUID(space+name, fl.now.Second())
			p.CreationTimestamp = metav1.NewTime(fl.now)
			p.Labels = map[string]string{"app": one("a", "b", "c"), "v": one("1", "2")}
			if r.IntN(3) == 0 {
				tolerate(corev1.Toleration{Operator: corev1.TolerationOpExists})(p)
			}
			if r.IntN(5) == 0 {
				p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
			}
			if r.IntN(8) == 0 {
				hostPort("", "TCP", 80)(p)
			}
			for range r.IntN(3) {
				switch r.IntN(3) {
				case 0:
					affine(func(a *corev1.Affinity) {
						if a.PodAntiAffinity == nil {
							a.PodAntiAffinity = &corev1.PodAntiAffinity{}
						}
						a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term())
					})(p)
				case 1:
					affine(func(a *corev1.Affinity) {
						if a.PodAffinity == nil {
							a.PodAffinity = &corev1.PodAffinity{}
						}
						a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term())
					})(p)
				default:
					c := corev1.TopologySpreadConstraint{MaxSkew: int32(1 + r.IntN(2)), TopologyKey: one(corev1.LabelHostname,
						corev1.LabelTopologyZone, "rack"),
						WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: sel(), MatchLabelKeys: keys()}
					if r.IntN(3) == 0 {
						c.MinDomains = new(int32(1 + r.IntN(4)))
					}
					policy := []corev1.NodeInclusionPolicy{corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore}
					if r.IntN(2) == 0 {
						c.NodeTaintsPolicy = &policy[r.IntN(2)]
					}
					if r.IntN(2) == 0 {
						c.NodeAffinityPolicy = &policy[r.IntN(2)]
					}
					p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
				}
			}
			return p
		}
		for step := range 40 {
			for range 1 + r.IntN(4) {
				fl.now = fl.now.Add(time.Duration(r.IntN(3)) * time.Second)
				if name := one(names("n", 6)...); r.IntN(6) == 0 {
					if n := fl.s.Node(name); n == nil {
						fl.put(newNode(name))
					} else if r.IntN(3) == 0 {
						fl.removeNode(name)
					} else {
						next := newNode(name)
						next.ResourceVersion = n.ResourceVersion
						fl.put(next)
					}
					continue
				}
				space, name := one(spaces...), one(names("p", 8)...)
				switch p := fl.s.Pod(space, name); {
				case p == nil:
					fl.put(newPod(space, name))
				case r.IntN(4) == 0:
					fl.apply(state.Remove(p, ""))
				case r.IntN(6) == 0:
					p = p.DeepCopy()
					p.Status.Phase = corev1.PodSucceeded
					fl.put(p)
				case r.IntN(6) == 0 && p.Spec.NodeName != "":
					p = p.DeepCopy()
					p.DeletionTimestamp = &metav1.Time{Time: fl.now}
					fl.put(p)
				case r.IntN(6) == 0:
					p = p.DeepCopy()
					p.Labels["app"] = one("a", "b", "c")
					fl.put(p)
				case r.IntN(20) == 0:
					fl.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space,
						Labels: map[string]string{"team": one("0", "1")}}})
				}
			}
			first, at := len(fl.changes), fl.s
			fl.rest()
			for _, c := range fl.changes[first:] {
				p, _ := c.Object.(*corev1.Pod)
				if p == nil {
					continue
				}
				if was := at.Pod(p.Namespace, p.Name); was != nil && was.Spec.NodeName == "" && p.Spec.NodeName != "" {
					if why := mayBeOn(at, was, at.Node(p.Spec.NodeName)); why != "" {
						t.Fatalf("seed %d step %d: %s/%s is placed on %s against the rule %s", seed, step, p.Namespace, p.Name,
							p.Spec.NodeName, why)
					}
				}
				at, _ = state.Apply(at, []state.Change{c})
			}
			fl.quiet()
			for p := range fl.s.Pods("") {
				if !waits(p) {
					continue
				}
				for n := range fl.s.Nodes() {
					if mayBeOn(fl.s, p, n) == "" {
						t.Fatalf("seed %d step %d: %s/%s waits, but fits %s: %v", seed, step, p.Namespace, p.Name, n.Name,
							state.PodCondition(p, corev1.PodScheduled))
					}
				}
			}
		}
	})
}
