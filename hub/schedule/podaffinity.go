package schedule

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A preference is a preferred affinity to other pods; a weight below 0 means anti-affinity.
type preference struct {
	term
	weight int
}

// hardWeight is the weight that the required affinity of a placed pod has in the scores of pods
// that it selects.
const hardWeight = 1

// preferencesFor counts the pods that the class's preferred affinities select, and the pods whose
// affinities select the class. A class with only one possible node needs no counts.
func (k *class) preferencesFor() {
	if len(k.only) == 1 {
		return
	}
	k.weights = map[domain]int{}
	for pod := range k.s.AffinityPods() {
		k.countPreferring(pod, k.s.Node(pod.Spec.NodeName))
	}
	k.preferences = preferencesOf(k.pass, k.pod)
	if len(k.preferences) == 0 {
		return
	}
	for pod := range k.s.Pods("") {
		if placed(pod) {
			k.countPreferred(pod, k.s.Node(pod.Spec.NodeName))
		}
	}
}

func preferencesOf(p *pass, pod *corev1.Pod) (all []preference) {
	near, away := state.Preferences(pod)
	for _, w := range near {
		all = append(all, preference{p.term(pod, w.PodAffinityTerm), int(w.Weight)})
	}
	for _, w := range away {
		all = append(all, preference{p.term(pod, w.PodAffinityTerm), -int(w.Weight)})
	}
	return all
}

// countPreferred counts a placed pod for the class's own preferences.
func (k *class) countPreferred(pod *corev1.Pod, n *corev1.Node) {
	for _, w := range k.preferences {
		k.addPreference(w, pod, n)
	}
}

// countPreferring counts a placed pod whose affinity or preference selects the class.
func (k *class) countPreferring(pod *corev1.Pod, n *corev1.Node) {
	for _, w := range preferencesOf(k.pass, pod) {
		k.addPreference(w, k.pod, n)
	}
	for _, t := range state.RequiredNear(pod) {
		k.addPreference(preference{k.term(pod, t), hardWeight}, k.pod, n)
	}
}

// addPreference adds the weight of a preference to the node's domain if it selects the pod.
func (k *class) addPreference(w preference, pod *corev1.Pod, n *corev1.Node) {
	if n == nil {
		return
	}
	if v, ok := n.Labels[w.key]; ok && k.selects(w.term, pod) {
		k.weights[domain{w.key, v}] += w.weight
	}
}

// podAffinity scores nodes by pod affinity and anti-affinity in both directions.
func (t try) podAffinity(fits []*candidate) []int64 {
	if len(t.weights) == 0 {
		return nil
	}
	var keys []string
	for d := range t.weights {
		if !slices.Contains(keys, d.key) {
			keys = append(keys, d.key)
		}
	}
	out := make([]int64, len(fits))
	for i, n := range fits {
		for _, key := range keys {
			if v, ok := n.node.Labels[key]; ok {
				out[i] += int64(t.weights[domain{key, v}])
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
