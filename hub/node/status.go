package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// ErrStale means that a message is not of the node's current boot, or not newer than the last one.
// It is ignored.
var ErrStale = errors.New("not news")

// errPast means that a message is of an earlier boot.
var errPast = fmt.Errorf("%w: of a past boot", ErrStale)

// ErrConflict means that two devices claim to be one node.
var ErrConflict = errors.New("identity conflict")

// ErrRefused means that the hub's settings do not allow the device to be a node.
var ErrRefused = errors.New("refused")

// keptBoots is how many past boots are stored; they never become current again.
const keptBoots = 8

// Connected and Disconnected store the state of a link, only to show it. A new link resets the
// back-off of repeated messages.
func (d *Devices) Connected(node string) {
	p := d.nodes.get(node)
	p.link.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refreshBackoff, p.resendBackoff = backoff{}, backoff{}
}
func (d *Devices) Disconnected(node string) { d.nodes.get(node).link.Store(false) }

// Status handles a device's status. It returns when the consequences are durable.
func (d *Devices) Status(ctx context.Context, c Caller, st wire.Status) error {
	node := c.Node
	p := d.nodes.get(node)
	if boot := p.boot.Load(); boot != nil && *boot == st.Boot && st.Seq <= p.status.Load() {
		return fmt.Errorf("status %d of %s: %w", st.Seq, node, ErrStale)
	}
	spent, held := !p.allows(d.Age()), false
	done, err := d.Do(control.FromNode(ctx, node), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		st := st
		if spent && speaks(s, c) == nil {
			if st, held = d.bootOnly(s, node, st); held {
				p.deferredMessages.Add(1)
				if rec := s.Record(node); rec.Boot == st.Boot {
					p.seen.Store(int64(d.Age()))
				}
				return nil, nil // the next lease shows that the hub is behind, and the hub requests the status again
			}
		}
		changes, err := d.status(s, c, st, now)
		if err == nil { // before this pass runs the deciders
			p.seen.Store(int64(d.Age()))
			// Shown notices a later overwrite, and the next lease a failed commit.
			p.statusOverwritten.Store(false)
		}
		return changes, err
	})
	p.charge(done)
	if errors.Is(err, ErrConflict) {
		return errors.Join(err, d.noteConflict(node, st.MachineID))
	}
	if errors.Is(err, errPast) { // Connect has accepted the device, so no other device is alive
		d.renewBoot(node, p)
	}
	if err != nil {
		return err
	}
	if boot := p.boot.Load(); boot != nil && *boot == st.Boot {
		if !spent {
			p.status.Store(st.Seq)
		}
		hardware := st.Hardware // a copy, because a pointer into st would keep all of st in memory
		if have := d.Snapshot().Report(node).Text(); bytes.Equal(have, hardware) {
			hardware = have
		}
		p.hardware.Store(&hardware)
		if st.Vitals != nil {
			p.vitals.Store(st.Vitals)
			p.vitalsAreNew.Store(true)
		}
	}
	return nil
}

// bootOnly reduces the status of a device that has used up its limit. What is left is a new boot or
// a change of Ready. held: neither has changed, and the status is deferred.
func (d *Devices) bootOnly(s state.Snapshot, node string, st wire.Status) (least wire.Status, held bool) {
	rec, n := s.Record(node), s.Node(node)
	if rec == nil || n == nil {
		return st, false
	}
	ready := slices.IndexFunc(st.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady
	})
	same := ready >= 0 && st.Status.Conditions[ready].Status == state.ReadyOf(n)
	if rec.Boot == st.Boot && same || !d.nodes.get(node).historyAllowed(d.Age()) {
		return st, true
	}
	least = st
	least.AgentVersion, least.Hardware, least.Registration = rec.AgentVersion, nil,
		wire.Registration{Labels: maps.Clone(n.Labels)}
	maps.DeleteFunc(least.Registration.Labels, func(k, _ string) bool { return !measured(k) })
	least.Status = *n.Status.DeepCopy()
	for _, name := range extendedIn(least.Status.Capacity) {
		if !slices.Contains(rec.Extended, name) { // an administrator wrote this resource
			delete(least.Status.Capacity, corev1.ResourceName(name))
			delete(least.Status.Allocatable, corev1.ResourceName(name))
		}
	}
	if _, awaits := n.Annotations[state.AwaitsProfile]; awaits { // the unchanged capacity still awaits it
		least.Profile = new("")
	}
	least.Status.NodeInfo.BootID = st.Status.NodeInfo.BootID
	least.Status.Conditions = slices.DeleteFunc(least.Status.Conditions, func(c corev1.NodeCondition) bool {
		// Leave out conditions of other writers.
		return c.Type == corev1.NodeReady || isUnknownCondition(c.Type) && !slices.Contains(rec.Conditions, string(c.Type))
	})
	if ready >= 0 {
		least.Status.Conditions = append(least.Status.Conditions, st.Status.Conditions[ready])
	}
	return least, false
}

// status returns the changes from a device's status.
func (d *Devices) status(s state.Snapshot, c Caller, st wire.Status,
	now time.Time) (changes []state.Change, err error) {
	if err := speaks(s, c); err != nil {
		return nil, err
	}
	node := c.Node
	old := s.Record(node)
	rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	if old != nil {
		rec = old.DeepCopy()
	}
	if rec.Boot != st.Boot {
		switch {
		case slices.Contains(rec.PastBoots, st.Boot):
			return nil, fmt.Errorf("status of %s: boot %s was followed by %s: %w", node, st.Boot, rec.Boot, errPast)
		case d.incumbent(s, old) && rec.MachineID != "" && rec.MachineID != st.MachineID:
			return nil, fmt.Errorf("%w: node %s is machine %s, whose lease is alive, not %s", ErrConflict, node, rec.MachineID,
				st.MachineID)
		}
		rec.StoredUnknown = rec.StoredUnknown || rec.Boot == ""
		Retire(rec)
		rec.Boot, rec.Conflict = st.Boot, ""
	} else if rec.Conflict != "" && d.noRecentClaimant(node) {
		rec.Conflict = ""
	}
	var wrong []string
	st.Status, wrong = plausible(s, node, st.Status)
	if rec.MachineID != "" && rec.MachineID != st.MachineID {
		Replaced(rec)
	}
	rec.MachineID, rec.AgentVersion = st.MachineID, st.AgentVersion
	rec.Extended = extendedIn(st.Status.Capacity)
	firmwareChange(rec, &st)
	upgradeChange(rec, &st)
	rec.Conditions = unknownConditions(st.Status.Conditions)
	have := s.Node(node)
	if old == nil || !apiequality.Semantic.DeepEqual(old, rec) {
		changes = append(changes, deviceEvents(state.Put(rec, ""), have, old, st))
	}

	if have == nil && d.Manual {
		return nil, fmt.Errorf("%w: node %s: the hub runs with --register-node=false, so create the Node first", ErrRefused,
			node)
	}
	if have == nil {
		n, refused := d.register(s, node, rec, st, now)
		changes = append(changes, registered(n, st, refused))
		return append(changes, d.hardwareChange(s, node, st.Hardware, now)...), nil
	}
	changes = append(changes, d.hardwareChange(s, node, st.Hardware, now)...)
	changes = append(changes, volumeChanges(s, node, st.Volumes)...)
	if old != nil {
		changes = append(changes, d.firmwareEvent(s, have, old, rec, now)...)
		changes = append(changes, d.upgradeEvent(s, have, old, rec, now)...)
	}
	changes = append(changes, d.reportRejected(s, have, rejectedSentence(node, wrong, st.TooMuch), now)...)
	n := state.Fork(have)
	d.report(n, st, old, now)
	d.refreshLabels(s, n, rec, st)
	awaitProfile(n, st)
	if rec.Conflict == "" {
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == fleet.ConditionIdentityConflict
		})
	}
	if sameNode(have, n) {
		return changes, nil
	}
	put := state.Put(n, "")
	if was, is := state.ReadyOf(have), state.ReadyOf(n); was != is {
		ready := state.NodeCondition(n, corev1.NodeReady)
		put.Why = fmt.Sprintf("node %s Ready=%s: %s", node, is, strings.TrimSuffix(ready.Message, "."))
		if is == corev1.ConditionTrue {
			put = put.Event("NodeReady")
		} else {
			put = put.Warning("NodeNotReady")
		}
	}
	return append(changes, put), nil
}

// reportRejected returns the changes that report implausible parts of a status, once for the same
// parts.
func (d *Devices) reportRejected(s state.Snapshot, n *corev1.Node, what string, now time.Time) []state.Change {
	p := d.nodes.get(n.Name)
	if what == "" {
		p.rejectedFields.Store(nil)
		return nil
	}
	text := what
	if was := p.rejectedFields.Swap(&text); was != nil && *was == what || !p.eventAllowed(d.Age()) {
		return nil
	}
	return control.AddEvent(s, control.About(n),
		control.EventText{Type: corev1.EventTypeWarning, Reason: "ImplausibleReport", Message: what}, now)
}

// deviceEvents adds an event to the change of a node's record if the device took over a Node made
// by hand, replaced another machine, or was rebooted.
func deviceEvents(c state.Change, have *corev1.Node, old *state.Record, st wire.Status) state.Change {
	if have == nil {
		return c
	}
	was, is := have.Status.NodeInfo.BootID, st.Status.NodeInfo.BootID
	before, machine := have.Status.NodeInfo.MachineID, st.Status.NodeInfo.MachineID
	switch {
	case old == nil || old.Boot == "" && len(old.PastBoots) == 0:
		c.Why = fmt.Sprintf("register node %s, which was made by hand on site %s: %s", have.Name, state.SiteOf(have),
			about(st))
		c = c.Event("RegisteredNode")
	case before != "" && machine != "" && before != machine:
		c.Why = fmt.Sprintf("node %s is now machine %s, which replaces machine %s: %s", have.Name, machine,
			before, about(st))
		c = c.Event("RegisteredNode")
	case was != "" && is != "" && was != is:
		c.Why = fmt.Sprintf("node %s has been rebooted, boot id: %s", have.Name, is)
		c = c.Warning("Rebooted")
	default:
		return c
	}
	c.About = have
	return c
}

func about(st wire.Status) string {
	i := st.Status.NodeInfo
	return fmt.Sprintf("%s/%s, %s, %s", i.OperatingSystem, i.Architecture, i.OSImage, i.ContainerRuntimeVersion)
}
