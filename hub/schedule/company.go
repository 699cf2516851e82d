package schedule

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A wish is one preferred affinity to other pods, or (weight below 0) away from them.
type wish struct {
	term
	weight int
}

// hardWeight is what a required affinity of a placed pod weighs for one that it selects.
const hardWeight = 1

// wish looks up the pods that the class's preferred affinities select, and those whose
// affinities select the class. What names its one node has nothing to choose.
func (k *class) wish() {
	if len(k.only) == 1 {
		return
	}
	k.drawn = map[domain]int{}
	for pod := range k.s.Leaning() {
		k.leaned(pod, k.s.Node(pod.Spec.NodeName))
	}
	k.wishes = wishesOf(k.pass, k.pod)
	if len(k.wishes) == 0 {
		return
	}
	for pod := range k.s.Pods("") {
		if placed(pod) {
			k.wished(pod, k.s.Node(pod.Spec.NodeName))
		}
	}
}

func wishesOf(p *pass, pod *corev1.Pod) (all []wish) {
	near, away := state.Preferences(pod)
	for _, w := range near {
		all = append(all, wish{p.term(pod, w.PodAffinityTerm), int(w.Weight)})
	}
	for _, w := range away {
		all = append(all, wish{p.term(pod, w.PodAffinityTerm), -int(w.Weight)})
	}
	return all
}

// wished counts a placed pod that the class would like to be near to, or away from.
func (k *class) wished(pod *corev1.Pod, n *corev1.Node) {
	for _, w := range k.wishes {
		k.draw(w, pod, n)
	}
}

// leaned counts a placed pod that would like to be near to the class, or away from it, or
// must be near to it.
func (k *class) leaned(pod *corev1.Pod, n *corev1.Node) {
	for _, w := range wishesOf(k.pass, pod) {
		k.draw(w, k.pod, n)
	}
	for _, t := range state.RequiredNear(pod) {
		k.draw(wish{k.term(pod, t), hardWeight}, k.pod, n)
	}
}

// draw lets a wish that selects the pod draw the class to where the node is.
func (k *class) draw(w wish, pod *corev1.Pod, n *corev1.Node) {
	if n == nil {
		return
	}
	if v, ok := n.Labels[w.key]; ok && k.selects(w.term, pod) {
		k.drawn[domain{w.key, v}] += w.weight
	}
}

// company scores nodes by the affinities to, and away from, other pods, in both directions.
func (t try) company(fits []*candidate) []int64 {
	if len(t.drawn) == 0 {
		return nil
	}
	var keys []string
	for d := range t.drawn {
		if !slices.Contains(keys, d.key) {
			keys = append(keys, d.key)
		}
	}
	out := make([]int64, len(fits))
	for i, n := range fits {
		for _, key := range keys {
			if v, ok := n.node.Labels[key]; ok {
				out[i] += int64(t.drawn[domain{key, v}])
			}
		}
	}
	least, most := slices.Min(out), slices.Max(out)
	for i := range out {
		if most > least {
			out[i] = 100 * (out[i] - least) / (most - least)
		} else {
			out[i] = 0
		}
	}
	return out
}
