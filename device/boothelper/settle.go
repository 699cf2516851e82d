package boothelper

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"flotilla.dev/shared/fleet"
)

// Settle completes an action that a power cut has interrupted, if only one result is possible.
func (h *Helper) Settle() error {
	if h.state.Phase != PhaseIdle {
		if err := h.Slots.Sync(); err != nil {
			return err
		}
	}
	switch s := h.state; {
	case s.Phase == PhaseArmed && s.Way == fleet.TrialDeadman && s.Boot != h.Board.BootID():
		return h.settleDeadman()
	case s.Phase == PhaseArmed && s.Trial == "" && h.inTrial(): // store first that the trial has run
		s.Trial, s.Ran = h.Board.BootID(), true
		return h.save(s)
	case s.Phase == PhaseReturning:
		return h.finishRollBack()
	case s.Phase == PhaseKeeping:
		if live, err := h.liveFiles(); err != nil {
			return err
			// the power was cut before the first file was replaced
		} else if !h.inTrial() && live.Equal(s.From) {
			return h.idle()
		}
		return h.finishKeep()
	case s.Phase == PhaseLeaving && s.Boot != h.Board.BootID():
		return h.idle()
	}
	return nil
}

// Keep replaces the old files with those of the trial. It returns an error unless the trial runs.
func (h *Helper) Keep(digest string) error {
	s := h.state
	now := h.inTrial() && h.argsApplied()
	switch {
	case s.Phase == PhaseIdle && s.Kept == digest && digest != "":
		return nil
	case s.Phase != PhaseArmed || s.Candidate != digest:
		return fmt.Errorf("%.80s is not the trial of this board", digest)
	case !now || s.Boot == h.Board.BootID():
		return errors.New("the board does not run the trial: the kernel's command line lacks the trial's words")
	}
	live, err := h.liveFiles()
	if err != nil {
		return err
	}
	expected := s.From
	if s.Way == fleet.TrialDeadman {
		expected = s.To
	}
	if !live.Equal(expected) {
		return errors.New(
			"another program has changed the boot files since the trial began: they are not the files that were tried")
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

// kept returns the state after the candidate has replaced the old files.
func (s savedState) kept() savedState {
	if s.Candidate == UndoDigest(s.Kept) { // an undo cannot be undone
		s.Kept, s.Previous, s.PreviousKept, s.KeptWay, s.KeptDeadline = s.PreviousKept, nil, "", "", 0
	} else {
		previous := s.From
		s.Previous, s.PreviousKept = &previous, s.Kept
		if s.Kept == s.Candidate { // Kept was lost from the files and is kept again: the files before it have no digest
			s.PreviousKept = ""
		}
		s.Kept, s.KeptWay, s.KeptDeadline = s.Candidate, s.Way, s.Deadline
	}
	s.Current = s.To
	return s.idle()
}

// idle returns the state without a trial.
func (s savedState) idle() savedState {
	s.Phase, s.Boot, s.Candidate, s.Deadline, s.From, s.To, s.Way, s.Trial, s.Ran = PhaseIdle, "", "", 0, Files{},
		Files{}, "", "", false
	return s
}

// Restore ends a trial: it removes the trial's files and, if the trial runs, reboots into the old
// ones.
func (h *Helper) Restore() error {
	s := h.state
	switch s.Phase {
	case PhaseIdle:
		return nil
	case PhaseArmed:
		if s.Way == fleet.TrialDeadman {
			return h.rollBack(true)
		}
		if running := h.mayBeInTrial() && s.Boot != h.Board.BootID(); !running {
			return h.idle()
		}
		s.Phase, s.Boot, s.Left, s.Late = PhaseLeaving, h.Board.BootID(), s.Candidate, true
		if err := h.save(s); err != nil {
			return err
		}
	case PhaseLeaving:
	default: // clean would remove a file that config.txt may name
		return fmt.Errorf("the helper is still %s %s: try again later", s.Phase, s.Candidate)
	}
	// Reboot even if clean fails: left-over files do no harm, and a read-only boot partition must
	// not keep the board in the trial.
	return errors.Join(h.clean(), h.Board.Reboot(""))
}

// idle removes the files of a trial and stores that no trial is left.
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
	if err := h.completeSwap(); err != nil {
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

// swap replaces config.txt and cmdline.txt together: after each rename the firmware reads both old
// files or both new ones. First config.txt names tryCmdline, the command line of the trial; then
// cmdline.txt gets the same text.
func (h *Helper) swap(from, to Files) error {
	backend, dir, err := h.Board.Boots()
	if err != nil {
		return err
	}
	if backend != fleet.BootConfigTxt {
		return h.swapOne(backend, dir, from, to)
	}
	if err := h.completeSwap(); err != nil {
		return err
	}
	live, err := h.liveFiles()
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
		if err := h.dropSpareFiles(err, config, cmdline); err != nil {
			return err
		}
		var list []file
		if !bytes.Equal(live.Cmdline, to.Cmdline) {
			list = []file{{tryCmdline, to.Cmdline}, {configTxt, withTrialCmdline(to.Config)}, {cmdlineTxt, to.Cmdline}}
		}
		for _, f := range append(list, file{configTxt, to.Config}) {
			if err := replace(h.Disk, h.path(dir, f.name), f.text); err != nil {
				return err
			}
		}
	}
	return h.clean()
}

// dropSpareFiles handles an error of writing the .prev files. In a restore they would hold the
// files of the failed trial, so they are removed to make room.
func (h *Helper) dropSpareFiles(err error, prev ...string) error {
	if err == nil || h.state.Phase != PhaseReturning {
		return err
	}
	var errs []error
	for _, name := range prev {
		errs = append(errs, h.Disk.Remove(name))
	}
	return errors.Join(errs...)
}

// Overdue reports whether a trial runs, and the time left until two minutes after its deadline. A
// trial that is still undecided then means that the agent does not run.
func (h *Helper) Overdue() (trial bool, left time.Duration) {
	const grace = 2 * time.Minute
	if h.state.Phase != PhaseArmed || !h.mayBeInTrial() || h.state.Boot == h.Board.BootID() {
		return false, 0
	}
	return true, h.state.Deadline + grace - h.Board.Uptime()
}

// Forget removes the node and its hub's key, so that Pin accepts new ones.
func (h *Helper) Forget() error {
	s := h.state
	s.Node, s.Key, s.Generation = "", nil, 0
	return h.save(s)
}
