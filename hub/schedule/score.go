package schedule

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"flotilla.dev/hub/state"
)

// The weights of the scores, each of which is 0 to 100.
const (
	weightTaint     = 3
	weightAffinity  = 2
	weightSpread    = 2
	weightNeighbors = 2
	weightLeast     = 1
	weightBalanced  = 1
	weightImage     = 1
)

// Kubernetes' assumption about a container that asks for nothing: it counts in
// the scores, so that such pods spread too, but not in the filter.
const (
	assumedMilliCPU = 100
	assumedMemory   = 200 << 20
)

// best returns the node with the highest score. Ties go to the site with the
// fewest pods, then to the node with the fewest, then by name.
func (t *try) best(fits []*info) string {
	if len(fits) == 1 {
		return fits[0].node.Name
	}
	if t.pod.Status.NominatedNodeName != "" { // room was made there
		for _, n := range fits {
			if n.node.Name == t.pod.Status.NominatedNodeName {
				return n.node.Name
			}
		}
	}
	scores := make([]int64, len(fits))
	for i, s := range t.taints(fits) {
		scores[i] += weightTaint * s
	}
	t.add(scores, weightAffinity, t.preferred(fits))
	t.add(scores, weightSpread, t.evenness(fits))
	t.add(scores, weightNeighbors, t.company(fits))
	t.add(scores, weightImage, t.images(fits))
	cpu, memory := assumed(t.pod)
	for i, n := range fits {
		least, balanced := t.room(n, cpu, memory)
		scores[i] += weightLeast*least + weightBalanced*balanced
	}
	crowd := map[string]int64{}
	for _, n := range fits {
		crowd[n.site] += n.usage.Pods
	}
	best := 0
	for i := 1; i < len(fits); i++ {
		a, b := fits[i], fits[best]
		switch {
		case scores[i] != scores[best]:
			if scores[i] > scores[best] {
				best = i
			}
		case crowd[a.site] != crowd[b.site]:
			if crowd[a.site] < crowd[b.site] {
				best = i
			}
		case a.usage.Pods != b.usage.Pods:
			if a.usage.Pods < b.usage.Pods {
				best = i
			}
		case strings.Compare(a.node.Name, b.node.Name) < 0:
			best = i
		}
	}
	return fits[best].node.Name
}

// add adds weighted scores; nil counts nothing.
func (t *try) add(scores []int64, weight int64, more []int64) {
	for i := range more {
		scores[i] += weight * more[i]
	}
}

// taints scores nodes by how few PreferNoSchedule taints the pod does not tolerate.
func (t *try) taints(fits []*info) []int64 {
	out := make([]int64, len(fits))
	for i, n := range fits {
		for j := range n.node.Spec.Taints {
			if taint := &n.node.Spec.Taints[j]; taint.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(t.pod.Spec.Tolerations, taint) {
				out[i]++
			}
		}
	}
	return lowIsGood(out)
}

// lowIsGood turns counts into scores: none is 100, the most is 0.
func lowIsGood(counts []int64) []int64 {
	most := slices.Max(counts)
	for i := range counts {
		if most == 0 {
			counts[i] = 100
		} else {
			counts[i] = 100 - 100*counts[i]/most
		}
	}
	return counts
}

// preferred scores nodes by the weights of the preferred node affinities that hold.
func (t *try) preferred(fits []*info) []int64 {
	a := t.pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return nil
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return nil
	}
	out := make([]int64, len(fits))
	for i, n := range fits {
		out[i] = terms.Score(n.node)
	}
	most := slices.Max(out)
	for i := range out {
		if most > 0 {
			out[i] = 100 * out[i] / most
		}
	}
	return out
}

// company scores nodes by the preferred affinities to, and away from, other pods.
func (t *try) company(fits []*info) []int64 {
	a := t.pod.Spec.Affinity
	if a == nil {
		return nil
	}
	type wish struct {
		term
		weight int64
	}
	var wishes []wish
	if a.PodAffinity != nil {
		for _, w := range a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			wishes = append(wishes, wish{t.term(t.pod, w.PodAffinityTerm), int64(w.Weight)})
		}
	}
	if a.PodAntiAffinity != nil {
		for _, w := range a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			wishes = append(wishes, wish{t.term(t.pod, w.PodAffinityTerm), -int64(w.Weight)})
		}
	}
	if len(wishes) == 0 {
		return nil
	}
	sum := map[place]int64{}
	for pod := range t.s.Pods("") {
		if pod.Spec.NodeName == "" || state.Terminated(pod) {
			continue
		}
		n := t.s.Node(pod.Spec.NodeName)
		for _, w := range wishes {
			if n != nil && t.selects(w.term, pod) {
				if v, ok := n.Labels[w.key]; ok {
					sum[place{w.key, v}] += w.weight
				}
			}
		}
	}
	keys := map[string]bool{}
	for _, w := range wishes {
		keys[w.key] = true
	}
	out := make([]int64, len(fits))
	for i, n := range fits {
		for key := range keys {
			if v, ok := n.node.Labels[key]; ok {
				out[i] += sum[place{key, v}]
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

// assumed returns what a pod counts for in the scores.
func assumed(pod *corev1.Pod) (milliCPU, memory int64) {
	one := func(c *corev1.Container) (int64, int64) {
		cpu, mem := int64(assumedMilliCPU), int64(assumedMemory)
		if q, ok := c.Resources.Requests[corev1.ResourceCPU]; ok {
			cpu = q.MilliValue()
		}
		if q, ok := c.Resources.Requests[corev1.ResourceMemory]; ok {
			mem = q.Value()
		}
		return cpu, mem
	}
	for i := range pod.Spec.Containers {
		cpu, mem := one(&pod.Spec.Containers[i])
		milliCPU, memory = milliCPU+cpu, memory+mem
	}
	for i := range pod.Spec.InitContainers {
		cpu, mem := one(&pod.Spec.InitContainers[i])
		milliCPU, memory = max(milliCPU, cpu), max(memory, mem)
	}
	return milliCPU, memory
}

// room scores a node by how much of it is left with the pod on it, and by how
// evenly its processor and its memory are used then.
func (t *try) room(n *info, cpu, memory int64) (least, balanced int64) {
	for pod := range t.s.PodsOn(n.node.Name) {
		if !state.Terminated(pod) {
			c, m := assumed(pod)
			cpu, memory = cpu+c, memory+m
		}
	}
	hasCPU, hasMemory := n.node.Status.Allocatable.Cpu().MilliValue(), n.node.Status.Allocatable.Memory().Value()
	left := func(has, used int64) int64 {
		if has <= 0 || used > has {
			return 0
		}
		return 100 * (has - used) / has
	}
	least = (left(hasCPU, cpu) + left(hasMemory, memory)) / 2
	part := func(has, used int64) float64 {
		if has <= 0 {
			return 1
		}
		return min(float64(used)/float64(has), 1)
	}
	return least, int64(100 * (1 - math.Abs(part(hasCPU, cpu)-part(hasMemory, memory))/2))
}

// images scores nodes by the size of the pod's images that they have already; an
// image that few nodes have counts for less, so that not all pods go there.
func (t *try) images(fits []*info) []int64 {
	const small, big = 23 << 20, 1000 << 20
	wanted := map[string]bool{}
	for _, list := range [][]corev1.Container{t.pod.Spec.Containers, t.pod.Spec.InitContainers} {
		for _, c := range list {
			wanted[normal(c.Image)] = true
		}
	}
	type found struct {
		name string
		size int64
	}
	have, spread := make([][]found, len(fits)), map[string]int64{}
	for i, n := range fits {
		for _, image := range n.node.Status.Images {
			for _, name := range image.Names {
				if wanted[normal(name)] {
					have[i] = append(have[i], found{normal(name), image.SizeBytes})
					spread[normal(name)]++
					break
				}
			}
		}
	}
	if len(spread) == 0 {
		return nil
	}
	most := int64(big) * int64(len(t.pod.Spec.Containers)+len(t.pod.Spec.InitContainers))
	out := make([]int64, len(fits))
	for i := range fits {
		sum := int64(0)
		for _, f := range have[i] {
			sum += f.size * spread[f.name] / int64(len(fits))
		}
		sum = min(max(sum, small), most)
		out[i] = 100 * (sum - small) / (most - small)
	}
	return out
}

// normal is an image's name with its tag.
func normal(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + ":latest"
	}
	return image
}
