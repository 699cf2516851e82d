package boothelper

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"flotilla.dev/shared/fleet"
)

// Settle ends what can only be ended one way: what the power has interrupted.
func (h *Helper) Settle() error {
	if h.state.Phase != PhaseIdle {
		if err := h.Slots.Sync(); err != nil {
			return err
		}
	}
	switch s := h.state; {
	case s.Phase == PhaseArmed && s.Way == fleet.TrialDeadman && s.Boot != h.Board.BootID():
		return h.wake()
	case s.Phase == PhaseArmed && s.Trial == "" && h.trying(): // so that it is known to have run, whatever comes
		s.Trial, s.Ran = h.Board.BootID(), true
		return h.save(s)
	case s.Phase == PhaseReturning:
		return h.finishReturn()
	case s.Phase == PhaseKeeping:
		if live, err := h.live(); err != nil {
			return err
			// the power was cut before anything was kept, and the board runs the old files
		} else if !h.trying() && live.Equal(s.From) {
			return h.idle()
		}
		return h.finishKeep()
	case s.Phase == PhaseLeaving && s.Boot != h.Board.BootID():
		return h.idle()
	}
	return nil
}

// Keep puts what was tried in the place of what was there. Only while the trial runs.
func (h *Helper) Keep(digest string) error {
	s := h.state
	now := h.trying() && h.taken()
	switch {
	case s.Phase == PhaseIdle && s.Kept == digest && digest != "":
		return nil
	case s.Phase != PhaseArmed || s.Candidate != digest:
		return fmt.Errorf("%.80s is not what is tried here", digest)
	case !now || s.Boot == h.Board.BootID():
		return errors.New("the board does not run the trial: the kernel's command line is not that of the trial")
	}
	live, err := h.live()
	if err != nil {
		return err
	}
	there := s.From
	if s.Way == fleet.TrialDeadman {
		there = s.To
	}
	if !live.Equal(there) {
		return errors.New(
			"somebody has changed the boot files since the trial began: what would be kept is not what was tried")
	}
	s.Phase = PhaseKeeping
	if err := h.save(s); err != nil {
		return err
	}
	return h.finishKeep()
}

func (h *Helper) finishKeep() error {
	if err := h.swap(h.state.From, h.state.To); err != nil {
		return err
	}
	return h.save(h.state.kept())
}

// kept is a state once its candidate has taken the place of what was there.
func (s savedState) kept() savedState {
	if s.Candidate == UndoDigest(s.Kept) { // there is no second step back
		s.Kept, s.Previous, s.PreviousKept, s.KeptWay, s.KeptDeadline = s.PreviousKept, nil, "", "", 0
	} else {
		previous := s.From
		s.Previous, s.PreviousKept = &previous, s.Kept
		if s.Kept == s.Candidate { // it is kept anew, as it was lost: what was there before had it no more
			s.PreviousKept = ""
		}
		s.Kept, s.KeptWay, s.KeptDeadline = s.Candidate, s.Way, s.Deadline
	}
	s.Current = s.To
	return s.idle()
}

// idle is a state in which nothing is tried.
func (s savedState) idle() savedState {
	s.Phase, s.Boot, s.Candidate, s.Deadline, s.From, s.To, s.Way, s.Trial, s.Ran = PhaseIdle, "", "", 0, Files{},
		Files{}, "", "", false
	return s
}

// Restore ends a trial: its files go, and where it runs the board reboots into the old ones.
func (h *Helper) Restore() error {
	s := h.state
	switch s.Phase {
	case PhaseIdle:
		return nil
	case PhaseArmed:
		if s.Way == fleet.TrialDeadman {
			return h.giveBack(true)
		}
		if running := h.away() && s.Boot != h.Board.BootID(); !running {
			return h.idle()
		}
		s.Phase, s.Boot, s.Left, s.Late = PhaseLeaving, h.Board.BootID(), s.Candidate, true
		if err := h.save(s); err != nil {
			return err
		}
	case PhaseLeaving:
	default: // config.txt may name a file that clean removes
		return fmt.Errorf("the helper is %s %s: that is to end first", s.Phase, s.Candidate)
	}
	// What is left of the trial is in nobody's way: a boot partition that takes nothing any more does
	// not keep the board in it.
	return errors.Join(h.clean(), h.Board.Reboot(""))
}

// idle takes the files of a trial away and forgets it.
func (h *Helper) idle() error {
	if err := h.clean(); err != nil {
		return err
	}
	return h.save(h.state.idle())
}

func (h *Helper) clean() error {
	backend, dir, err := h.Board.Boots()
	switch {
	case err != nil:
		return err
	case backend == fleet.BootGrub:
		return h.cleanGrub(dir)
	case backend != fleet.BootConfigTxt:
		return h.Disk.SyncDir(dir)
	}
	if err := h.direct(); err != nil {
		return err
	}
	text, err := h.Disk.Read(h.path(dir, tryTxt))
	if err == nil && bytes.HasPrefix(text, []byte(trialMark)) {
		err = h.Disk.Remove(h.path(dir, tryTxt))
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = h.Disk.Remove(h.path(dir, tryCmdline))
	}
	if err == nil {
		err = h.Disk.SyncDir(dir)
	}
	return err
}

// swap replaces two files as if they were one: after each of its renames the firmware reads
// either both of the old ones or both of the new ones. First config.txt names the new
// command line under a name of ours, which is what was tried; then that takes its own place.
func (h *Helper) swap(from, to Files) error {
	backend, dir, err := h.Board.Boots()
	if err != nil {
		return err
	}
	if backend != fleet.BootConfigTxt {
		return h.swapOne(backend, dir, from, to)
	}
	if err := h.direct(); err != nil {
		return err
	}
	live, err := h.live()
	if err != nil {
		return err
	}
	if !live.Equal(to) {
		type file struct {
			name string
			text []byte
		}
		config, cmdline := h.path(dir, configTxt)+".prev", h.path(dir, cmdlineTxt)+".prev"
		err := replace(h.Disk, config, from.Config)
		if err == nil {
			err = replace(h.Disk, cmdline, from.Cmdline)
		}
		if err := h.spare(err, config, cmdline); err != nil {
			return err
		}
		var list []file
		if !bytes.Equal(live.Cmdline, to.Cmdline) {
			list = []file{{tryCmdline, to.Cmdline}, {configTxt, via(to.Config)}, {cmdlineTxt, to.Cmdline}}
		}
		for _, f := range append(list, file{configTxt, to.Config}) {
			if err := replace(h.Disk, h.path(dir, f.name), f.text); err != nil {
				return err
			}
		}
	}
	return h.clean()
}

// spare is what becomes of an error of keeping what was there before in other files. What is given
// back is bad, and nobody needs it again: where there is no room for it, it makes room for what was
// good.
func (h *Helper) spare(err error, prev ...string) error {
	if err == nil || h.state.Phase != PhaseReturning {
		return err
	}
	var errs []error
	for _, name := range prev {
		errs = append(errs, h.Disk.Remove(name))
	}
	return errors.Join(errs...)
}

// Overdue tells whether a trial runs that nobody has judged, though its deadline is over:
// what would judge it does not run.
func (h *Helper) Overdue() (trial bool, left time.Duration) {
	const grace = 2 * time.Minute
	if h.state.Phase != PhaseArmed || !h.away() || h.state.Boot == h.Board.BootID() {
		return false, 0
	}
	return true, h.state.Deadline + grace - h.Board.Uptime()
}

// Forget forgets the node and its hub, so that the next one is believed.
func (h *Helper) Forget() error {
	s := h.state
	s.Node, s.Key, s.Generation = "", nil, 0
	return h.save(s)
}
