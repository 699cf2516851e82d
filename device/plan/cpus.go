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

// CPUManagerPolicy is the kubelet's --cpu-manager-policy: whether containers get exclusive CPUs.
type CPUManagerPolicy string

// CPU manager policies. With static, a container of a guaranteed pod that requests whole CPUs gets
// them exclusively, and all other containers share the rest.
const (
	NoCPUManager     CPUManagerPolicy = "none"
	StaticCPUManager CPUManagerPolicy = "static"
)

// ParseCPUManagerPolicy parses a flag's value.
func ParseCPUManagerPolicy(s string) (CPUManagerPolicy, error) {
	if p := CPUManagerPolicy(s); p == NoCPUManager || p == StaticCPUManager {
		return p, nil
	}
	return "", fmt.Errorf("%q is not a CPU manager policy: use none or static", s)
}

// LabelCPUs is the label with a container's exclusive CPUs. They are recorded only in this label.
const LabelCPUs = "flotilla.dev/cpus"

// A CPUSet is a set of CPUs: element i says whether the set has CPU i.
type CPUSet []bool

const maxCPUs = 8192 // Linux's limit

// ParseCPUs parses a CPU list of the kernel or an engine, such as 0-3,5.
func ParseCPUs(list string) (set CPUSet) {
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		from, to, many := strings.Cut(part, "-")
		if !many {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || first < 0 || last >= maxCPUs {
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

// String lists the numbers of the CPUs, separated by commas.
func (s CPUSet) String() string {
	var list []string
	for n, in := range s {
		if in {
			list = append(list, strconv.Itoa(n))
		}
	}
	return strings.Join(list, ",")
}

// staticCPUs reports whether the static policy applies.
func (f Facts) staticCPUs() bool {
	return f.CPUManager == StaticCPUManager && f.Engine.CPUSet && len(f.CPUs) > 0
}

// freeCPUs are the CPUs that no present or starting container has exclusively. It ignores the
// container at the place except.
func (p *pass) freeCPUs(except Place) CPUSet {
	set := slices.Clone(p.o.Node.CPUs)
	take := func(list string) {
		for n, taken := range ParseCPUs(list) {
			if taken && n < len(set) {
				set[n] = false
			}
		}
	}
	for _, in := range p.o.Containers {
		if in.Place != except && IsRunning(in) {
			take(in.Labels[LabelCPUs])
		}
	}
	for _, s := range p.startingRuns() {
		if s.Exclusive && s.Place != except {
			take(s.CPUs)
		}
	}
	return set
}

// assignCPUs chooses the CPUs of a container that is about to start. As with the kubelet, the
// lowest CPUs are never exclusive: at least one, and as many as the node's reservations need.
func (p *pass) assignCPUs(at Place, pod *corev1.Pod, c *corev1.Container) (cpus string, exclusive bool, lacks string) {
	node := p.o.Node
	if !node.staticCPUs() {
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
	var had, near CPUSet // CPUs of the container's last instance; CPUs on its NUMA nodes
	for _, in := range p.instances[at.Pod] {
		if in.Place == at {
			had = append(had, ParseCPUs(in.Labels[LabelCPUs])...)
			break // older instances do not matter
		}
	}
	for _, numa := range node.NUMA {
		if slices.Contains(p.nearTo(at), numa.ID) {
			for n, in := range ParseCPUs(numa.CPUs) {
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
		return "", false, fmt.Sprintf("cpu: %d whole CPUs are requested, and %d are free for exclusive use: end a container "+
			"that has some, or request less", want, want-left)
	}
	return own.String(), true, ""
}

// reservedCPUs is the number of CPUs that are never exclusive.
func (p *pass) reservedCPUs() int64 {
	all := int64(0)
	for _, in := range p.o.Node.CPUs {
		if in {
			all++
		}
	}
	return max(all-p.o.Node.Allocatable.Cpu().MilliValue()/1000, 1)
}

// sharedCPUs are the shared CPUs of a running container. The result is empty if the container has
// exclusive CPUs or the static policy is off.
func (p *pass) sharedCPUs(at Place, id string) string {
	if !p.o.Node.staticCPUs() {
		return ""
	}
	for _, in := range p.instances[at.Pod] {
		if in.ID == id && in.Labels[LabelCPUs] == "" {
			return p.freeCPUs(at).String()
		}
	}
	return ""
}

// wholeCPUs is the number of exclusive CPUs of a container under the static policy. Only a
// guaranteed pod that requests whole CPUs gets them.
func wholeCPUs(pod *corev1.Pod, c *corev1.Container) int64 {
	cpu := c.Resources.Limits.Cpu()
	if cpu.MilliValue()%1000 != 0 || podspec.QOSClass(pod) != corev1.PodQOSGuaranteed {
		return 0
	}
	return cpu.Value()
}

// CPUsOf are the CPUs of the container's NUMA nodes if the container requests whole CPUs. They are
// not exclusive: other containers run on all CPUs.
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
