package schedule

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A wish is one preferred affinity to other pods, or (weight below 0) away from
// them, with how many of them are where.
type wish struct {
	term
	weight int64
	in     map[string]int64
}

// wish looks up the pods that the class's preferred affinities select.
func (k *class) wish() {
	a := k.pod.Spec.Affinity
	if a == nil {
		return
	}
	add := func(sign int64, terms []corev1.WeightedPodAffinityTerm) {
		for _, w := range terms {
			k.wishes = append(k.wishes, &wish{k.term(k.pod, w.PodAffinityTerm), sign * int64(w.Weight), map[string]int64{}})
		}
	}
	if a.PodAffinity != nil {
		add(1, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a.PodAntiAffinity != nil {
		add(-1, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if len(k.wishes) == 0 {
		return
	}
	for pod := range k.s.Pods("") {
		for _, w := range k.wishes {
			w.add(k.pass, pod)
		}
	}
}

// add counts a pod that the wish selects.
func (w *wish) add(p *pass, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" || state.Terminated(pod) || !p.selects(w.term, pod) {
		return
	}
	if n := p.s.Node(pod.Spec.NodeName); n != nil {
		if v, ok := n.Labels[w.key]; ok {
			w.in[v] += w.weight
		}
	}
}

// company scores nodes by the preferred affinities to, and away from, other pods.
func (t try) company(fits []*candidate) []int64 {
	if len(t.wishes) == 0 {
		return nil
	}
	out := make([]int64, len(fits))
	for i, n := range fits {
		for _, w := range t.wishes {
			if v, ok := n.node.Labels[w.key]; ok {
				out[i] += w.in[v]
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
