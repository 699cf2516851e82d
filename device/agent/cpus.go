package agent

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"flotilla.dev/device/engine"
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

// onlineCPUs are the processors of the device; empty where the kernel does not tell.
func onlineCPUs(sysDir string) cpuset.CPUSet {
	text, _ := os.ReadFile(filepath.Join(sysDir, "devices/system/cpu/online"))
	set, _ := cpuset.Parse(strings.TrimSpace(string(text)))
	return set
}

// manages tells whether containers get processors by the static policy.
func (f Facts) manages() bool {
	return f.CPUManager == StaticCPUManager && f.Engine.CPUSet && !f.CPUs.IsEmpty()
}

// own are the processors that an instance has for itself.
func own(in Instance) cpuset.CPUSet {
	set, _ := cpuset.Parse(in.Labels[LabelCPUs])
	return set
}

// exclusive are the processors that containers have for themselves, or are about to, but for one.
func (p *pass) exclusive(but Place) (set cpuset.CPUSet) {
	for _, in := range p.o.Containers {
		if in.Place != but && (in.State == engine.Running || in.State == engine.Paused) {
			set = set.Union(own(in))
		}
	}
	for _, s := range p.starting() {
		if taken, err := cpuset.Parse(s.CPUs); err == nil && s.Exclusive && s.Place != but {
			set = set.Union(taken)
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
	free, n := node.CPUs.Difference(p.exclusive(at)), int(wholeCPUs(pod, c))
	if n == 0 {
		return free.String(), false, ""
	}
	reserved := max(node.CPUs.Size()-int(node.Allocatable.Cpu().MilliValue()/1000), 1)
	list := free.Difference(cpuset.New(node.CPUs.List()[:min(reserved, node.CPUs.Size())]...)).List()
	if len(list) < n {
		return "", false, fmt.Sprintf("cpu: %d whole processors are asked for, and %d are free for one container alone: wait until who has them ends, or ask for less", n, len(list))
	}
	var had, near cpuset.CPUSet
	for _, in := range p.instances[at.Pod] {
		if in.Place == at {
			had = had.Union(own(in))
		}
	}
	for _, numa := range node.NUMA {
		if set, err := cpuset.Parse(numa.CPUs); err == nil && slices.Contains(p.nearTo(at), numa.ID) {
			near = near.Union(set)
		}
	}
	rank := func(cpu int) int {
		switch {
		case had.Contains(cpu):
			return 0
		case near.Contains(cpu):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	return cpuset.New(list[:n]...).String(), true, ""
}

// shared are the processors that a running container shares with others; "": it has its own, or there is no such rule.
func (p *pass) shared(at Place, id string) string {
	if !p.o.Node.manages() {
		return ""
	}
	for _, in := range p.instances[at.Pod] {
		if in.ID == id && own(in).IsEmpty() {
			return p.o.Node.CPUs.Difference(p.exclusive(at)).String()
		}
	}
	return ""
}
