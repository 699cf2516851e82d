package node

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// firmwareFor is the boot configuration that a node is told, signed for it and its board:
// that of its rollout, so that its device can stage it, with the permission to try it
// while the node has its turn. Nil for none: the device keeps what it has.
func firmwareFor(s state.Snapshot, node string, key ed25519.PrivateKey) *wire.Firmware {
	rec, n := s.Record(node), s.Node(node)
	if rec == nil || n == nil || rec.Assigned == nil || rec.FirmwareGeneration == 0 {
		return nil
	}
	r := s.Rollout(rec.Assigned.Rollout)
	if r == nil || r.Status.Digest == "" || r.Status.Digest != rec.Assigned.Digest ||
		wire.FirmwareDigest([]byte(r.Status.Document)) != r.Status.Digest {
		return nil
	}
	if _, err := fleet.ParseBootConfig([]byte(r.Status.Document)); err != nil {
		return nil // whoever wrote it into the status: nothing is signed that no device may take
	}
	f := wire.SignFirmware(key, node, compatibleOf(s, n, r.Spec.Profile), rec.FirmwareGeneration,
		[]byte(r.Status.Document))
	turn := rec.Assigned.Step == fleet.FirmwareTrying
	f.Try, f.Undo, f.Retry = turn && !r.Status.Undoing, turn && r.Status.Undoing, r.Spec.Retry
	return f
}

// compatibleOf is the name of a node's board to which a configuration is bound: the first
// of its device tree that the profile matches, else its own; "" where it has none.
func compatibleOf(s state.Snapshot, n *corev1.Node, profile string) string {
	names := firmwareconfigs.BoardOf(n.Status, s.Report(n.Name).Text()).Compatible
	if len(names) == 0 {
		return ""
	}
	if p, _ := s.Get(state.Key{Kind: state.BoardProfiles, Name: profile}).(*fleet.BoardProfile); p != nil {
		for _, name := range names {
			if slices.Contains(p.Spec.Match.Compatible, name) {
				return name
			}
		}
	}
	return names[0]
}

// namesOf are the names of the board in a report, to one of which a boot configuration is bound.
func namesOf(report state.Object) []string {
	r, _ := report.(*fleet.DeviceReport)
	return firmwareconfigs.BoardOf(corev1.NodeStatus{}, r.Text()).Compatible
}

// firmwareMoved tells whether a device is to hear something else of its boot configuration.
func firmwareMoved(old *state.Record, now state.Object) bool {
	next, _ := now.(*state.Record)
	return old != nil && next != nil &&
		(old.FirmwareGeneration != next.FirmwareGeneration || !apiequality.Semantic.DeepEqual(old.Assigned, next.Assigned))
}

// firmwareResumed lets a device be told of its boot configuration again that has seen more
// than the hub remembers: it takes none that is older than the newest that it was told, and
// what it has kept since then it may have in the place of what the hub remembers.
func firmwareResumed(rec *state.Record, now time.Time) {
	if rec.FirmwareGeneration != 0 {
		rec.FirmwareGeneration = max(rec.FirmwareGeneration+1, now.Unix())
	}
	if rec.Assigned != nil {
		rec.Assigned.Done = false
	}
}

// Replaced notes that a record is of another device from now on: what the one before it has come to
// with a boot configuration says nothing of this one. A turn that has begun goes on. Nor does what
// that one had stored: this one is asked itself.
func Replaced(rec *state.Record) {
	rec.StoredUnknown = rec.StoredUnknown || rec.Paused
	rec.Paused, rec.Stored = false, 0
	if t := rec.Assigned; t != nil {
		rec.Assigned = &state.FirmwareAssignment{Rollout: t.Rollout, Digest: t.Digest, Step: t.Step, Since: t.Since}
	}
}

// firmwareChange remembers what a device says of its boot configuration, and makes the
// condition FirmwareReady of it, which is not the device's own to set.
func firmwareChange(rec *state.Record, st *wire.Status) {
	st.Status.Conditions = slices.DeleteFunc(st.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == fleet.ConditionFirmwareReady
	})
	f := st.Firmware
	if f == nil {
		rec.Firmware = nil
		return
	}
	rec.Firmware = &state.FirmwareReport{
		Digest: f.Digest, Candidate: f.Candidate, State: f.State, Backend: f.Backend, Trial: f.Trial, Message: f.Message,
		Diff: f.Diff, Bad: slices.Clone(f.Bad),
	}
	c := corev1.NodeCondition{Type: fleet.ConditionFirmwareReady, Status: corev1.ConditionUnknown, Reason: f.State,
		Message: f.Message}
	switch f.State {
	case wire.FirmwareUpToDate:
		c.Status = corev1.ConditionTrue
	case wire.FirmwareRolledBack, wire.FirmwareFailed, wire.FirmwareUnsupported:
		c.Status = corev1.ConditionFalse
	}
	st.Status.Conditions = append(st.Status.Conditions, c)
}

// firmwareEvent is the event of a device that is one step further with its boot configuration.
func (d *Devices) firmwareEvent(s state.Snapshot, n *corev1.Node, old, rec *state.Record,
	now time.Time) []state.Change {
	if n == nil || rec.Firmware == nil || old.Firmware != nil && old.Firmware.State == rec.Firmware.State &&
		old.Firmware.Candidate == rec.Firmware.Candidate {
		return nil
	}
	f := rec.Firmware
	if old.Firmware == nil && f.State == wire.FirmwareUpToDate || !d.nodes.get(n.Name).eventAllowed(d.Age()) {
		return nil
	}
	said := control.EventText{Type: corev1.EventTypeNormal, Reason: reasonOf(f.State),
		Message: fmt.Sprintf("the boot configuration of %s is %s", n.Name, f.State)}
	if f.State == wire.FirmwareRolledBack || f.State == wire.FirmwareFailed {
		said.Type = corev1.EventTypeWarning
	}
	if f.Message != "" {
		said.Message += ": " + f.Message
	}
	return control.AddEvent(s, control.About(n), said, now)
}

// reasonOf is the reason of the event by which a device is where it says.
func reasonOf(said string) string {
	switch said {
	case wire.FirmwareUpToDate:
		return "FirmwareUpToDate"
	case wire.FirmwareStaged:
		return "FirmwareStaged"
	case wire.FirmwareAwaitingWindow:
		return "FirmwareAwaitingWindow"
	case wire.FirmwareDraining:
		return "FirmwareDraining"
	case wire.FirmwareTrial:
		return "FirmwareTrial"
	case wire.FirmwareVerifying:
		return "FirmwareVerifying"
	case wire.FirmwareRolledBack:
		return "FirmwareRolledBack"
	case wire.FirmwareFailed:
		return "FirmwareFailed"
	}
	return "FirmwareUnsupported" // package wire lets in no other
}
