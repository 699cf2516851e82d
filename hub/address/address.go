// Package address decides which block of addresses each node's pods get.
//
// A Node without one gets the first free block of the fleet's range, keeps it for
// its life, and gives it back when it is deleted. A block that an administrator has
// written into a Node stands, and is nobody else's. Where no block is free the node
// works without one, says so in a condition, and is served when one comes free. It
// never takes a block away or changes one: what makes a network of it is the
// device's agent.
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

// MaxBlocks bounds how many blocks a range may have: more than any fleet has nodes.
const MaxBlocks = 1 << 20

// A Decider gives blocks with Bits leading bits out of Cluster, which has at most
// MaxBlocks of them. The zero Decider gives none, and has nothing to say of those
// that there are.
type Decider struct {
	Cluster netip.Prefix
	Bits    int
}

// Reasons of the condition PodCIDRAvailable=False and of its event.
const (
	notAvailable = "CIDRNotAvailable" // Kubernetes' word
	conflict     = "CIDRConflict"
	outOfRange   = "CIDROutOfRange"
)

// source marks the decider's own changes, which it need not look at again.
const source = "flotilla-hub/address"

// Decide gives blocks to the nodes that have none, and says what is wrong with those
// that people gave. It looks at the nodes whose blocks have changed and at those that
// have the same addresses: what it costs does not depend on how many others there are.
func (d Decider) Decide(s state.Snapshot, now time.Time) (plan state.Plan) {
	nodes, free := d.subjects(s)
	if free {
		d.give(s, &plan, nodes)
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		switch n := s.Node(name); {
		case n == nil || nodes[name]:
		case !d.Cluster.IsValid():
			d.say(n, complaint{}, now, &plan)
		case !state.HasBlock(n):
			d.say(n, complaint{notAvailable, fmt.Sprintf("no block of %s is free: all %d are taken; delete nodes that are gone, or start the hub with a larger --cluster-cidr", d.Cluster, d.size())}, now, &plan)
		default:
			d.say(n, d.wrong(s, n), now, &plan)
		}
	}
	return plan
}

// subjects returns the nodes that need be looked at (true would mean that one gets a
// block now), and whether one of them wants a block or a block may have come free.
func (d Decider) subjects(s state.Snapshot) (nodes map[string]bool, free bool) {
	nodes = map[string]bool{}
	if s.Look.All {
		for n := range s.Nodes() {
			nodes[n.Name] = false
		}
		return nodes, d.Cluster.IsValid()
	}
	if !d.Cluster.IsValid() {
		return nil, false
	}
	for _, a := range s.Look.Recent {
		old, next, ok := changed(a)
		if !ok {
			continue
		}
		nodes[a.Key.Name], free = false, true
		for _, n := range []*corev1.Node{old, next} {
			if n == nil {
				continue
			}
			for _, b := range state.BlocksOf(n) {
				for _, holders := range s.Overlapping(b) {
					for _, name := range holders {
						nodes[name] = false
					}
				}
			}
		}
	}
	return nodes, free
}

// changed tells whether a change has to do with a node's blocks.
func changed(a state.Applied) (old, next *corev1.Node, ok bool) {
	if a.Key.Kind != state.Nodes || a.Change.Source == source {
		return nil, nil, false
	}
	old, _ = a.Old.(*corev1.Node)
	next, _ = a.New.(*corev1.Node)
	switch {
	case next == nil:
		return old, nil, old != nil && state.HasBlock(old)
	case old == nil, !slices.Equal(old.Spec.PodCIDRs, next.Spec.PodCIDRs), old.Spec.PodCIDR != next.Spec.PodCIDR:
		return old, next, true
	}
	// It does not even know that it has none.
	return old, next, !state.HasBlock(next) && state.NodeCondition(next, fleet.ConditionPodCIDRAvailable) == nil
}

// give gives the free blocks, the first one first, to the nodes that have none, the
// oldest first.
func (d Decider) give(s state.Snapshot, plan *state.Plan, nodes map[string]bool) {
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

// free returns the number of the first free block of the range that is not below
// from. have are the blocks of this very size: they cannot overlap, so as long as
// none is missing the i-th that follows has the i-th number, and the first gap is
// found by halving. Blocks of other sizes, which only people give, are stepped over.
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

// wrong returns what is wrong with a node's blocks: that they are not of the range, or
// that an older node has some of their addresses.
func (d Decider) wrong(s state.Snapshot, n *corev1.Node) (what complaint) {
	var owner *corev1.Node
	for i, b := range state.BlocksOf(n) {
		if i == 0 && (b.Bits() < d.Cluster.Bits() || !d.Cluster.Contains(b.Addr())) {
			what = complaint{outOfRange, fmt.Sprintf("the addresses %s are not in the fleet's range %s, so nobody sees to it that they are this node's alone", n.Spec.PodCIDR, d.Cluster)}
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
		what = complaint{conflict, fmt.Sprintf("the addresses %s overlap %s of node %s, which is older: pods of the two cannot tell each other apart", n.Spec.PodCIDR, owner.Spec.PodCIDR, owner.Name)}
	}
	return what
}

// A complaint is why a node's block is not as it should be; the zero complaint: it is.
type complaint struct{ reason, message string }

// say brings a node's condition in line with what is wrong with its block.
func (d Decider) say(n *corev1.Node, what complaint, now time.Time, plan *state.Plan) {
	have := state.NodeCondition(n, fleet.ConditionPodCIDRAvailable)
	if have == nil && what == (complaint{}) || have != nil && have.Status == corev1.ConditionFalse && have.Reason == what.reason && have.Message == what.message {
		return
	}
	at := metav1.NewTime(now)
	next := state.Fork(n)
	next.Status.Conditions = without(next.Status.Conditions)
	c := state.Put(next, "")
	if what != (complaint{}) {
		cond := corev1.NodeCondition{Type: fleet.ConditionPodCIDRAvailable, Status: corev1.ConditionFalse, Reason: what.reason, Message: what.message, LastHeartbeatTime: at, LastTransitionTime: at}
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

// byAge sorts the older node first: who had a block first keeps it.
func byAge(a, b *corev1.Node) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
