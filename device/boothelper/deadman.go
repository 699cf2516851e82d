package boothelper

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"

	"flotilla.dev/shared/fleet"
)

// A deadman trial is for boards that cannot boot other files just once. The helper replaces the
// files, and the next boot is the trial. If the boot after that finds the trial undecided, an early
// unit (boot-helper --restore) calls Settle, which restores the old files. A configuration with
// which the board does not reach that unit is not undone.

// settleDeadman settles an armed deadman trial after a reboot.
func (h *Helper) settleDeadman() error {
	s := h.state
	live, err := h.liveFiles()
	if err != nil {
		return err
	}
	switch half := bytes.Equal(live.Config, withTrialCmdline(s.To.Config)); {
	case s.Trial == "" && live.Equal(s.From): // the power was cut before any file was written
		return h.idle()
	case s.Trial == "":
		s.Trial, s.Ran = h.Board.BootID(), h.argsApplied()
		return h.save(s)
	case s.Trial == h.Board.BootID() && half: // the new files were booted, but the swap was interrupted
		return h.swap(s.From, s.To)
	case s.Trial == h.Board.BootID():
		return nil
	}
	return h.rollBack(false)
}

// rollBack restores the files from before the trial. late means that the trial's deadline has
// passed.
func (h *Helper) rollBack(late bool) error {
	s := h.state
	if s.Ran {
		s.Left, s.Late = s.Candidate, late
	}
	s.Phase, s.Boot = PhaseReturning, h.Board.BootID()
	if err := h.save(s); err != nil {
		return err
	}
	err := h.finishRollBack()
	if s.Trial == "" || err == nil && h.state.Phase != PhaseLeaving {
		return err
	}
	// If a file cannot be restored now, the next boot may restore it: a file system that became
	// read-only is writable again.
	return errors.Join(err, h.Board.Reboot(""))
}

func (h *Helper) finishRollBack() error {
	s := h.state
	if err := h.completeSwap(); err != nil {
		return err
	}
	live, err := h.liveFiles()
	if err != nil {
		return err
	}
	if now := h.Board.BootID(); s.Boot != now {
		if live.Equal(s.From) { // the power was cut, and the board has booted the old files
			return h.idle()
		}
		s.Boot, s.Trial = now, now
		if err := h.save(s); err != nil {
			return err
		}
	}
	if err := h.swap(live, s.From); err != nil {
		return err
	}
	if s.Trial == "" { // the new files were never booted
		return h.idle()
	}
	s.Phase = PhaseLeaving
	return h.save(s)
}

// Leave reboots if the board still runs files that were rolled back.
func (h *Helper) Leave() error {
	if h.state.Phase != PhaseLeaving || h.state.Boot != h.Board.BootID() {
		return nil
	}
	return h.Board.Reboot("")
}

// armGrub makes GRUB try the candidate at the next boot. It writes custom.cfg first, which has no
// effect alone.
func (h *Helper) armGrub(dir string) error {
	s := h.state
	text, err := grubTrial(s.From, s.To, s.Candidate)
	if err == nil {
		err = replace(h.Disk, h.path(dir, customCfg), text)
	}
	if err == nil {
		err = h.grubEnv(dir, trialName(s.Candidate))
	}
	if err == nil {
		err = h.Board.Reboot("")
	}
	return err
}

// cleanGrub removes a trial from GRUB's files.
func (h *Helper) cleanGrub(dir string) error {
	f, err := h.liveFiles()
	if err == nil {
		err = h.writeOrRemove(h.path(dir, customCfg), f.Config)
	}
	if err == nil {
		err = h.grubEnv(dir, "")
	}
	return err
}

func (h *Helper) grubEnv(dir, try string) error {
	env, err := h.Disk.Read(h.path(dir, grubEnv))
	if errors.Is(err, fs.ErrNotExist) && try == "" {
		return nil
	}
	if err == nil {
		env, err = setEnv(env, grubTry, try)
	}
	if err != nil {
		return err
	}
	return replace(h.Disk, h.path(dir, grubEnv), env)
}

// writeOrRemove writes a file, or removes it if the text is empty.
func (h *Helper) writeOrRemove(name string, text []byte) error {
	if len(text) > 0 {
		return replace(h.Disk, name, text)
	}
	if err := h.Disk.Remove(name); err != nil {
		return err
	}
	return h.Disk.SyncDir(filepath.Dir(name)) // also if the file is already gone: the removal may not be durable yet
}

// swapOne is swap for boards with one boot file.
func (h *Helper) swapOne(backend, dir string, from, to Files) error {
	name := h.path(dir, uEnvTxt)
	if backend == fleet.BootGrub {
		name = h.path(dir, customCfg)
	}
	live, err := h.liveFiles()
	if err == nil && !live.Equal(to) {
		if err = h.dropSpareFiles(h.writeOrRemove(name+".prev", from.Config), name+".prev"); err == nil {
			err = h.writeOrRemove(name, to.Config)
		}
	}
	if err != nil {
		return err
	}
	return h.clean()
}
