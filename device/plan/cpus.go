package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
)

// CPUManagerPolicy says whether containers get processors of their own; the kubelet's
// --cpu-manager-policy.
type CPUManagerPolicy string

// CPU manager policies. With static, a container of a guaranteed pod that asks for whole processors
// has them for itself, and all others share the rest.
const (
	NoCPUManager     CPUManagerPolicy = "none"
	StaticCPUManager CPUManagerPolicy = "static"
)

// ParseCPUManagerPolicy reads the word of a flag.
func ParseCPUManagerPolicy(s string) (CPUManagerPolicy, error) {
	if p := CPUManagerPolicy(s); p == NoCPUManager || p == StaticCPUManager {
		return p, nil
	}
	return "", fmt.Errorf("%q is neither none nor static", s)
}

// LabelCPUs is the label that says which processors a container has for itself. As with devices it
// is the only record of it.
const LabelCPUs = "flotilla.dev/cpus"

// A CPUSet is a set of processors: whether each is in it, by number.
type CPUSet []bool

const mostCPUs = 8192 // of Linux

// CPUsIn reads a list as the kernel and engines write it, such as 0-3,5.
func CPUsIn(list string) (set CPUSet) {
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		from, to, many := strings.Cut(part, "-")
		if !many {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || first < 0 || last >= mostCPUs {
			continue
		}
		for n := first; n <= last; n++ {
			set.put(n)
		}
	}
	return set
}

//go:noinline
func (s *CPUSet) put(n int) {
	for len(*s) <= n {
		*s = append(*s, false)
	}
	(*s)[n] = true
}

func (s CPUSet) has(n int) bool { return n < len(s) && s[n] }

// String is the list of the numbers, one by one.
func (s CPUSet) String() string {
	var list []string
	for n, in := range s {
		if in {
			list = append(list, strconv.Itoa(n))
		}
	}
	return strings.Join(list, ",")
}

// manages tells whether containers get processors by the static policy.
func (f Facts) manages() bool {
	return f.CPUManager == StaticCPUManager && f.Engine.CPUSet && len(f.CPUs) > 0
}

// freeCPUs are the processors that no container has for itself, or is about to, but for one.
func (p *pass) freeCPUs(but Place) CPUSet {
	set := slices.Clone(p.o.Node.CPUs)
	take := func(list string) {
		for n, taken := range CPUsIn(list) {
			if taken && n < len(set) {
				set[n] = false
			}
		}
	}
	for _, in := range p.o.Containers {
		if in.Place != but && IsRunning(in) {
			take(in.Labels[LabelCPUs])
		}
	}
	for _, s := range p.starting() {
		if s.Exclusive && s.Place != but {
			take(s.CPUs)
		}
	}
	return set
}

// processors chooses the processors of a container that is to be started. As with the kubelet the
// lowest ones are nobody's: as many as the node's reservations take, and one at least.
func (p *pass) processors(at Place, pod *corev1.Pod, c *corev1.Container) (cpus string, exclusive bool, lacks string) {
	node := p.o.Node
	if !node.manages() {
		return "", false, ""
	}
	free, want := p.freeCPUs(at), wholeCPUs(pod, c)
	if want == 0 {
		return free.String(), false, ""
	}
	for n, left := 0, p.reservedCPUs(); left > 0 && n < len(node.CPUs); n++ {
		if node.CPUs[n] {
			free[n], left = false, left-1
		}
	}
	var had, near CPUSet // it had them before, or they are on its NUMA nodes
	for _, in := range p.instances[at.Pod] {
		if in.Place == at {
			had = append(had, CPUsIn(in.Labels[LabelCPUs])...)
			break // the newest
		}
	}
	for _, numa := range node.NUMA {
		if slices.Contains(p.nearTo(at), numa.ID) {
			for n, in := range CPUsIn(numa.CPUs) {
				if in {
					near.put(n)
				}
			}
		}
	}
	var own CPUSet
	left := want
	for _, first := range []CPUSet{had, near, free} {
		for n := 0; n < len(free) && left > 0; n++ {
			if free[n] && first.has(n) {
				own.put(n)
				free[n], left = false, left-1
			}
		}
	}
	if left > 0 {
		return "", false, fmt.Sprintf("cpu: %d whole processors are asked for, and %d are free for one container alone: "+
			"wait until who has them ends, or ask for less", want, want-left)
	}
	return own.String(), true, ""
}

// reservedCPUs is how many processors are nobody's alone.
func (p *pass) reservedCPUs() int64 {
	all := int64(0)
	for _, in := range p.o.Node.CPUs {
		if in {
			all++
		}
	}
	return max(all-p.o.Node.Allocatable.Cpu().MilliValue()/1000, 1)
}

// shared are the processors that a running container shares with others; "": it has its own, or
// there is no such rule.
func (p *pass) shared(at Place, id string) string {
	if !p.o.Node.manages() {
		return ""
	}
	for _, in := range p.instances[at.Pod] {
		if in.ID == id && in.Labels[LabelCPUs] == "" {
			return p.freeCPUs(at).String()
		}
	}
	return ""
}

// wholeCPUs is how many processors of a NUMA node a container takes for itself among those that
// take some: as with the kubelet's static policy those of guaranteed pods that ask for whole ones.
func wholeCPUs(pod *corev1.Pod, c *corev1.Container) int64 {
	cpu := c.Resources.Limits.Cpu()
	if cpu.MilliValue()%1000 != 0 || podspec.QOSClass(pod) != corev1.PodQOSGuaranteed {
		return 0
	}
	return cpu.Value()
}

// CPUsOf are the processors that a container stays on: those of its NUMA nodes, if it asks for
// whole ones. They are not its own alone: whoever asks for none runs on all.
func CPUsOf(s Step, nodes []hardware.NUMANode) string {
	var cpus []string
	if near := s.NUMA[s.Place.Container]; len(near) > 0 && wholeCPUs(s.Pod, s.Spec) > 0 {
		for _, n := range nodes {
			if slices.Contains(near, n.ID) && n.CPUs != "" {
				cpus = append(cpus, n.CPUs)
			}
		}
	}
	return strings.Join(cpus, ",")
}
