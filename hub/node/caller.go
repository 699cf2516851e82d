package node

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A Caller is a device as its connection identifies it.
type Caller struct {
	Node    string
	Key     string // sha256 of its certificate's public key, hex; empty: development listener
	Machine string // from the client ID; empty: not known
	Boot    string // from the will; empty: not known
}

// ErrStranger means that a device may not act for a node, or no longer.
var ErrStranger = errors.New("not this node's device")

// speaks checks whether a caller may act for its node. The caller needs the key that joined last,
// or, if no device has joined, the development listener. speaks runs at each connection and again
// in the pass that handles a message, because another device may have joined in between.
func speaks(s state.Snapshot, c Caller) error {
	enrolled := ""
	if rec := s.Record(c.Node); rec != nil {
		enrolled = rec.Key
	}
	switch {
	case enrolled == c.Key:
		return nil
	case c.Key == "":
		return fmt.Errorf("%w: node %s has joined with a certificate, so the development listener may not act for "+
			"it; connect over TLS, or delete the Node", ErrStranger, c.Node)
	}
	return fmt.Errorf("%w: node %s was removed from this hub or is another device now; join again with a new token",
		ErrStranger, c.Node)
}

// Speaks tells whether a caller may act for its node now.
func (d *Devices) Speaks(c Caller) bool { return speaks(d.Snapshot(), c) == nil }

// Limits that distinguish two devices with one identity from one device that restarts.
const (
	deadLinkHalfIntervals = 3 // a link without a message for this many half lease intervals counts as dead
	claimantMemory        = 2 * time.Minute
	underWay              = time.Second // time for messages that were sent before the newcomer connected
)

// A claimant is a second device that claims a node.
type claimant struct {
	boot string
	at   time.Duration // time of the first attempt, since the loop's start
	last time.Duration
}

// Connect checks whether a device may be this node now. While the incumbent is alive, another
// machine is refused, and the incumbent keeps its session. A device without a machine ID may
// replace only another device without one. The same machine is accepted if it has the same boot, or
// if the incumbent's link is silent. Boots distinguish two agents on boards with one identity.
func (d *Devices) Connect(c Caller) error {
	s := d.Snapshot()
	if err := speaks(s, c); err != nil {
		return err
	}
	rec := s.Record(c.Node)
	if !d.incumbent(s, rec) || c.Boot != "" && c.Boot == rec.Boot && c.Machine == rec.MachineID {
		return nil
	}
	p, now := d.nodes.get(c.Node), d.Age()
	if rec.MachineID != "" && c.Machine != rec.MachineID {
		p.refusedClaimant.Store(&claimant{c.Boot, now, now})
		err := fmt.Errorf("%w: node %s is machine %s, whose lease is alive; give machine %s another name",
			ErrConflict, c.Node, rec.MachineID, orUnknown(c.Machine))
		return errors.Join(err, d.noteConflict(c.Node, c.Machine))
	}
	lastMessage := time.Duration(p.seen.Load())
	if c.Boot == "" || !p.link.Load() || now-lastMessage > state.Lease(rec, d.LeaseInterval)*deadLinkHalfIntervals/2 {
		return nil
	}
	r := &claimant{c.Boot, now, now}
	if was := p.refusedClaimant.Load(); was != nil && was.boot == c.Boot && now-was.last < time.Minute {
		r.at = was.at
	}
	p.refusedClaimant.Store(r)
	err := fmt.Errorf("%w: another agent is connected as node %s, and sent its last message %s ago; stop that agent first",
		ErrConflict, c.Node, (now - lastMessage).Round(time.Millisecond))
	if lastMessage > r.at+underWay { // the incumbent has sent since, so its link is not a dead one
		err = errors.Join(err, d.noteConflict(c.Node, c.Machine))
	}
	return err
}

func orUnknown(machine string) string {
	if machine == "" {
		return "unknown"
	}
	return machine
}

// incumbent tells whether a node has a device that is alive.
func (d *Devices) incumbent(s state.Snapshot, rec *state.Record) bool {
	if rec == nil || rec.Boot == "" {
		return false
	}
	seen := s.Seen(rec.Name)
	if t, ok := d.Seen(rec.Name); ok && t.After(seen) {
		seen = t
	}
	deadline := seen.Add(d.Grace)
	if n := s.Node(rec.Name); n != nil {
		deadline = state.Timeouts{Grace: d.Grace, Startup: d.Grace, Lease: d.LeaseInterval}.Deadline(s, n, seen)
	}
	return !d.Now().After(deadline)
}

// noRecentClaimant tells whether no other device has claimed the node recently.
func (d *Devices) noRecentClaimant(node string) bool {
	last := time.Duration(0) // the hub's start counts as a claim, because earlier claims are not known
	if r := d.nodes.get(node).refusedClaimant.Load(); r != nil {
		last = r.last
	}
	return d.Age() > last+claimantMemory
}

// noteConflict stores that a second machine claims a node.
func (d *Devices) noteConflict(node, machine string) error {
	if rec := d.Snapshot().Record(node); rec != nil && rec.Conflict != "" &&
		(rec.Conflict == orUnknown(machine) || !d.nodes.get(node).conflictAllowed(d.Age())) {
		return nil // one card can have many clones, and each retries for ever
	}
	ctx, cancel := withTimeout()
	defer cancel()
	_, err := d.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		return conflict(s, node, machine, now), nil
	})
	return err
}

// conflict returns the changes that report a second machine.
func conflict(s state.Snapshot, node, machine string, now time.Time) (changes []state.Change) {
	rec, n := s.Record(node), s.Node(node)
	if rec == nil || n == nil || rec.Conflict == orUnknown(machine) {
		return nil
	}
	rec = rec.DeepCopy()
	rec.Conflict = orUnknown(machine)
	n = state.Fork(n)
	why := fmt.Sprintf("node %s: machine %s is refused: machine %s is this node, and its lease is alive", node,
		orUnknown(machine), orUnknown(rec.MachineID))
	if machine == rec.MachineID {
		why = fmt.Sprintf("node %s: two devices have its identity, and both say that they are machine %s: one is "+
			"refused while the other is alive; join one of them again", node, orUnknown(machine))
	}
	setCondition(n, corev1.NodeCondition{Type: fleet.ConditionIdentityConflict, Status: corev1.ConditionTrue,
		Reason: "SecondMachine", Message: why}, now)
	return []state.Change{state.Put(rec, ""), state.Put(n, why).Warning("IdentityConflict")}
}

func setCondition(n *corev1.Node, c corev1.NodeCondition, now time.Time) {
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if have := state.NodeCondition(n, c.Type); have != nil {
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		*have = c
		return
	}
	n.Status.Conditions = append(n.Status.Conditions, c)
}
