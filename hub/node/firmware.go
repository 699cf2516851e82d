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

// firmwareFor returns the boot configuration of a node's rollout, signed for the node and its
// board, so that the device can stage it. During the node's turn it permits a trial. Nil: the
// device keeps its configuration.
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
		return nil // an invalid document, which a user wrote into the status; no device accepts it
	}
	f := wire.SignFirmware(key, node, compatibleOf(s, n, r.Spec.Profile), rec.FirmwareGeneration,
		[]byte(r.Status.Document))
	turn := rec.Assigned.Step == fleet.FirmwareTrying
	f.Try, f.Undo, f.Retry = turn && !r.Status.Undoing, turn && r.Status.Undoing, r.Spec.Retry
	return f
}

// compatibleOf returns the board name to which a configuration is bound: the first name in the
// device tree that the profile matches, otherwise the first name; "": the board has no name.
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

// namesOf returns the names of the board in a report.
func namesOf(report state.Object) []string {
	r, _ := report.(*fleet.DeviceReport)
	return firmwareconfigs.BoardOf(corev1.NodeStatus{}, r.Text()).Compatible
}

// firmwareMoved tells whether the boot configuration for a device has changed.
func firmwareMoved(old *state.Record, now state.Object) bool {
	next, _ := now.(*state.Record)
	return old != nil && next != nil &&
		(old.FirmwareGeneration != next.FirmwareGeneration || !apiequality.Semantic.DeepEqual(old.Assigned, next.Assigned))
}

// firmwareResumed makes the device receive its boot configuration again after it was resumed. The
// device accepts no configuration that is older than the newest one it has seen. It may have kept
// another one than the hub knows.
func firmwareResumed(rec *state.Record, now time.Time) {
	if rec.FirmwareGeneration != 0 {
		rec.FirmwareGeneration = max(rec.FirmwareGeneration+1, now.Unix())
	}
	if rec.Assigned != nil {
		rec.Assigned.Done = false
	}
}

// Replaced updates a record that now belongs to another device. The earlier device's reports on its
// boot configuration and stored state do not apply. A turn that has begun goes on.
func Replaced(rec *state.Record) {
	rec.StoredUnknown = rec.StoredUnknown || rec.Paused
	rec.Paused, rec.Stored = false, 0
	if t := rec.Assigned; t != nil {
		rec.Assigned = &state.FirmwareAssignment{Rollout: t.Rollout, Digest: t.Digest, Step: t.Step, Since: t.Since}
	}
	if t := rec.Upgrading; t != nil {
		rec.Upgrading = &state.FirmwareAssignment{Rollout: t.Rollout, Digest: t.Digest, Step: t.Step, Since: t.Since}
	}
}

// firmwareChange stores a device's report of its boot configuration. It also sets the condition
// FirmwareReady, which the device cannot set itself.
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

// firmwareEvent adds the event for a device's progress with its boot configuration.
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
	text := control.EventText{Type: corev1.EventTypeNormal, Reason: reasonOf(f.State),
		Message: fmt.Sprintf("the boot configuration of %s is %s", n.Name, f.State)}
	if f.State == wire.FirmwareRolledBack || f.State == wire.FirmwareFailed {
		text.Type = corev1.EventTypeWarning
	}
	if f.Message != "" {
		text.Message += ": " + f.Message
	}
	return control.AddEvent(s, control.About(n), text, now)
}

// reasonOf returns the event reason for a reported state.
func reasonOf(text string) string {
	switch text {
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
	return "FirmwareUnsupported" // package wire rejects other states
}
