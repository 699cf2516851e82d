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
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// MaxBlocks bounds how many blocks a range may have: they are counted one by one.
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
// that people gave. It walks the nodes only when a block is wanted, given by
// somebody else or given back: once for all that come together.
func (d Decider) Decide(s state.Snapshot, now time.Time) (plan state.Plan) {
	if !d.concerned(s) {
		return plan
	}
	taken, wrong := d.survey(s)
	var waiting []*corev1.Node
	for n := range s.Nodes() {
		if !given(n) && d.Cluster.IsValid() {
			waiting = append(waiting, n)
			continue
		}
		d.say(n, wrong[n.Name], now, &plan)
	}
	slices.SortFunc(waiting, byAge)
	free := 0
	for _, n := range waiting {
		for free < len(taken) && taken[free] != nil {
			free++
		}
		if free == len(taken) {
			d.say(n, complaint{notAvailable, fmt.Sprintf("no block of %s is free: all %d are taken; delete nodes that are gone, or start the hub with a larger --cluster-cidr", d.Cluster, len(taken))}, now, &plan)
			continue
		}
		taken[free] = n
		n = n.DeepCopy()
		n.Spec.PodCIDR = d.block(free).String()
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
		n.Status.Conditions = without(n.Status.Conditions)
		c := state.Put(n, fmt.Sprintf("node %s gets the addresses %s", n.Name, n.Spec.PodCIDR))
		c.Source = source
		plan.Do(c)
	}
	return plan
}

// concerned tells whether anything may have changed that blocks depend on.
func (d Decider) concerned(s state.Snapshot) bool {
	if s.Look.All {
		return true
	}
	if !d.Cluster.IsValid() {
		return false
	}
	for _, a := range s.Look.Recent {
		if a.Key.Kind != state.Nodes || a.Change.Source == source {
			continue
		}
		old, _ := a.Old.(*corev1.Node)
		next, _ := a.New.(*corev1.Node)
		switch {
		case next == nil:
			if old != nil && given(old) {
				return true
			}
		case old == nil, !slices.Equal(old.Spec.PodCIDRs, next.Spec.PodCIDRs), old.Spec.PodCIDR != next.Spec.PodCIDR:
			return true
		case !given(next) && state.NodeCondition(next, fleet.ConditionPodCIDRAvailable) == nil:
			return true // it does not even know that it has none
		}
	}
	return false
}

// survey returns who has each block of the range, and what is wrong with the blocks
// of the nodes that it names.
func (d Decider) survey(s state.Snapshot) (taken []*corev1.Node, wrong map[string]complaint) {
	if !d.Cluster.IsValid() {
		return nil, nil
	}
	taken, wrong = make([]*corev1.Node, d.size()), map[string]complaint{}
	var blocks []netip.Prefix
	for n := range s.Nodes() {
		blocks = appendBlocks(blocks[:0], n)
		if len(blocks) > 0 && (blocks[0].Bits() < d.Cluster.Bits() || !d.Cluster.Contains(blocks[0].Addr())) {
			wrong[n.Name] = complaint{outOfRange, fmt.Sprintf("the addresses %s are not in the fleet's range %s, so nobody sees to it that they are this node's alone", n.Spec.PodCIDR, d.Cluster)}
		}
		for _, p := range blocks {
			first, end := d.span(p)
			for i := first; i < end; i++ {
				switch other := taken[i]; {
				case other == nil:
					taken[i] = n
				case other == n || !overlap(n, other):
				case byAge(other, n) < 0:
					wrong[n.Name] = clash(n, other)
				default:
					taken[i], wrong[other.Name] = n, clash(other, n)
				}
			}
		}
	}
	return taken, wrong
}

// A complaint is why a node's block is not as it should be; the zero complaint: it is.
type complaint struct{ reason, message string }

func clash(n, owner *corev1.Node) complaint {
	return complaint{conflict, fmt.Sprintf("the addresses %s overlap %s of node %s, which is older: pods of the two cannot tell each other apart", n.Spec.PodCIDR, owner.Spec.PodCIDR, owner.Name)}
}

// say brings a node's condition in line with what is wrong with its block.
func (d Decider) say(n *corev1.Node, what complaint, now time.Time, plan *state.Plan) {
	have := state.NodeCondition(n, fleet.ConditionPodCIDRAvailable)
	if have == nil && what == (complaint{}) || have != nil && have.Status == corev1.ConditionFalse && have.Reason == what.reason && have.Message == what.message {
		return
	}
	at := metav1.NewTime(now)
	next := n.DeepCopy()
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
