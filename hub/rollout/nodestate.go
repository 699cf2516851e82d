package rollout

import (
	"slices"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// stateOf says where a node is, and why if there is something to say.
func (p *pass) stateOf(r *fleet.FirmwareRollout, node string) (fleet.FirmwareNodeState, string) {
	rec, turn := p.s.Record(node), p.assignment(node)
	at, why := reported(rec.Firmware, r)
	switch {
	case turn.Step != "" && !ends(r, at):
		if busy(rec.Firmware) {
			why = rec.Firmware.Message // it has its turn for that
		}
		return turn.Step, why
	case at == begins(r) && turn.Failed != "" && turn.Retry >= r.Spec.Retry:
		return fleet.FirmwareBad, turn.Failed
	case at == begins(r) && turn.Done && turn.Retry >= r.Spec.Retry:
		if r.Status.Undoing {
			return fleet.FirmwareBad, "its device had gone back, and has the configuration again"
		}
		return fleet.FirmwareBad,
			"its device had kept the configuration, and has it no more: its card may lose what is written"
	case rec.Withheld() != "" && (at == begins(r) || at == fleet.FirmwareWaiting):
		return at, rec.Withheld()
	case at == begins(r) && turn.NotBefore.After(p.now):
		return at, turn.Why
	}
	return at, why
}

// reported is what a device says of a rollout's configuration, its turn aside.
func reported(f *state.FirmwareReport, r *fleet.FirmwareRollout) (fleet.FirmwareNodeState, string) {
	if r.Status.Undoing {
		return reportedUndo(f, r.Status.Digest)
	}
	return reportedFor(f, r.Status.Digest)
}

// reportedUndo is what a device says of going back from a configuration.
func reportedUndo(f *state.FirmwareReport, digest string) (fleet.FirmwareNodeState, string) {
	switch {
	case f == nil:
		return reportedFor(nil, digest)
	case f.State == "Unsupported" && f.Digest == "": // nobody can ask its boot helper
		return fleet.FirmwareUnsupported, f.Message
	case f.Digest == digest && f.State == "Failed" && f.Candidate == "":
		return fleet.FirmwareBad, f.Message
	case f.Digest == digest:
		return fleet.FirmwareKept, ""
	case busy(f):
		return fleet.FirmwareWaiting, "its device is at its boot configuration: " + f.Message
	}
	return fleet.FirmwareUndone, ""
}

// reportedFor is what a device says of a configuration that it is to have.
func reportedFor(f *state.FirmwareReport, digest string) (fleet.FirmwareNodeState, string) {
	switch {
	case f == nil:
		return fleet.FirmwareWaiting, "its device says nothing of its boot configuration: its agent may be too old"
	case digest == "":
		return fleet.FirmwareWaiting, ""
	case f.Digest == digest:
		return fleet.FirmwareKept, ""
	case slices.Contains(f.Bad, digest) && !(f.Candidate == digest && retried(f)):
		return fleet.FirmwareBad, f.Message
	case f.State == "Unsupported":
		return fleet.FirmwareUnsupported, f.Message
	case f.State == "Failed" && (f.Candidate == digest || f.Candidate == ""):
		return fleet.FirmwareBad, f.Message
	case busy(f):
		return fleet.FirmwareWaiting, "its device tries a configuration, and has no turn: a rollout that is gone began that"
	case f.Candidate == digest:
		return fleet.FirmwareStaged, f.Message
	}
	return fleet.FirmwareWaiting, f.Message
}

// retried tells whether a device is at a configuration although it may have gone back from it
// before: its retry was raised. What it went back from stays in its list.
func retried(f *state.FirmwareReport) bool { return idle(f) || busy(f) || f.State == "Draining" }

// busy tells whether a device says that it is booted for a trial.
func busy(f *state.FirmwareReport) bool {
	return f != nil && (f.State == "Trial" || f.State == "Verifying")
}

// begins is where a node is that can have its turn, and wanted where it is after it.
func begins(r *fleet.FirmwareRollout) fleet.FirmwareNodeState {
	if r.Status.Undoing {
		return fleet.FirmwareKept
	}
	return fleet.FirmwareStaged
}

func wanted(r *fleet.FirmwareRollout) fleet.FirmwareNodeState {
	if r.Status.Undoing {
		return fleet.FirmwareUndone
	}
	return fleet.FirmwareKept
}

// ends tells whether a node is where its rollout is over for it.
func ends(r *fleet.FirmwareRollout, s fleet.FirmwareNodeState) bool {
	return s == wanted(r) || s == fleet.FirmwareBad || s == fleet.FirmwareUnsupported
}
