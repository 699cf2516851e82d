package schedule

import (
	"cmp"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// The weights of the scores; each score is 0 to 100.
const (
	weightTaint     = 3
	weightAffinity  = 2
	weightSpread    = 2
	weightNeighbors = 2
	weightLeast     = 1
	weightBalanced  = 1
	weightImage     = 1
)

// Kubernetes' assumed requests of a container without requests. They count in the scores, so that
// such pods are spread too, but not in the filter.
const (
	assumedMilliCPU = 100
	assumedMemory   = 200 << 20
)

// A candidate is a node that fits, with its values for the class's scores.
type candidate struct {
	*info
	softTaints     int64   // untolerated PreferNoSchedule taints
	affinityWeight int64   // weights of the matching preferred node affinities
	images         []image // the class's images that the node has
}

type image struct {
	name string
	size int64
}

// candidate computes the values of a node that fits.
func (k *class) candidate(n *info) *candidate {
	if k.infos[n.node.Name] != n {
		n.site = state.SiteOf(n.node)
		n.hasCPU, n.hasMemory = n.node.Status.Allocatable.Cpu().MilliValue(), n.node.Status.Allocatable.Memory().Value()
		for pod := range k.s.PodsOn(n.node.Name) {
			if !state.Terminated(pod) {
				cpu, memory := scoredRequests(pod)
				n.usedCPU, n.usedMemory = n.usedCPU+cpu, n.usedMemory+memory
			}
		}
		k.infos[n.node.Name] = n
	}
	c := &candidate{info: n}
	for i := range n.node.Spec.Taints {
		if taint := &n.node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectPreferNoSchedule &&
			!state.Tolerates(k.pod.Spec.Tolerations, taint) {
			c.softTaints++
		}
	}
	if k.preferred != nil {
		c.affinityWeight = k.preferred.Score(n.node)
	}
	for _, have := range n.node.Status.Images {
		for _, name := range have.Names {
			if k.images[normalizedImage(name)] {
				c.images = append(c.images, image{normalizedImage(name), have.SizeBytes})
				break
			}
		}
	}
	return c
}

// best returns the node with the highest score. Ties go to the site with the fewest pods, then to
// the node with the fewest pods, then by name.
func (t try) best(fits []*candidate) string {
	if len(fits) == 1 {
		return fits[0].node.Name
	}
	if t.pod.Status.NominatedNodeName != "" { // preemption has made space on that node
		for _, n := range fits {
			if n.node.Name == t.pod.Status.NominatedNodeName {
				return n.node.Name
			}
		}
	}
	scores := make([]int64, len(fits))
	cpu, memory := scoredRequests(t.pod)
	shy, liked := make([]int64, len(fits)), make([]int64, len(fits))
	for i, n := range fits {
		least, balanced := n.resourceScore(cpu, memory)
		scores[i] = weightLeast*least + weightBalanced*balanced
		shy[i], liked[i] = n.softTaints, n.affinityWeight
	}
	t.add(scores, weightTaint, lowIsGood(shy))
	t.add(scores, weightAffinity, highIsGood(liked))
	t.add(scores, weightSpread, t.topologySpread(fits))
	t.add(scores, weightNeighbors, t.podAffinity(fits))
	t.add(scores, weightImage, t.imageLocality(fits))
	most := slices.Max(scores)
	var ties []*candidate
	crowd := map[string]int64{}
	for i, n := range fits {
		if scores[i] == most {
			ties = append(ties, n)
			crowd[n.site] = 0
		}
	}
	if len(ties) > 1 {
		for _, n := range fits {
			if have, tie := crowd[n.site]; tie {
				crowd[n.site] = have + n.usage.Pods
			}
		}
	}
	return slices.MinFunc(ties, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(crowd[a.site], crowd[b.site]), cmp.Compare(a.usage.Pods, b.usage.Pods),
			strings.Compare(a.node.Name, b.node.Name))
	}).node.Name
}

// add adds scores times weight; more may be nil.
func (t try) add(scores []int64, weight int64, more []int64) {
	for i := range more {
		scores[i] += weight * more[i]
	}
}

// lowIsGood turns counts into scores: 0 becomes 100, the highest 0.
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

// highIsGood turns weights into scores: the highest becomes 100, 0 stays 0.
func highIsGood(weights []int64) []int64 {
	most := slices.Max(weights)
	for i := range weights {
		if most > 0 {
			weights[i] = 100 * weights[i] / most
		}
	}
	return weights
}

// scoredRequests returns a pod's requests for the scores: state.Requests plus Kubernetes' assumed
// requests. It runs for each placed pod, so it allocates no lists.
func scoredRequests(pod *corev1.Pod) (milliCPU, memory int64) {
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
	var sideCPU, sideMemory, mostCPU, mostMemory int64 // the sidecars before the current container
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		cpu, mem := one(c)
		mostCPU, mostMemory = max(mostCPU, sideCPU+cpu), max(mostMemory, sideMemory+mem)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sideCPU, sideMemory = sideCPU+cpu, sideMemory+mem
		}
	}
	over := pod.Spec.Overhead
	return max(milliCPU+sideCPU, mostCPU) + over.Cpu().MilliValue(),
		max(memory+sideMemory, mostMemory) + over.Memory().Value()
}

// resourceScore scores a node with the pod on it by its free share, and by how evenly its CPU and
// memory are used.
func (n *info) resourceScore(cpu, memory int64) (least, balanced int64) {
	cpu, memory = cpu+n.usedCPU, memory+n.usedMemory
	left := func(has, used int64) int64 {
		if has <= 0 || used > has {
			return 0
		}
		return 100 * (has - used) / has
	}
	least = (left(n.hasCPU, cpu) + left(n.hasMemory, memory)) / 2
	part := func(has, used int64) float64 {
		if has <= 0 {
			return 1
		}
		return min(float64(used)/float64(has), 1)
	}
	return least, int64(100 * (1 - math.Abs(part(n.hasCPU, cpu)-part(n.hasMemory, memory))/2))
}

// imageLocality scores nodes by the size of the pod's images that they have. An image on few nodes
// counts less, so that these nodes do not get all pods.
func (t try) imageLocality(fits []*candidate) []int64 {
	const small, big = 23 << 20, 1000 << 20
	spread := map[string]int64{}
	for _, n := range fits {
		for _, f := range n.images {
			spread[f.name]++
		}
	}
	if len(spread) == 0 {
		return nil
	}
	most := int64(big) * int64(len(t.pod.Spec.Containers)+len(t.pod.Spec.InitContainers))
	out := make([]int64, len(fits))
	for i, n := range fits {
		sum := int64(0)
		for _, f := range n.images {
			sum += f.size * spread[f.name] / int64(len(fits))
		}
		sum = min(max(sum, small), most)
		out[i] = 100 * (sum - small) / (most - small)
	}
	return out
}

// normalizedImage returns an image's name with its tag.
func normalizedImage(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + ":latest"
	}
	return image
}
