// Package firmware is the agent's part of boot configurations: it asks for an inspection, tries
// each configuration once, judges the trial by the agent's facts, and has the configuration kept or
// rolled back. Decide is pure; the Runner sends the boot helper (package boothelper) one request
// after the other and reports to the hub. It never writes a boot file, and knows neither containers
// nor MQTT.
package firmware

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Phases of a Journal.
const (
	Idle      = ""
	Arming    = "arming"    // the board should reboot into the trial
	Verifying = "verifying" // the trial runs and is judged
	Keeping   = "keeping"   // the trial has passed
	GoingBack = "back"      // the trial has failed or did not run
)

const (
	maxAttempts = 3               // reboots into the same trial
	rebootTime  = 5 * time.Minute // time until a reboot is requested again
)

// A Journal is the agent's stored record of its board's boot configurations. It is saved before the
// step that it describes.
type Journal struct {
	Phase     string        `json:"phase,omitempty"`
	Candidate string        `json:"candidate,omitempty"`
	Undoes    string        `json:"undoes,omitempty"`   // the digest to undo; empty: the trial is of a new configuration
	Boot      string        `json:"boot,omitempty"`     // boot id at which the phase began
	At        time.Duration `json:"at,omitempty"`       // uptime of the last request for a reboot
	Attempts  int           `json:"attempts,omitempty"` // number of attempts with Candidate
	Ran       int           `json:"ran,omitempty"`      // number of attempts in which the trial ran
	Retry     int64         `json:"retry,omitempty"`    // the hub's retry counter for Candidate
	Baseline  Baseline      `json:"was,omitzero"`
	Deadline  time.Duration `json:"deadline,omitempty"`
	StableFor time.Duration `json:"stableFor,omitempty"`
	Checks    []string      `json:"checks,omitempty"`
	Failed    bool          `json:"failed,omitempty"` // in phase GoingBack: do not try Candidate again
	Held      bool          `json:"held,omitempty"`   // with Failed: not shown to be bad; waits for a retry
	Why       string        `json:"why,omitempty"`
	Bad       []BadDigest   `json:"bad,omitempty"` // failed configurations, the newest last
	Since     time.Time     `json:"since,omitzero"`
}

// Baseline is the state of the board before a trial.
type Baseline struct {
	Hub     bool     `json:"hub,omitempty"`     // the agent was connected
	Running []string `json:"running,omitempty"` // UIDs of the pods that ran
}

// A BadDigest is a configuration that has failed on this board.
type BadDigest struct {
	Digest string `json:"digest"`
	Retry  int64  `json:"retry,omitempty"` // a higher retry counter of the hub allows another trial
	Why    string `json:"why"`
	Undo   bool   `json:"undo,omitempty"` // Digest itself is good; its undo has failed
	Held   bool   `json:"held,omitempty"` // not shown to be bad, because it was never tried or judged
}

// Facts are the input of Decide.
type Facts struct {
	Helper    boothelper.Status
	HelperErr string // why the helper does not answer

	Inspected string // digest of the last inspected configuration
	Config    *fleet.BootConfig
	Diff      string
	Wrong     string // why the inspected configuration cannot be tried

	Failed string // error of the last action

	Baseline Baseline      // the state of the board now
	Failing  []string      // failed checks of the trial, each with the reason
	Holding  time.Duration // uptime since which all checks have held; meaningless while a check fails
}

// Actions to take after saving the journal.
const (
	Wait    = ""
	Inspect = "inspect"
	Arm     = "arm"
	Keep    = "keep"
	Restore = "restore"
)

// Decide returns the journal to save, the action to take afterwards, and the status for the hub.
// The caller calls it again after the action, or when facts have changed.
func Decide(j Journal, f Facts, want *wire.Firmware, now time.Time) (next Journal, do string, st *wire.FirmwareStatus) {
	d := decider{j: j, f: f, want: want}
	if f.HelperErr != "" {
		if want == nil && j.Phase == Idle {
			return j, Wait, nil
		}
		d.say(wire.FirmwareUnsupported, "the boot helper does not answer: %s", f.HelperErr)
	} else {
		do = d.decide()
	}
	if d.j.Phase != j.Phase || len(d.j.Bad) != len(j.Bad) || d.j.Since.IsZero() {
		d.j.Since = now.UTC().Truncate(time.Second)
	}
	if d.st == nil {
		return d.j, do, nil
	}
	d.st.Digest, d.st.Since = f.Helper.Kept, d.j.Since
	if f.Helper.Lost && (want == nil || !want.Undo) {
		d.st.Digest = ""
	}
	d.st.Backend, d.st.Trial = f.Helper.Backend, f.Helper.Trial
	for _, b := range slices.Backward(d.j.Bad) {
		if len(d.st.Bad) < wire.MaxFirmwareBad && !b.Undo && !b.Held {
			d.st.Bad = append(d.st.Bad, b.Digest)
		}
	}
	return d.j, do, d.st
}

type decider struct {
	j    Journal
	f    Facts
	want *wire.Firmware
	st   *wire.FirmwareStatus
}

func (d *decider) say(state, format string, args ...any) {
	d.st = &wire.FirmwareStatus{State: state, Candidate: d.j.Candidate,
		Message: bound.Text(fmt.Sprintf(format, args...), wire.MaxFirmwareMessage)}
	if d.j.Undoes != "" { // the hub has no name for the files from before a digest
		d.st.Candidate = ""
	}
}

func (d *decider) decide() string {
	switch d.j.Phase {
	case Arming:
		return d.arming()
	case Verifying:
		return d.verifying()
	case Keeping:
		return d.keeping()
	case GoingBack:
		return d.back()
	}
	d.j.Phase = Idle // also after a phase that only another version knows
	return d.idle()
}

// enter begins a phase. The journal is saved first; the next call of Decide acts.
func (d *decider) enter(phase string) {
	d.j.Phase, d.j.Boot, d.j.At = phase, d.f.Helper.BootID, 0
}

// goBack begins the return to the old files.
func (d *decider) goBack(failed bool, why string) string {
	d.enter(GoingBack)
	d.j.Failed, d.j.Why = failed, bound.Text(why, wire.MaxFirmwareMessage)
	d.say(wire.FirmwareVerifying, "rolling back: %s", d.j.Why)
	return Wait
}

// hold rolls back and waits for a higher retry counter, although the candidate is not shown to be
// bad: if the board hangs, a person may need to cut its power at each attempt.
func (d *decider) hold(why string) string {
	d.j.Held = true
	return d.goBack(true, why+"; raise the retry of its rollout to try again")
}

// noVerdict rolls back after a trial that ended undecided, for example by a power cut. The
// candidate counts as bad only if every attempt ran and ended undecided.
func (d *decider) noVerdict(ran bool, why string) string {
	if ran {
		d.j.Ran++
		why = "the board has restarted before the trial was judged"
	}
	switch {
	case d.j.Attempts < maxAttempts:
		return d.goBack(false, fmt.Sprintf("attempt %d of %d: %s", d.j.Attempts, maxAttempts, why))
	case d.j.Ran >= maxAttempts:
		return d.goBack(true, fmt.Sprintf("the board has restarted in each of %d trials before they were judged",
			maxAttempts))
	}
	done := "tried"
	if d.j.Ran > 0 {
		done = "judged"
	}
	return d.hold(fmt.Sprintf("was not %s in %d attempts: %s", done, maxAttempts, why))
}

// rest ends the trial in the journal.
func (d *decider) rest() {
	d.j = Journal{Bad: d.j.Bad, Attempts: d.j.Attempts, Ran: d.j.Ran, Candidate: d.j.Candidate, Retry: d.j.Retry}
}

// kept reports whether the helper has kept the candidate.
func (d *decider) kept() bool {
	h := d.f.Helper
	if d.j.Undoes != "" {
		return h.Phase == boothelper.PhaseIdle && h.Kept != d.j.Undoes
	}
	return h.Phase == boothelper.PhaseIdle && h.Kept == d.j.Candidate && h.Kept != "" && !h.Lost
}

// wanted reports whether the hub still wants the candidate.
func (d *decider) wanted() bool {
	w := d.want
	return w != nil && w.Undo == (d.j.Undoes != "") && w.Digest == cmp.Or(d.j.Undoes, d.j.Candidate)
}

// try begins a trial with the checks of b.
func (d *decider) try(candidate string, b *fleet.BootConfig) {
	if d.j.Candidate != candidate || d.j.Retry != d.want.Retry {
		d.j.Attempts, d.j.Ran = 0, 0
	}
	d.j.Candidate, d.j.Retry = candidate, d.want.Retry
	d.j.Baseline, d.j.Deadline, d.j.StableFor, d.j.Checks = d.f.Baseline, b.Deadline(), b.StableFor(), b.Checks()
	d.enter(Arming)
}

// failed returns this board's failed trial of a digest, or of undoing the digest; nil if the hub
// may retry.
func (d *decider) failed(digest string, undo bool) *BadDigest {
	i := slices.IndexFunc(d.j.Bad, func(b BadDigest) bool {
		return b.Digest == digest && b.Undo == undo && b.Retry >= d.want.Retry
	})
	if i < 0 {
		return nil
	}
	return &d.j.Bad[i]
}

// state returns the status of a board after a failed trial.
func (b BadDigest) state() string {
	if b.Undo || b.Held { // the kept files are as good as before, or the candidate is not shown to be bad
		return wire.FirmwareFailed
	}
	return wire.FirmwareRolledBack
}

func (d *decider) idle() string {
	h := d.f.Helper
	switch h.Phase {
	case boothelper.PhaseArmed: // the journal was lost, and with it the baseline of the trial
		if d.j.Candidate = h.Candidate; h.Candidate == boothelper.UndoDigest(h.Kept) {
			d.j.Undoes = h.Kept
		}
		return d.hold("the agent's record of the trial was lost")
	case boothelper.PhaseKeeping, boothelper.PhaseReturning, boothelper.PhaseLeaving:
		d.say(wire.FirmwareVerifying, "the boot helper is %s", h.Phase)
		if h.Phase == boothelper.PhaseLeaving {
			return d.reboot(Restore)
		}
		return Wait
	}
	want := d.want
	if want == nil {
		if h.Kept != "" || len(d.j.Bad) > 0 {
			d.say(wire.FirmwareUpToDate, "the hub wants no boot configuration on this board")
			d.st.Candidate = ""
		}
		return Wait
	}
	if want.Undo {
		return d.undo()
	}
	if h.Kept == want.Digest && !h.Lost {
		d.say(wire.FirmwareUpToDate, "the configuration is kept")
		d.st.Candidate = ""
		return Wait
	}
	if b := d.failed(want.Digest, false); b != nil {
		d.say(b.state(), "%s", b.Why)
		d.st.Candidate = want.Digest
		return Wait
	}
	if d.f.Inspected != want.Digest {
		d.say(wire.FirmwareStaged, "the boot helper is inspecting the configuration")
		d.st.Candidate = want.Digest
		return Inspect
	}
	switch {
	case h.Refused != "":
		d.say(wire.FirmwareUnsupported, "%s", h.Refused)
	case d.f.Wrong != "" || d.f.Config == nil:
		d.say(wire.FirmwareFailed, "%s", d.f.Wrong)
	case !want.Try:
		d.say(wire.FirmwareStaged, "waiting for the hub's permission for the trial")
	default:
		d.try(want.Digest, d.f.Config)
		d.say(wire.FirmwareTrial, "the board is about to boot the configuration once")
	}
	d.st.Candidate, d.st.Diff = want.Digest, bound.Text(d.f.Diff, wire.MaxFirmwareDiff)
	return Wait
}

// undo begins a trial of the files from before the kept configuration. They may no longer work, for
// example because a newer kernel needs another word. The kept configuration's checks judge the
// trial.
func (d *decider) undo() string {
	h, want := d.f.Helper, d.want
	tried := d.failed(want.Digest, true)
	switch {
	case h.Kept != want.Digest:
		d.say(wire.FirmwareUpToDate, "the configuration is undone")
	case tried != nil:
		d.say(wire.FirmwareFailed, "%s", tried.Why)
	case !h.Undoable:
		d.say(wire.FirmwareFailed, "the boot helper does not have the previous files: roll out another configuration instead")
	case h.Refused != "":
		d.say(wire.FirmwareFailed, "%s", h.Refused)
	default:
		b, err := fleet.ParseBootConfig(want.Document)
		if err != nil { // an older agent kept it, so use the default checks
			b = new(fleet.BootConfig)
		}
		d.j.Undoes = want.Digest
		d.try(boothelper.UndoDigest(want.Digest), b)
		d.say(wire.FirmwareTrial, "the board is about to boot the previous files once")
	}
	d.st.Candidate = ""
	return Wait
}

// reboot returns an action that ends with a reboot, and again if the reboot does not come in time.
func (d *decider) reboot(do string) string {
	if d.j.Boot == d.f.Helper.BootID && d.j.At != 0 && d.f.Helper.Uptime-d.j.At < rebootTime {
		return Wait // the reboot was requested
	}
	d.j.Boot, d.j.At = d.f.Helper.BootID, max(d.f.Helper.Uptime, 1)
	return do
}
