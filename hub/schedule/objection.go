package schedule

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"flotilla.dev/hub/state"
)

// An Objection is one reason why a pod does not fit a node. The comments name the reasons that set
// a field.
type Objection struct {
	Reason Reason
	Taint  corev1.Taint                   // NodeNotReady, NodePressure, UntoleratedTaint
	Label  corev1.NodeSelectorRequirement // NodeAffinity; without Key the requirement can match no node

	Resource   corev1.ResourceName // InsufficientResource, TooManyPods
	Want, Free quantity
	None       bool // the node does not have the resource at all

	Port  state.HostPort // NodePorts
	Key   string         // the topology key
	Where []string       // the possible nodes

	// Ways are alternative changes that remove the objection. Only a Candidate has them.
	Ways []Way

	label int // number of the label, from 1
}

// An objectionKey is the same for equal objections of different nodes.
type objectionKey struct {
	kind      Reason
	of, value string
	n         int
}

func (o *Objection) key() objectionKey {
	switch k := (objectionKey{kind: o.Reason, of: o.Key}); o.Reason {
	case NodeNotReady, NodePressure, UntoleratedTaint:
		k.of, k.value, k.n = o.Taint.Key, o.Taint.Value, len(o.Taint.Effect)
		return k
	case NodeAffinity:
		k.n = o.label
		return k
	case InsufficientResource:
		k.of = string(o.Resource)
		return k
	case NodePorts:
		k.of, k.value, k.n = o.Port.IP, string(o.Port.Protocol), int(o.Port.Port)
		return k
	default:
		return k
	}
}

// sortKey defines the order of equally frequent objections.
func (o *Objection) sortKey() string { return fmt.Sprint(o.key()) }

// isReservedKey tells whether only the hub, the device or Kubernetes sets labels with the key.
func isReservedKey(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	return ok && (domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || domain == "flotilla.dev" ||
		strings.HasSuffix(domain, ".flotilla.dev"))
}

// reasonOf returns the reason for a taint.
func reasonOf(t *corev1.Taint) Reason {
	switch {
	case t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable:
		return NodeNotReady
	case isReservedKey(t.Key):
		return NodePressure
	}
	return UntoleratedTaint
}

func (p *pass) infoOf(node *corev1.Node) *info {
	if n := p.infos[node.Name]; n != nil {
		return n
	}
	return &info{node: node, usage: p.s.Usage(node.Name)}
}

// objections adds every objection of a node to the pod. It adds at least one if against returns a
// reason, and none otherwise.
func (t try) objections(l labelRequirements, node *corev1.Node, all []Objection) []Objection {
	cordoned := t.cordoned(node)
	if cordoned {
		all = append(all, Objection{Reason: NodeUnschedulable})
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		// this taint is part of the cordon
		if t.repelledByTaint(taint) && (!cordoned || taint.Key != corev1.TaintNodeUnschedulable) {
			reason := reasonOf(taint)
			if taint.Key == corev1.TaintNodeUnschedulable {
				reason = NodeUnschedulable
			}
			all = append(all, Objection{Reason: reason, Taint: *taint})
		}
	}
	if ok, err := t.fits.Match(node); err != nil || !ok {
		all = l.missing(node, all)
	}
	n := t.infoOf(node)
	usage := t.withNominated(n)
	for _, port := range t.ports {
		if clash(usage.Ports, []state.HostPort{port}) {
			all = append(all, Objection{Reason: NodePorts, Port: port})
		}
	}
	all = t.shortages(node, usage, all)
	before := len(all)
	if t.links != nil {
		all = t.links.objections(node, all)
	}
	if len(all) == before {
		t.withNominatedLinks(node, func(l *links) { all = l.objections(node, all) })
	}
	if t.claims.used(node.Name, nil) {
		all = append(all, Objection{Reason: VolumeInUse})
	}
	if t.claims.elsewhere(node.Name) {
		all = append(all, Objection{Reason: VolumeElsewhere, Where: sorted(t.claims.nodes)})
	}
	return all
}

func (t try) shortages(node *corev1.Node, usage state.Usage, all []Objection) []Objection {
	for _, r := range t.missingResources(node, usage) {
		o := Objection{Reason: InsufficientResource, Resource: corev1.ResourceName(r.object)}
		if r.Reason == TooManyPods {
			o.Reason, o.Resource = TooManyPods, corev1.ResourcePods
			o.Want.Set(1)
			o.Free = node.Status.Allocatable[corev1.ResourcePods].DeepCopy()
			o.Free.Sub(*resource.NewQuantity(usage.Pods, resource.DecimalSI))
			all = append(all, o)
			continue
		}
		at := slices.IndexFunc(t.needs, func(n need) bool { return n.name == o.Resource })
		o.Want = t.needs[at].amount
		free, ok := freeOf(node, usage, o.Resource)
		o.Free, o.None = free, !ok
		all = append(all, o)
	}
	return all
}

func (l *links) objections(n *corev1.Node, all []Objection) []Objection {
	for _, sp := range l.spread {
		switch sp.against(n) {
		case TopologyLabel:
			all = append(all, Objection{Reason: TopologyLabel, Key: sp.TopologyKey})
		case TopologySpread:
			all = append(all, Objection{Reason: TopologySpread, Key: sp.TopologyKey})
		}
	}
	for i, tm := range l.near {
		if l.lacksAffinity(i, n) {
			all = append(all, Objection{Reason: PodAffinity, Key: tm.key})
		}
	}
	for _, tm := range l.antiAffinity {
		if l.hasAntiAffinity(tm, n) {
			all = append(all, Objection{Reason: PodAntiAffinity, Key: tm.key})
		}
	}
	for key := range l.keys {
		if l.repelledByOthers(key, n) {
			all = append(all, Objection{Reason: Repelled, Key: key})
		}
	}
	return all
}

// labelRequirements are the single requirements of a pod on node labels.
type labelRequirements struct {
	all      []label
	selector []int   // the requirements of the node selector; all must match
	terms    [][]int // requirements of each term of the required node affinity; one term must match
}

type label struct {
	corev1.NodeSelectorRequirement
	holds *nodeaffinity.NodeSelector // nil: the affinity is invalid and never matches
}

func labelRequirementsOf(pod *corev1.Pod) (l labelRequirements) {
	add := func(r corev1.NodeSelectorRequirement, field bool) int {
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}}
		if field {
			term = corev1.NodeSelectorTerm{MatchFields: term.MatchExpressions}
		}
		holds, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}})
		if err != nil {
			holds = nil
		}
		l.all = append(l.all, label{r, holds})
		return len(l.all) - 1
	}
	keys := make([]string, 0, len(pod.Spec.NodeSelector))
	for k := range pod.Spec.NodeSelector {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		l.selector = append(l.selector,
			add(corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn,
				Values: []string{pod.Spec.NodeSelector[k]}}, false))
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			var of []int
			for _, r := range term.MatchExpressions {
				of = append(of, add(r, false))
			}
			for _, r := range term.MatchFields {
				of = append(of, add(r, true))
			}
			l.terms = append(l.terms, of)
		}
	}
	return l
}

// missing adds the requirements that a node does not meet. Of the affinity terms it uses the one
// with the fewest missing requirements.
func (l labelRequirements) missing(n *corev1.Node, all []Objection) []Objection {
	before := len(all)
	lacks := func(i int) bool { return l.all[i].holds == nil || !l.all[i].holds.Match(n) }
	add := func(i int) {
		o := Objection{Reason: NodeAffinity, Label: l.all[i].NodeSelectorRequirement, label: i + 1}
		if o.Label.Key == metav1.ObjectNameField {
			o.Reason, o.Where = NodeName, o.Label.Values
		}
		all = append(all, o)
	}
	for _, i := range l.selector {
		if lacks(i) {
			add(i)
		}
	}
	best, least := -1, 0
	for at, of := range l.terms {
		n := 0
		for _, i := range of {
			if lacks(i) {
				n++
			}
		}
		if len(of) > 0 && (best < 0 || n < least) {
			best, least = at, n
		}
	}
	if best >= 0 {
		for _, i := range l.terms[best] {
			if lacks(i) {
				add(i)
			}
		}
	}
	if len(all) == before {
		all = append(all, Objection{Reason: NodeAffinity})
	}
	return all
}
