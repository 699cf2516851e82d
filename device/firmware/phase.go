package firmware

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/wire"
)

func (d *decider) arming() string {
	h := d.f.Helper
	d.say(wire.FirmwareTrial, "the board is about to boot the configuration once")
	switch {
	case d.kept(): // the files already had the candidate
		d.rest()
		return Wait
	case h.Left == d.j.Candidate && h.BootID != d.j.Boot:
		if h.Late {
			return d.goBack(true, "the deadline passed without a verdict: the agent did not run")
		}
		return d.noVerdict(true, "")
	case h.Phase != boothelper.PhaseIdle && (h.Phase != boothelper.PhaseArmed || h.Candidate != d.j.Candidate):
		return d.goBack(false, "the boot helper was busy with another configuration")
	case h.BootID == d.j.Boot:
		if !d.wanted() {
			return d.goBack(false, "the hub no longer wants the configuration")
		}
		if d.f.Failed != "" {
			return d.noVerdict(false, d.f.Failed)
		}
		if d.j.At != 0 && h.Uptime-d.j.At < rebootTime {
			return Wait
		}
		if d.j.Attempts >= maxAttempts {
			return d.noVerdict(false, "the board did not reboot")
		}
		d.j.Attempts++
		return d.reboot(Arm)
	case h.Phase == boothelper.PhaseIdle:
		return d.noVerdict(false, "the power was cut before the files of the trial were complete")
	case !h.Tryboot:
		return d.noVerdict(h.Ran, "the kernel's command line lacks the trial's words: the firmware ignored the trial, the "+
			"configuration does not boot, or the power was cut")
	}
	d.enter(Verifying)
	d.say(wire.FirmwareVerifying, "the board runs the trial")
	return Wait
}

func (d *decider) verifying() string {
	h := d.f.Helper
	switch {
	case h.Phase != boothelper.PhaseArmed || h.Candidate != d.j.Candidate:
		return d.keepingOrBack()
	case h.BootID != d.j.Boot || !h.Tryboot:
		return d.noVerdict(true, "")
	case d.want != nil && d.want.Undo && d.want.Digest == d.j.Candidate:
		return d.goBack(false, "the hub has withdrawn the configuration")
	case len(d.f.Failing) == 0 && h.Uptime-d.f.Holding >= d.j.StableFor:
		d.enter(Keeping)
		d.say(wire.FirmwareVerifying, "all checks have held for %s: the configuration is kept", d.j.StableFor)
		return Wait
	case h.Uptime >= d.j.Deadline:
		why := fmt.Sprintf("the checks did not hold for %s before the deadline of %s", d.j.StableFor, d.j.Deadline)
		if len(d.f.Failing) > 0 {
			why = fmt.Sprintf("%s after %s", strings.Join(d.f.Failing, "; "), d.j.Deadline)
		}
		return d.goBack(true, why)
	case len(d.f.Failing) > 0:
		d.say(wire.FirmwareVerifying, "checks fail, and the deadline is %s after the boot: %s", d.j.Deadline,
			strings.Join(d.f.Failing, "; "))
	default:
		d.say(wire.FirmwareVerifying, "all checks hold; the configuration is kept when they have held for %s", d.j.StableFor)
	}
	return Wait
}

func (d *decider) keeping() string {
	h := d.f.Helper
	d.say(wire.FirmwareVerifying, "the trial has passed and is being kept")
	if h.Phase == boothelper.PhaseArmed && h.Candidate == d.j.Candidate && h.Tryboot && h.BootID == d.j.Boot {
		if h.Uptime >= d.j.Deadline+rebootTime {
			return d.hold("the configuration could not be kept: " + d.f.Failed)
		}
		return Keep
	}
	return d.keepingOrBack()
}

// keepingOrBack continues from the phase that the helper has reached.
func (d *decider) keepingOrBack() string {
	h := d.f.Helper
	switch {
	case d.kept():
		what := "the configuration is kept"
		if d.j.Undoes != "" {
			what = "the configuration is undone"
		}
		d.rest()
		d.j.Bad = slices.DeleteFunc(slices.Clone(d.j.Bad), func(b BadDigest) bool { return b.Digest == h.Kept })
		d.say(wire.FirmwareUpToDate, "%s", what)
		d.st.Candidate = ""
		return Wait
	case h.Phase == boothelper.PhaseKeeping:
		d.say(wire.FirmwareVerifying, "the trial has passed and is being kept")
		return Wait // the helper completes the swap
	}
	return d.noVerdict(true, "")
}

func (d *decider) back() string {
	h := d.f.Helper
	d.say(wire.FirmwareVerifying, "rolling back: %s", d.j.Why)
	switch h.Phase {
	case boothelper.PhaseIdle:
		if d.kept() { // the helper kept the candidate before the agent knew
			return d.keepingOrBack()
		}
		undo, failed := d.j.Undoes != "", d.j.Failed
		bad := BadDigest{Digest: cmp.Or(d.j.Undoes, d.j.Candidate), Retry: d.j.Retry, Why: d.j.Why, Undo: undo,
			Held: d.j.Held}
		d.rest()
		if failed {
			d.j.Bad = append(slices.DeleteFunc(slices.Clone(d.j.Bad), func(b BadDigest) bool {
				return b.Digest == bad.Digest && b.Undo == undo
			}), bad)
			d.j.Bad = d.j.Bad[max(0, len(d.j.Bad)-wire.MaxFirmwareBad):]
			d.j.Attempts, d.j.Ran = 0, 0
			if d.say(bad.state(), "%s", bad.Why); undo {
				d.st.Candidate = ""
			}
		}
		return Wait
	case boothelper.PhaseKeeping, boothelper.PhaseReturning:
		return Wait // the helper completes its phase
	}
	return d.reboot(Restore)
}
