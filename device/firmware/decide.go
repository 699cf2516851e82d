// Package firmware is the agent's part of boot configurations: it has them inspected, tries each
// one once, judges the trial by what the agent sees, and has it kept or taken back. Decide is pure;
// the Runner asks the boot helper (package boothelper) for one step after the other and reports to
// the hub. It never writes a boot file, and knows neither containers nor MQTT.
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
	Arming    = "arming"    // a trial is wanted, and the board has not booted since
	Verifying = "verifying" // the trial runs
	Keeping   = "keeping"   // it is good
	Back      = "back"      // it is not, or has not come
)

const (
	maxAttempts = 3               // to reboot into one trial
	rebootTime  = 5 * time.Minute // for a reboot to come
)

// A Journal is what the agent remembers of the boot configurations of its board. It is
// durable before a step of it is taken.
type Journal struct {
	Phase     string        `json:"phase,omitempty"`
	Candidate string        `json:"candidate,omitempty"`
	Undoes    string        `json:"undoes,omitempty"`   // digest that is left; empty: the trial is of something new
	Boot      string        `json:"boot,omitempty"`     // boot id at which the phase began
	At        time.Duration `json:"at,omitempty"`       // uptime at which it was last asked for a reboot
	Attempts  int           `json:"attempts,omitempty"` // of the candidate
	Ran       int           `json:"ran,omitempty"`      // in so many of them it was seen to run
	Retry     int64         `json:"retry,omitempty"`    // as the hub said it for the candidate
	Was       Was           `json:"was,omitzero"`
	Deadline  time.Duration `json:"deadline,omitempty"`
	StableFor time.Duration `json:"stableFor,omitempty"`
	Checks    []string      `json:"checks,omitempty"`
	Failed    bool          `json:"failed,omitempty"` // Back: the candidate is bad, not only put off
	Held      bool          `json:"held,omitempty"`   // Back, Failed: it is not bad, but not tried again by itself
	Why       string        `json:"why,omitempty"`
	Bad       []BadDigest   `json:"bad,omitempty"` // the newest last
	Since     time.Time     `json:"since,omitzero"`
}

// Was is how the board fared before a trial.
type Was struct {
	Hub     bool     `json:"hub,omitempty"`     // it was connected
	Running []string `json:"running,omitempty"` // UIDs of the pods that ran
}

// A BadDigest is a configuration that has failed on this board.
type BadDigest struct {
	Digest string `json:"digest"`
	Retry  int64  `json:"retry,omitempty"` // a higher one of the hub's lets it be tried again
	Why    string `json:"why"`
	Undo   bool   `json:"undo,omitempty"` // it is good, and what was there before it has failed
	Held   bool   `json:"held,omitempty"` // nothing speaks against it: it was not tried
}

// Facts are what is so now.
type Facts struct {
	Helper    boothelper.Status
	HelperErr string // it does not answer, and why

	Inspected string // digest of the configuration that was looked at last
	Config    *fleet.BootConfig
	Diff      string
	Wrong     string // why it cannot be tried

	Failed string // what went wrong with the last action

	Was     Was           // as the board fares now
	Failing []string      // checks of the trial that do not hold, with why
	Holding time.Duration // since when all of them have held, as an uptime; meaningless while some fail
}

// Actions of a Step.
const (
	Wait    = ""
	Inspect = "inspect"
	Arm     = "arm"
	Keep    = "keep"
	Restore = "restore"
)

// Decide says what to remember and then to do, and what the hub is told. It is asked again
// when that has been done, or when facts have changed.
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
	if d.j.Undoes != "" { // what was there before has no name that the hub knows
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
	case Back:
		return d.back()
	}
	d.j.Phase = Idle // or one that this agent does not know
	return d.idle()
}

// enter begins a phase, and is what is decided: the journal first, the rest when asked again.
func (d *decider) enter(phase string) {
	d.j.Phase, d.j.Boot, d.j.At = phase, d.f.Helper.BootID, 0
}

// goBack begins the way back.
func (d *decider) goBack(failed bool, why string) string {
	d.enter(Back)
	d.j.Failed, d.j.Why = failed, bound.Text(why, wire.MaxFirmwareMessage)
	d.say(wire.FirmwareVerifying, "going back: %s", d.j.Why)
	return Wait
}

// hold goes back from a candidate that is not tried again before the hub's retry is raised,
// though nothing speaks against it: what hangs may need somebody to pull the plug each time.
func (d *decider) hold(why string) string {
	d.j.Held = true
	return d.goBack(true, why+"; it is tried again when the retry of its rollout is raised")
}

// noVerdict goes back from a trial that ended without a verdict, which a power cut does, too.
// It counts against the candidate only where each attempt was seen to run and ended so.
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

// rest ends everything.
func (d *decider) rest() {
	d.j = Journal{Bad: d.j.Bad, Attempts: d.j.Attempts, Ran: d.j.Ran, Candidate: d.j.Candidate, Retry: d.j.Retry}
}

// kept tells whether the helper has kept what was tried.
func (d *decider) kept() bool {
	h := d.f.Helper
	if d.j.Undoes != "" {
		return h.Phase == boothelper.PhaseIdle && h.Kept != d.j.Undoes
	}
	return h.Phase == boothelper.PhaseIdle && h.Kept == d.j.Candidate && h.Kept != "" && !h.Lost
}

// wanted tells whether the hub still wants what is about to be tried.
func (d *decider) wanted() bool {
	w := d.want
	return w != nil && w.Undo == (d.j.Undoes != "") && w.Digest == cmp.Or(d.j.Undoes, d.j.Candidate)
}

// try begins a trial, by the checks of a configuration.
func (d *decider) try(candidate string, b *fleet.BootConfig) {
	if d.j.Candidate != candidate || d.j.Retry != d.want.Retry {
		d.j.Attempts, d.j.Ran = 0, 0
	}
	d.j.Candidate, d.j.Retry = candidate, d.want.Retry
	d.j.Was, d.j.Deadline, d.j.StableFor, d.j.Checks = d.f.Was, b.Deadline(), b.StableFor(), b.Checks()
	d.enter(Arming)
}

// failed is what this board has found of a digest: of itself, or of going back from it.
func (d *decider) failed(digest string, undo bool) *BadDigest {
	i := slices.IndexFunc(d.j.Bad, func(b BadDigest) bool {
		return b.Digest == digest && b.Undo == undo && b.Retry >= d.want.Retry
	})
	if i < 0 {
		return nil
	}
	return &d.j.Bad[i]
}

// state is what a board says that has gone back.
func (b BadDigest) state() string {
	if b.Undo || b.Held { // what is kept is as good as it was, or nothing speaks against what is not
		return wire.FirmwareFailed
	}
	return wire.FirmwareRolledBack
}

func (d *decider) idle() string {
	h := d.f.Helper
	switch h.Phase {
	case boothelper.PhaseArmed: // the journal was lost: nobody knows how the board fared before
		if d.j.Candidate = h.Candidate; h.Candidate == boothelper.UndoDigest(h.Kept) {
			d.j.Undoes = h.Kept
		}
		return d.hold("the trial was not remembered")
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
			d.say(wire.FirmwareUpToDate, "the hub wants nothing of this board's boot")
			d.st.Candidate = ""
		}
		return Wait
	}
	if want.Undo {
		return d.undo()
	}
	if h.Kept == want.Digest && !h.Lost {
		d.say(wire.FirmwareUpToDate, "it is kept")
		d.st.Candidate = ""
		return Wait
	}
	if b := d.failed(want.Digest, false); b != nil {
		d.say(b.state(), "%s", b.Why)
		d.st.Candidate = want.Digest
		return Wait
	}
	if d.f.Inspected != want.Digest {
		d.say(wire.FirmwareStaged, "it is being looked at")
		d.st.Candidate = want.Digest
		return Inspect
	}
	switch {
	case h.Refused != "":
		d.say(wire.FirmwareUnsupported, "%s", h.Refused)
	case d.f.Wrong != "" || d.f.Config == nil:
		d.say(wire.FirmwareFailed, "%s", d.f.Wrong)
	case !want.Try:
		d.say(wire.FirmwareStaged, "it waits for the hub's permission to try it")
	default:
		d.try(want.Digest, d.f.Config)
		d.say(wire.FirmwareTrial, "the board is about to boot it once")
	}
	d.st.Candidate, d.st.Diff = want.Digest, bound.Text(d.f.Diff, wire.MaxFirmwareDiff)
	return Wait
}

// undo begins the trial of what was there before what is kept: that may be as bad for the
// board as it is now, such as words that a newer kernel needs. What is kept has said by what
// a board is judged, and does so still.
func (d *decider) undo() string {
	h, want := d.f.Helper, d.want
	tried := d.failed(want.Digest, true)
	switch {
	case h.Kept != want.Digest:
		d.say(wire.FirmwareUpToDate, "it is undone")
	case tried != nil:
		d.say(wire.FirmwareFailed, "%s", tried.Why)
	case !h.Undoable:
		d.say(wire.FirmwareFailed, "the boot helper does not remember what was there before: roll out what is wanted instead")
	case h.Refused != "":
		d.say(wire.FirmwareFailed, "%s", h.Refused)
	default:
		b, err := fleet.ParseBootConfig(want.Document)
		if err != nil { // an older agent has kept it; by the default checks then
			b = new(fleet.BootConfig)
		}
		d.j.Undoes = want.Digest
		d.try(boothelper.UndoDigest(want.Digest), b)
		d.say(wire.FirmwareTrial, "the board is about to boot once what it had before")
	}
	d.st.Candidate = ""
	return Wait
}

// reboot asks for what ends with a reboot, and again where none comes.
func (d *decider) reboot(do string) string {
	if d.j.Boot == d.f.Helper.BootID && d.j.At != 0 && d.f.Helper.Uptime-d.j.At < rebootTime {
		return Wait // it is under way
	}
	d.j.Boot, d.j.At = d.f.Helper.BootID, max(d.f.Helper.Uptime, 1)
	return do
}
