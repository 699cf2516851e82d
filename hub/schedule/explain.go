package schedule

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A Refusal is a reason for which nodes cannot have a pod.
type Refusal struct {
	Why   string // such as "Insufficient memory"
	Nodes int    // that give it; a node may give several
}

// Explain tells why no node can have a pod as things are, and how many there are.
// Without refusals nothing is known against it: it is about to be placed. It looks at
// every node, so it is for one pod that somebody asks about.
func Explain(s state.Snapshot, pod *corev1.Pod, now time.Time) (refusals []Refusal, nodes int) {
	t := newPass(s, now).try(pod)
	t.search()
	if len(t.found) > 0 {
		return nil, t.tally.nodes
	}
	for r, count := range t.tally.count {
		refusals = append(refusals, Refusal{strings.TrimPrefix(r.String(), "node(s) "), count})
	}
	slices.SortFunc(refusals, func(a, b Refusal) int { return cmp.Or(cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Why, b.Why)) })
	return refusals, t.tally.nodes
}
