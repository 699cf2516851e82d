package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// ErrStale means that a message is not of the node's current boot, or not newer
// than what the hub has: it is ignored.
var ErrStale = errors.New("not news")

// ErrConflict means that two devices claim to be one node.
var ErrConflict = errors.New("identity conflict")

// ErrRefused means that the hub's settings do not let the device be a node.
var ErrRefused = errors.New("refused")

// keptBoots is how many past boots are remembered; they never become current again.
const keptBoots = 8

// Connect tells whether a machine may be this node now: while the incumbent's
// lease lives, another machine may not, not even take its session over. machine ""
// is unknown.
func (l *Loop) Connect(node, machine string) error {
	rec := l.Snapshot().Record(node)
	if rec == nil || machine == "" || rec.MachineID == "" || rec.MachineID == machine || !l.alive(node) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		return conflict(s, node, machine, now), nil
	})
	return errors.Join(fmt.Errorf("%w: node %s is machine %s, whose lease is alive; machine %s must have a name of its own", ErrConflict, node, rec.MachineID, machine), err)
}

// Connected and Disconnected note the state of a link: shown, and deciding nothing.
// What a device did not hear over an earlier link delays nothing that it is told now.
func (l *Loop) Connected(node string) {
	p := l.pulses.get(node)
	p.link.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.resent = backoff{}, backoff{}
}
func (l *Loop) Disconnected(node string) { l.pulses.get(node).link.Store(false) }

// alive tells whether a node's lease lives. After a start of the hub every node
// has its full grace.
func (l *Loop) alive(node string) bool {
	seen := l.Snapshot().Seen(node)
	if t, ok := l.lastSeen(node); ok && t.After(seen) {
		seen = t
	}
	return !l.Now().After(seen.Add(l.Grace))
}

// conflict records that a second machine claims to be a node.
func conflict(s state.Snapshot, node, machine string, now time.Time) (changes []state.Change) {
	rec, n := s.Record(node), s.Node(node)
	if rec == nil || n == nil || rec.Conflict == machine {
		return nil
	}
	rec = rec.DeepCopy()
	rec.Conflict = machine
	n = state.Fork(n)
	why := fmt.Sprintf("node %s: machine %s is refused: machine %s is this node, and its lease is alive", node, machine, rec.MachineID)
	setCondition(n, corev1.NodeCondition{Type: fleet.ConditionIdentityConflict, Status: corev1.ConditionTrue, Reason: "SecondMachine", Message: why}, now)
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

// Status hears a device's status. It returns when what follows from it is durable.
func (l *Loop) Status(ctx context.Context, node string, st wire.Status) error {
	p := l.pulses.get(node)
	if boot := p.boot.Load(); boot != nil && *boot == st.Boot && st.Seq <= p.status.Load() {
		return fmt.Errorf("status %d of %s: %w", st.Seq, node, ErrStale)
	}
	alive := l.alive(node)
	_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		changes, err := l.status(s, node, st, alive, now)
		if err == nil { // heard: the deciders of this very pass must know
			p.seen.Store(int64(l.age()))
		}
		return changes, err
	})
	if errors.Is(err, ErrConflict) {
		return errors.Join(err, l.noteConflict(ctx, node, st.MachineID))
	}
	if err != nil {
		return err
	}
	if boot := p.boot.Load(); boot != nil && *boot == st.Boot {
		p.status.Store(st.Seq)
		hardware := st.Hardware // a variable of its own: a pointer into st would keep all of it
		if rec := l.Snapshot().Record(node); rec != nil && bytes.Equal(rec.Hardware, hardware) {
			hardware = rec.Hardware
		}
		p.hardware.Store(&hardware)
	}
	return nil
}

func (l *Loop) noteConflict(ctx context.Context, node, machine string) error {
	_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		return conflict(s, node, machine, now), nil
	})
	return err
}

// status returns what follows from a device's status.
func (l *Loop) status(s state.Snapshot, node string, st wire.Status, alive bool, now time.Time) (changes []state.Change, err error) {
	old := s.Record(node)
	rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	if old != nil {
		rec = old.DeepCopy()
	}
	if rec.Boot != st.Boot {
		switch {
		case slices.Contains(rec.PastBoots, st.Boot):
			return nil, fmt.Errorf("status of %s: boot %s was followed by %s: %w", node, st.Boot, rec.Boot, ErrStale)
		case rec.Boot != "" && alive && rec.MachineID != "" && rec.MachineID != st.MachineID:
			return nil, fmt.Errorf("%w: node %s is machine %s, whose lease is alive, not %s", ErrConflict, node, rec.MachineID, st.MachineID)
		}
		if rec.Boot != "" {
			rec.PastBoots = append(rec.PastBoots, rec.Boot)
			if extra := len(rec.PastBoots) - keptBoots; extra > 0 {
				rec.PastBoots = rec.PastBoots[extra:]
			}
		}
		rec.Unmet = rec.Unmet || rec.Boot == ""
		rec.Boot, rec.Conflict = st.Boot, ""
	}
	rec.MachineID, rec.AgentVersion = st.MachineID, st.AgentVersion
	if stable(rec.Hardware) != stable(st.Hardware) {
		rec.Hardware = st.Hardware
	}
	have := s.Node(node)
	if old == nil || !apiequality.Semantic.DeepEqual(old, rec) {
		changes = append(changes, introduce(state.Put(rec, ""), have, old, st))
	}

	if have == nil && l.Manual {
		return nil, fmt.Errorf("%w: node %s: the hub runs with --register-node=false, so create the Node first", ErrRefused, node)
	}
	if have == nil {
		n, refused := l.register(s, node, rec, st, now)
		return append(changes, registered(n, st, refused)), nil
	}
	n := state.Fork(have)
	l.report(n, st, now)
	l.refreshLabels(s, n, rec, st)
	if rec.Conflict == "" {
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == fleet.ConditionIdentityConflict })
	}
	if sameNode(have, n) {
		return changes, nil
	}
	c := state.Put(n, "")
	if was, is := state.ReadyOf(have), state.ReadyOf(n); was != is {
		ready := state.NodeCondition(n, corev1.NodeReady)
		c.Why = fmt.Sprintf("node %s Ready=%s: %s", node, is, strings.TrimSuffix(ready.Message, "."))
		if is == corev1.ConditionTrue {
			c = c.Event("NodeReady")
		} else {
			c = c.Warning("NodeNotReady")
		}
	}
	return append(changes, c), nil
}

// introduce tells, with the change of a node's record, what of its device nobody
// else tells: that it is now the Node that somebody made by hand, or has rebooted.
func introduce(c state.Change, have *corev1.Node, old *state.Record, st wire.Status) state.Change {
	if have == nil {
		return c
	}
	was, is := have.Status.NodeInfo.BootID, st.Status.NodeInfo.BootID
	switch {
	case old == nil || old.MachineID == "":
		c.Why = fmt.Sprintf("register node %s, which was made by hand on site %s: %s", have.Name, state.SiteOf(have), about(st))
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

// register makes the Node of a device that reports for the first time, and names what
// it asked for and does not get. One that came in through the development listener has
// no join token to say its site, and says it itself.
func (l *Loop) register(s state.Snapshot, node string, rec *state.Record, st wire.Status, now time.Time) (n *corev1.Node, refused []string) {
	n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	n.Labels, n.Spec.Taints, refused = own(st.Registration, !rec.Enrolled.IsZero())
	for k, v := range rec.Labels {
		n.Labels[k] = v
	}
	n.Spec.Unschedulable = st.Registration.Unschedulable
	l.report(n, st, now)
	l.refreshLabels(s, n, rec, st)
	if p, ok := s.Get(state.Key{Kind: state.BoardProfiles, Name: n.Labels[fleet.LabelProfile]}).(*fleet.BoardProfile); ok && p != nil {
		for k, v := range p.Spec.Labels {
			n.Labels[fleet.LabelBoardPrefix+k] = v
		}
		for _, t := range p.Spec.Taints {
			n.Spec.Taints = addTaint(n.Spec.Taints, t)
		}
	}
	return n, refused
}

// refreshLabels sets the default labels: they follow the device, all others belong
// to the administrator.
func (l *Loop) refreshLabels(s state.Snapshot, n *corev1.Node, rec *state.Record, st wire.Status) {
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	hostname := n.Name
	for _, a := range st.Status.Addresses {
		if a.Type == corev1.NodeHostName && a.Address != "" {
			hostname = a.Address
		}
	}
	set := func(key, value string) {
		if value != "" && valid(key, value) {
			n.Labels[key] = value
		}
	}
	set(corev1.LabelHostname, hostname)
	set(corev1.LabelOSStable, st.Status.NodeInfo.OperatingSystem)
	set("beta.kubernetes.io/os", st.Status.NodeInfo.OperatingSystem)
	set(corev1.LabelArchStable, st.Status.NodeInfo.Architecture)
	set("beta.kubernetes.io/arch", st.Status.NodeInfo.Architecture)
	set(fleet.LabelBoard, st.Registration.Labels[fleet.LabelBoard])
	if rec.Site != "" {
		n.Labels[corev1.LabelTopologyZone] = rec.Site
	}
	if l.Profile != nil {
		if name := l.Profile(s, n.Status, rec.Hardware); name != "" {
			n.Labels[fleet.LabelProfile] = name
		}
	}
}

// report puts what a device reports of itself into its Node. The device's clock
// decides nothing: a condition that changed, changed now. Nor does what it says of
// conditions that are the hub's. One that says nothing of Ready is not ready.
func (l *Loop) report(n *corev1.Node, st wire.Status, now time.Time) {
	next := *st.Status.DeepCopy()
	intern(&next)
	next.Conditions = slices.DeleteFunc(next.Conditions, func(c corev1.NodeCondition) bool {
		return hubs(c.Type) || c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && c.Status != corev1.ConditionFalse
	})
	if !slices.ContainsFunc(next.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		next.Conditions = append(next.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "the device says neither that it is ready nor that it is not",
		})
	}
	for i := range next.Conditions {
		c := &next.Conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		if have := state.NodeCondition(n, c.Type); have != nil && have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
	}
	for _, c := range n.Status.Conditions { // the hub's own stay
		if !slices.ContainsFunc(next.Conditions, func(d corev1.NodeCondition) bool { return d.Type == c.Type }) && hubs(c.Type) {
			next.Conditions = append(next.Conditions, c)
		}
	}
	// Ready stands last, where people look for it.
	slices.SortStableFunc(next.Conditions, func(a, b corev1.NodeCondition) int {
		last := func(c corev1.NodeCondition) int {
			if c.Type == corev1.NodeReady {
				return 1
			}
			return 0
		}
		return last(a) - last(b)
	})
	n.Status = next
}

func hubs(t corev1.NodeConditionType) bool {
	return t == fleet.ConditionFlapping || t == fleet.ConditionIdentityConflict || t == fleet.ConditionPodCIDRAvailable
}

// sameNode compares but for heartbeat times: one that says nothing new is not
// worth a write.
func sameNode(a, b *corev1.Node) bool {
	b = b.DeepCopy()
	for i := range b.Status.Conditions {
		c := &b.Status.Conditions[i]
		if have := state.NodeCondition(a, c.Type); have != nil {
			c.LastHeartbeatTime = have.LastHeartbeatTime
		}
	}
	return apiequality.Semantic.DeepEqual(a.Status, b.Status) && apiequality.Semantic.DeepEqual(a.Labels, b.Labels)
}
