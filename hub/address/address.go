// Package address decides the pod CIDR of each node.
//
// A Node without a block gets the first free block of the fleet's range, keeps it for life, and
// returns it when the Node is deleted. A block that an administrator wrote into a Node is assigned
// to no other node. If no block is free, the node works without one, gets a condition that reports
// this, and gets a block later. The package never removes or changes a block; the device's agent
// sets up the network.
package address

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// MaxBlocks limits the blocks of a range. No fleet has so many nodes.
const MaxBlocks = 1 << 20

// A Decider assigns blocks of Bits leading bits from Cluster, which has at most MaxBlocks of them.
// The zero Decider assigns nothing and checks nothing.
type Decider struct {
	Cluster netip.Prefix
	Bits    int
}

// Reasons of the condition PodCIDRAvailable=False and of its event.
const (
	notAvailable = "CIDRNotAvailable" // the same as in Kubernetes
	conflict     = "CIDRConflict"
	outOfRange   = "CIDROutOfRange"
)

// source marks the decider's own changes, so that it ignores them.
const source = "flotilla-hub/address"

// Touches returns the node of a change that concerns its blocks. The subject has the old blocks,
// because a node that shared them may now be their only owner.
func (d Decider) Touches(c state.Applied) []state.Subject {
	if !d.Cluster.IsValid() {
		return nil
	}
	old, ok := changed(c)
	if !ok {
		return nil
	}
	q := state.Subject{Key: c.Key}
	if old != nil {
		if had := state.BlocksOf(old); len(had) > 0 {
			q.Was = had
		}
	}
	return []state.Subject{q}
}

// Subjects returns all nodes.
func (Decider) Subjects(s state.Snapshot) []state.Subject { return state.AboutNodes(s) }

// Decide assigns blocks to nodes without one, and reports problems of blocks that users wrote.
// Beside its subjects it reads only nodes with overlapping blocks, so its cost does not depend on
// the size of the fleet.
func (d Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	nodes := d.nodes(s, subjects)
	if len(nodes) > 0 && d.Cluster.IsValid() {
		d.assign(s, &plan, nodes)
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		switch n := s.Node(name); {
		case n == nil || nodes[name]:
		case !d.Cluster.IsValid():
			d.setCondition(n, problem{}, now, &plan)
		case !state.HasBlock(n):
			d.setCondition(n, problem{notAvailable, fmt.Sprintf(
				"no block of %s is free: all %d are taken; delete nodes that are "+
					"gone, or start the hub with a larger --cluster-cidr", d.Cluster, d.size())}, now, &plan)
		default:
			d.setCondition(n, d.problemOf(s, n), now, &plan)
		}
	}
	return plan
}

// Sharded returns a function only for all nodes together, and only if every node has a block. Then a
// node's problems follow from blocks that do not change.
func (d Decider) Sharded(s state.Snapshot, subjects []state.Subject) state.Decide {
	for range s.WithoutBlock() {
		return nil
	}
	if !d.Cluster.IsValid() || len(subjects) != s.Len(state.Nodes) || !state.OnlyNodes(subjects) {
		return nil
	}
	return func(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
		for _, q := range subjects {
			if n := s.Node(q.Name); n != nil {
				d.setCondition(n, d.problemOf(s, n), now, &plan)
			}
		}
		return plan
	}
}

// nodes returns the nodes of the subjects, and the nodes whose blocks overlap their new or old
// blocks. The value true means that the node needs a block.
func (d Decider) nodes(s state.Snapshot, subjects []state.Subject) map[string]bool {
	nodes := make(map[string]bool, len(subjects))
	touch := func(blocks []netip.Prefix) {
		for _, b := range blocks {
			for _, holders := range s.Overlapping(b) {
				for _, name := range holders {
					nodes[name] = false
				}
			}
		}
	}
	there := 0
	for _, q := range subjects {
		if _, known := nodes[q.Name]; !known && s.Node(q.Name) != nil {
			there++
		}
		nodes[q.Name] = false
	}
	if there == s.Len(state.Nodes) {
		return nodes // without a range, overlaps are not checked
	}
	for _, q := range subjects {
		if had, ok := q.Was.([]netip.Prefix); ok {
			touch(had)
		}
		if n := s.Node(q.Name); n != nil {
			touch(state.BlocksOf(n))
		}
	}
	return nodes
}

// changed tells whether a change concerns a node's blocks, and returns the previous version of the
// node.
func changed(c state.Applied) (old *corev1.Node, ok bool) {
	if c.Key.Kind != state.Nodes || c.Change.Source == source {
		return nil, false
	}
	old, _ = c.Old.(*corev1.Node)
	next, _ := c.New.(*corev1.Node)
	switch {
	case next == nil:
		return old, old != nil && state.HasBlock(old)
	case old == nil, !slices.Equal(old.Spec.PodCIDRs, next.Spec.PodCIDRs), old.Spec.PodCIDR != next.Spec.PodCIDR:
		return old, true
	}
	// A node without a block still needs its condition.
	return old, !state.HasBlock(next) && state.NodeCondition(next, fleet.ConditionPodCIDRAvailable) == nil
}

// assign assigns the free blocks in order to the nodes without one, the oldest node first.
func (d Decider) assign(s state.Snapshot, plan *state.Plan, nodes map[string]bool) {
	blocks, from := s.Blocks(d.Cluster, d.Bits), 0
	for n := range s.WithoutBlock() {
		i, ok := d.free(s, blocks, from)
		if !ok {
			return
		}
		from = i + 1
		nodes[n.Name] = true
		n = state.Fork(n)
		n.Spec.PodCIDR = d.block(i).String()
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
		n.Status.Conditions = without(n.Status.Conditions)
		c := state.Put(n, fmt.Sprintf("node %s gets the addresses %s", n.Name, n.Spec.PodCIDR))
		c.Source = source
		plan.Do(c)
	}
}

// free returns the number of the first free block that is not below from. have are the blocks of
// this size. They cannot overlap, so the i-th has the number i while there is no gap, and binary
// search finds the first gap. Blocks of other sizes, which only users write, are skipped.
func (d Decider) free(s state.Snapshot, have state.Blocks, from int) (int, bool) {
	for from < d.size() {
		first := sort.Search(have.Len(), func(i int) bool { return d.number(have.At(i).Addr()) >= from })
		from += sort.Search(have.Len()-first, func(i int) bool { return d.number(have.At(first+i).Addr()) > from+i })
		if from >= d.size() {
			break
		}
		next := from
		for b := range s.Overlapping(d.block(from)) {
			_, end := d.span(b)
			next = max(next, end)
		}
		if next == from {
			return from, true
		}
		from = next
	}
	return 0, false
}

// problemOf returns the problem of a node's blocks: they are outside the range, or overlap the
// blocks of an older node.
func (d Decider) problemOf(s state.Snapshot, n *corev1.Node) (what problem) {
	var owner *corev1.Node
	for i, b := range state.BlocksOf(n) {
		if i == 0 && (b.Bits() < d.Cluster.Bits() || !d.Cluster.Contains(b.Addr())) {
			what = problem{outOfRange, fmt.Sprintf(
				"the addresses %s are not in the fleet's range %s, so another network may use them too",
				n.Spec.PodCIDR, d.Cluster)}
		}
		if !b.Overlaps(d.Cluster) {
			continue
		}
		for _, holders := range s.Overlapping(b) {
			for _, name := range holders {
				if other := s.Node(name); byAge(other, n) < 0 && (owner == nil || byAge(other, owner) < 0) {
					owner = other
				}
			}
		}
	}
	if owner != nil {
		what = problem{conflict, fmt.Sprintf(
			"the addresses %s overlap %s of node %s, which is older: pods of both nodes can have the same address",
			n.Spec.PodCIDR, owner.Spec.PodCIDR, owner.Name)}
	}
	return what
}

// A problem is the reason and message of the condition; zero: no problem.
type problem struct{ reason, message string }

// setCondition updates a node's condition from its problem.
func (d Decider) setCondition(n *corev1.Node, what problem, now time.Time, plan *state.Plan) {
	have := state.NodeCondition(n, fleet.ConditionPodCIDRAvailable)
	if have == nil && what == (problem{}) || have != nil && have.Status == corev1.ConditionFalse &&
		have.Reason == what.reason && have.Message == what.message {
		return
	}
	at := metav1.NewTime(now)
	next := state.Fork(n)
	next.Status.Conditions = without(next.Status.Conditions)
	c := state.Put(next, "")
	if what != (problem{}) {
		cond := corev1.NodeCondition{Type: fleet.ConditionPodCIDRAvailable, Status: corev1.ConditionFalse,
			Reason: what.reason, Message: what.message, LastHeartbeatTime: at, LastTransitionTime: at}
		if have != nil && have.Status == cond.Status {
			cond.LastTransitionTime = have.LastTransitionTime
		}
		next.Status.Conditions = append([]corev1.NodeCondition{cond}, next.Status.Conditions...) // Ready stays last
		c.Why = fmt.Sprintf("node %s: %s", n.Name, what.message)
		c = c.Warning(what.reason)
	}
	plan.Do(c)
}

func without(all []corev1.NodeCondition) []corev1.NodeCondition {
	return slices.DeleteFunc(all, func(c corev1.NodeCondition) bool { return c.Type == fleet.ConditionPodCIDRAvailable })
}

// byAge sorts the older node first, because the first owner of a block keeps it.
func byAge(a, b *corev1.Node) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
