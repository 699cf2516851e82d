package schedule

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"flotilla.dev/hub/state"
)

// A class stands for pods that every node treats alike, such as the pods of one ReplicaSet. A
// thousand of them search the fleet once. The pass updates the class with each placement.
type class struct {
	*pass
	pod         *corev1.Pod // one of its pods
	priority    int32
	needs       []need
	ports       []state.HostPort
	fits        nodeaffinity.RequiredNodeAffinity
	only        map[string]bool // the nodes that its affinity names; nil: any
	links       *links          // nil: it does not depend on other pods
	soft        []*soft         // the pod's soft spread constraints
	preferences []preference    // the pod's preferred affinities to other pods
	weights     map[domain]int  // sum of its and other pods' preferences, by domain; nil: none
	images      map[string]bool // images of its containers
	claims      claims          // restrictions by its volumes
	upTo        int             // number of the pass's placements that are counted

	preferred *nodeaffinity.PreferredSchedulingTerms // nil: none

	searched bool
	partial  bool           // not every node was checked
	found    []*candidate   // the nodes that fit
	at       map[string]int // index of a node in found
	tally    tally          // why the other nodes do not fit
	refused  string         // why no node fits; "": a node fits, or the search has not ended
	stuck    bool           // none of the changed nodes fits
}

// A need is the amount of one resource that a pod requests.
type need struct {
	name   corev1.ResourceName
	amount quantity
}

// A try is one pod that needs a node.
type try struct {
	*class
	pod *corev1.Pod
}

// try returns a pod with its class. A nominated pod, a pod that names its nodes, and a pod with
// claims each get a class that no other pod shares.
func (p *pass) try(pod *corev1.Pod) try {
	only := named(pod)
	if only != nil || pod.Status.NominatedNodeName != "" || state.HasClaims(pod) {
		return try{p.class(pod, only), pod}
	}
	key := equivalenceKey(pod)
	k := p.classes[key]
	if k == nil {
		k = p.class(pod, nil)
		p.classes[key] = k
	}
	for ; k.upTo < len(p.placed); k.upTo++ {
		k.join(p.placed[k.upTo])
	}
	return try{k, pod}
}

func (p *pass) class(pod *corev1.Pod, only map[string]bool) *class {
	k := &class{pass: p, pod: pod, priority: schedcorev1.PodPriority(pod), ports: state.HostPorts(pod),
		fits: nodeaffinity.GetRequiredNodeAffinity(pod), only: only, upTo: len(p.placed)}
	requests := state.Requests(pod)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		if amount := requests[name]; !amount.IsZero() {
			k.needs = append(k.needs, need{name, amount})
		}
	}
	k.claims = claimsOf(k.s, pod)
	k.link()
	for _, c := range pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.ScheduleAnyway {
			k.soft = append(k.soft, k.softOf(c))
		}
	}
	k.preferencesFor()
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		k.preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	k.images = map[string]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			k.images[normalizedImage(list[i].Image)] = true
		}
	}
	return k
}

// join updates the class after the pass has placed a pod.
func (k *class) join(pod *corev1.Pod) {
	n := k.s.Node(pod.Spec.NodeName)
	for _, s := range k.soft {
		s.add(pod, n)
	}
	if k.weights != nil {
		k.countPreferred(pod, n)
		k.countPreferring(pod, n)
	}
	if k.small() {
		k.refused = "" // in a small fleet the message is up to date, so every reason is counted again
		k.searched = k.searched && len(k.found) > 0
	}
	forbids, allows := k.linked(pod, n)
	if allows && !k.partial {
		k.searched, k.refused = false, ""
		return
	}
	for i := len(k.found) - 1; i >= 0 && (forbids || allows); i-- {
		if k.links.against(k.found[i].node) != Fits {
			k.drop(i)
		}
	}
	k.recheck(n)
}

// recheck checks a changed node again.
func (k *class) recheck(n *corev1.Node) {
	i, ok := k.at[n.Name]
	if !ok {
		return
	}
	if now, why := (try{k, k.pod}).against(n); len(why) == 0 {
		k.found[i] = k.candidate(now)
	} else {
		k.drop(i)
	}
}

// drop removes a node that no longer fits.
func (k *class) drop(i int) {
	last := len(k.found) - 1
	delete(k.at, k.found[i].node.Name)
	if i != last {
		k.found[i] = k.found[last]
		k.at[k.found[i].node.Name] = i
	}
	k.found = k.found[:last]
	if last == 0 || k.partial && last < minCandidates/2 {
		k.searched = false // search again, because other nodes may fit
	}
}

// named returns the nodes that a pod's affinity names, as the affinity of a DaemonSet's pod does.
// Then only these nodes are checked.
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

func (k *class) wants(node string) bool { return k.only == nil || k.only[node] }
