package schedule

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// minCandidates is how many fitting nodes are compared in a large fleet.
const minCandidates = 500

// A tally counts the nodes that do not fit, by reason.
type tally struct {
	nodes int
	count map[refusal]int
	// preemptable are the nodes that would fit after preemption.
	preemptable []string
}

func (c tally) String() string {
	if c.nodes == 0 {
		return "no nodes available to schedule pods"
	}
	var parts []string
	for reason, n := range c.count {
		if reason.Reason == NoVolume {
			parts = append(parts, reason.object)
			continue
		}
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", c.nodes, strings.Join(parts, ", "))
}

func (c *tally) add(node string, reasons []refusal) {
	curable := true
	for _, r := range reasons {
		c.count[r]++
		curable = curable && r.preemptable()
	}
	if curable {
		c.preemptable = append(c.preemptable, node)
	}
}

// search finds nodes that fit. In a fleet of more than 500 nodes it stops at 500, as many as
// Kubernetes compares of 10,000. It checks every k-th node by name, so that every site is included.
// It starts at a position that depends on the pod's uid. If too few nodes fit it checks all,
// because a refusal counts every node.
func (t try) search() {
	k := t.class
	total := k.s.Len(state.Nodes)
	k.searched, k.partial, k.found, k.at = true, false, nil, map[string]int{}
	k.tally = tally{nodes: total, count: map[refusal]int{}}
	if k.only != nil {
		looked := 0
		for _, name := range slices.Sorted(maps.Keys(k.only)) {
			if node := k.s.Node(name); node != nil {
				looked++
				t.look(node)
			}
		}
		if rest := total - looked; rest > 0 {
			k.tally.count[refusal{Reason: NodeAffinity}] += rest
		}
		return
	}
	if k.small() {
		for node := range k.s.Nodes() {
			t.look(node)
		}
		return
	}
	stride := total / minCandidates
	start := int(seed(t.pod) % uint32(stride))
	for turn := range stride {
		if len(k.found) >= minCandidates {
			k.partial = true
			return
		}
		for i := (start + turn) % stride; i < total; i += stride {
			t.look(k.s.NodeAt(i))
		}
	}
}

// look checks one node.
func (t try) look(node *corev1.Node) {
	k := t.class
	k.looks++
	n, why := t.against(node)
	if len(why) > 0 {
		k.tally.add(node.Name, why)
		return
	}
	k.at[node.Name] = len(k.found)
	k.found = append(k.found, k.candidate(n))
}

func seed(pod *corev1.Pod) uint32 {
	h := fnv.New32a()
	h.Write([]byte(pod.UID))
	return h.Sum32()
}
