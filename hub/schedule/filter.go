package schedule

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"

	"flotilla.dev/hub/state"
)

type quantity = resource.Quantity

// info is a node with the usage of its pods; nominated pods do not count.
type info struct {
	node  *corev1.Node
	usage state.Usage

	// The scores need these fields, so they are set only for nodes that fit.
	site                string
	hasCPU, hasMemory   int64
	usedCPU, usedMemory int64
}

// against returns why a node does not fit, nothing if it fits. The filters run in Kubernetes'
// order, and the first refusal counts. The result is valid until the next call.
func (t try) against(node *corev1.Node) (n *info, why []refusal) {
	p := t.pass
	if t.claims.problem != "" {
		return nil, p.oneReason(refusal{NoVolume, t.claims.problem, ""})
	}
	if t.cordoned(node) {
		return nil, p.oneReason(refusal{Reason: NodeUnschedulable})
	}
	for i := range node.Spec.Taints {
		if taint := &node.Spec.Taints[i]; t.repelledByTaint(taint) {
			return nil, p.oneReason(refusal{reasonOf(taint), taint.Key, taint.Value})
		}
	}
	if ok, err := t.fits.Match(node); err != nil || !ok {
		return nil, p.oneReason(refusal{Reason: NodeAffinity})
	}
	n = p.infoOf(node)
	if why := t.blockedByPods(n); len(why) > 0 {
		return nil, why
	}
	if kind := t.claims.against(node.Name); kind != Fits {
		return nil, p.oneReason(refusal{Reason: kind})
	}
	return n, nil
}

// cordoned tells whether a node is cordoned and the pod does not tolerate that.
func (t try) cordoned(node *corev1.Node) bool {
	return node.Spec.Unschedulable && !state.Tolerates(t.pod.Spec.Tolerations,
		&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
}

// repelledByTaint tells whether the pod does not tolerate the taint.
func (t try) repelledByTaint(taint *corev1.Taint) bool {
	return taint.Effect != corev1.TaintEffectPreferNoSchedule && !state.Tolerates(t.pod.Spec.Tolerations, taint)
}

// blockedByPods returns the reasons that placed pods cause. Preemption may remove these pods.
func (t try) blockedByPods(n *info) []refusal {
	usage := t.withNominated(n)
	if clash(usage.Ports, t.ports) {
		return t.oneReason(refusal{Reason: NodePorts})
	}
	if reasons := t.missingResources(n.node, usage); len(reasons) > 0 {
		return reasons
	}
	kind := Fits
	if t.links != nil {
		kind = t.links.against(n.node)
	}
	if kind == Fits {
		t.withNominatedLinks(n.node, func(l *links) { kind = l.against(n.node) })
	}
	if kind != Fits {
		return t.oneReason(refusal{Reason: kind})
	}
	return nil
}

// oneReason returns one reason in a shared buffer, because it is called for each node.
func (p *pass) oneReason(r refusal) []refusal {
	p.reasons = append(p.reasons[:0], r)
	return p.reasons
}

// missingResources returns the resources of which a node has too little, the number of pods first.
func (t try) missingResources(node *corev1.Node, usage state.Usage) []refusal {
	reasons := t.reasons[:0]
	if most, ok := node.Status.Allocatable[corev1.ResourcePods]; !ok || usage.Pods+1 > most.Value() {
		reasons = append(reasons, refusal{Reason: TooManyPods})
	}
	for _, need := range t.needs {
		if free, ok := freeOf(node, usage, need.name); !ok || need.amount.Cmp(free) > 0 {
			reasons = append(reasons, refusal{Reason: InsufficientResource, object: string(need.name)})
		}
	}
	t.reasons = reasons
	return reasons
}

// freeOf returns the unrequested amount of a resource; false if the node does not have the
// resource.
func freeOf(node *corev1.Node, usage state.Usage, name corev1.ResourceName) (quantity, bool) {
	free, ok := node.Status.Allocatable[name]
	if !ok {
		return quantity{}, false
	}
	if used, ok := usage.Requests[name]; ok {
		free = free.DeepCopy() // a copy of a large quantity shares its digits
		free.Sub(used)
	}
	return free, true
}

// nominatedPods returns the pods of at least this priority that are nominated to a node, as if
// placed there.
func (t try) nominatedPods(node string) (pods []*corev1.Pod) {
	if t.nominated == nil {
		t.pass.nominated = map[string][]*corev1.Pod{}
		for pod := range t.s.PodsOn("") {
			if at := pod.Status.NominatedNodeName; at != "" && waits(pod) {
				placed := *pod
				placed.Spec.NodeName = at
				t.nominated[at] = append(t.nominated[at], &placed)
			}
		}
	}
	for _, pod := range t.nominated[node] {
		if (pod.UID != t.pod.UID || pod.Name != t.pod.Name) && schedcorev1.PodPriority(pod) >= t.priority {
			pods = append(pods, pod)
		}
	}
	return pods
}

// withNominated adds the nominated pods to a node's usage.
func (t try) withNominated(n *info) state.Usage {
	usage := n.usage
	for _, pod := range t.nominatedPods(n.node.Name) {
		sum := maps.Clone(usage.Requests)
		if sum == nil {
			sum = corev1.ResourceList{}
		}
		for name, q := range state.Requests(pod) {
			have := sum[name].DeepCopy()
			have.Add(q)
			sum[name] = have
		}
		usage = state.Usage{Pods: usage.Pods + 1, Requests: sum,
			Ports: append(slices.Clone(usage.Ports), state.HostPorts(pod)...)}
	}
	return usage
}

// withNominatedLinks calls show with the links as if the nominated pods were placed. As in
// Kubernetes, a pod must fit with and without them, because they may never be placed.
func (t try) withNominatedLinks(node *corev1.Node, show func(*links)) {
	pods := t.nominatedPods(node.Name)
	if len(pods) == 0 {
		return
	}
	l := t.links
	if l == nil {
		l = newLinks()
	}
	for _, pod := range pods {
		l.count(t.class, pod, node, 1)
	}
	show(l)
	for _, pod := range pods {
		l.count(t.class, pod, node, -1)
	}
}

// clash tells whether a wanted port is taken: the same number and protocol, and the same address or
// one of them on all addresses.
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
