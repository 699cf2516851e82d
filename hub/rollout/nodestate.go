package rollout

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// stateOf returns the state of a node in a rollout, with a reason if there is one.
func (p *pass) stateOf(r *fleet.Rollout, node string) (fleet.FirmwareNodeState, string) {
	rec, turn := p.s.Record(node), p.assignment(node)
	at, why := p.load.reported(rec, r)
	switch {
	case turn.Step != "" && !ends(r, at):
		if f := p.load.report(rec); busy(f) {
			why = f.Message // it has its turn for that
		}
		return turn.Step, why
	case at == begins(r) && turn.Failed != "" && turn.Retry >= r.Spec.Retry:
		return fleet.FirmwareBad, turn.Failed
	case at == begins(r) && turn.Done && turn.Retry >= r.Spec.Retry:
		if r.Status.Undoing {
			return fleet.FirmwareBad, p.words.again
		}
		return fleet.FirmwareBad, p.words.notAgain
	case turn.Silent && !ends(r, at) && state.ReadyOf(p.s.Node(node)) == corev1.ConditionUnknown:
		return fleet.FirmwareOverdue, "its device has not answered since its turn"
	case rec.Withheld() != "" && (at == begins(r) || at == fleet.FirmwareWaiting):
		return at, rec.Withheld()
	case at == begins(r) && turn.NotBefore.After(p.now):
		return at, turn.Why
	}
	return at, why
}

// reported returns the state that a device reports for the rollout's configuration, without regard
// to turns.
func reported(f *state.FirmwareReport, r *fleet.Rollout) (fleet.FirmwareNodeState, string) {
	if r.Status.Undoing {
		return reportedUndo(f, r.Status.Digest)
	}
	return reportedFor(f, r.Status.Digest)
}

// reportedUndo returns the state that a device reports for the return from a configuration.
func reportedUndo(f *state.FirmwareReport, digest string) (fleet.FirmwareNodeState, string) {
	switch {
	case f == nil:
		return reportedFor(nil, digest)
	case f.State == "Unsupported" && f.Digest == "": // its boot helper cannot be asked
		return fleet.FirmwareUnsupported, f.Message
	case f.Digest == digest && f.State == "Failed" && f.Candidate == "":
		return fleet.FirmwareBad, f.Message
	case f.Digest == digest:
		return fleet.FirmwareKept, ""
	case busy(f):
		return fleet.FirmwareWaiting, "its device is changing its boot configuration: " + f.Message
	}
	return fleet.FirmwareUndone, ""
}

// reportedFor returns the state that a device reports for a configuration.
func reportedFor(f *state.FirmwareReport, digest string) (fleet.FirmwareNodeState, string) {
	switch {
	case f == nil:
		return fleet.FirmwareWaiting, "its device does not report a boot configuration: its agent may be too old"
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
		return fleet.FirmwareWaiting, "its device tries a configuration without a turn: a deleted rollout started it"
	case f.Candidate == digest:
		return fleet.FirmwareStaged, f.Message
	}
	return fleet.FirmwareWaiting, f.Message
}

// retried tells whether a device uses a configuration that it rolled back before, because its retry
// was raised. The list of rolled back digests keeps it.
func retried(f *state.FirmwareReport) bool { return idle(f) || busy(f) || f.State == "Draining" }

// busy tells whether a device reports a running trial.
func busy(f *state.FirmwareReport) bool {
	return f != nil && (f.State == "Trial" || f.State == "Verifying")
}

// begins returns the state in which a node may start its turn; wanted returns the state after it.
func begins(r *fleet.Rollout) fleet.FirmwareNodeState {
	if r.Status.Undoing {
		return fleet.FirmwareKept
	}
	return fleet.FirmwareStaged
}

func wanted(r *fleet.Rollout) fleet.FirmwareNodeState {
	if r.Status.Undoing {
		return fleet.FirmwareUndone
	}
	return fleet.FirmwareKept
}

// ends tells whether the rollout is finished for a node in a state.
func ends(r *fleet.Rollout, s fleet.FirmwareNodeState) bool {
	return s == wanted(r) || s == fleet.FirmwareBad || s == fleet.FirmwareUnsupported
}
