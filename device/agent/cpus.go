package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// CPUManagerPolicy says whether containers get processors of their own; the kubelet's --cpu-manager-policy.
type CPUManagerPolicy string

// CPU manager policies. With static, a container of a guaranteed pod that asks for whole processors has them for itself,
// and all others share the rest.
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

// LabelCPUs is the label that says which processors a container has for itself. As with devices it is the only record of it.
const LabelCPUs = "flotilla.dev/cpus"

// A cpuSet is a set of processors: whether each is in it, by number.
type cpuSet []bool

const mostCPUs = 8192 // of Linux

// cpusIn reads a list as the kernel and engines write it, such as 0-3,5.
func cpusIn(list string) (set cpuSet) {
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
func (s *cpuSet) put(n int) {
	for len(*s) <= n {
		*s = append(*s, false)
	}
	(*s)[n] = true
}

func (s cpuSet) has(n int) bool { return n < len(s) && s[n] }

// String is the list of the numbers, one by one.
func (s cpuSet) String() string {
	var list []string
	for n, in := range s {
		if in {
			list = append(list, strconv.Itoa(n))
		}
	}
	return strings.Join(list, ",")
}

// onlineCPUs are the processors of the device; empty where the kernel does not tell.
func onlineCPUs(sysDir string) cpuSet {
	text, _ := os.ReadFile(filepath.Join(sysDir, "devices/system/cpu/online"))
	return cpusIn(string(text))
}

// manages tells whether containers get processors by the static policy.
func (f Facts) manages() bool {
	return f.CPUManager == StaticCPUManager && f.Engine.CPUSet && len(f.CPUs) > 0
}

// freeCPUs are the processors that no container has for itself, or is about to, but for one.
func (p *pass) freeCPUs(but Place) cpuSet {
	set := slices.Clone(p.o.Node.CPUs)
	take := func(list string) {
		for n, taken := range cpusIn(list) {
			if taken && n < len(set) {
				set[n] = false
			}
		}
	}
	for _, in := range p.o.Containers {
		if in.Place != but && isRunning(in) {
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

// processors chooses the processors of a container that is to be started. As with the kubelet the lowest ones are nobody's:
// as many as the node's reservations take, and one at least.
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
	var had, near cpuSet // it had them before, or they are on its NUMA nodes
	for _, in := range p.instances[at.Pod] {
		if in.Place == at {
			had = append(had, cpusIn(in.Labels[LabelCPUs])...)
			break // the newest
		}
	}
	for _, numa := range node.NUMA {
		if slices.Contains(p.nearTo(at), numa.ID) {
			for n, in := range cpusIn(numa.CPUs) {
				if in {
					near.put(n)
				}
			}
		}
	}
	var own cpuSet
	left := want
	for _, first := range []cpuSet{had, near, free} {
		for n := 0; n < len(free) && left > 0; n++ {
			if free[n] && first.has(n) {
				own.put(n)
				free[n], left = false, left-1
			}
		}
	}
	if left > 0 {
		return "", false, fmt.Sprintf("cpu: %d whole processors are asked for, and %d are free for one container alone: wait until who has them ends, or ask for less", want, want-left)
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

// shared are the processors that a running container shares with others; "": it has its own, or there is no such rule.
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
