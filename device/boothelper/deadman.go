package boothelper

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"

	"flotilla.dev/shared/fleet"
)

// A deadman tries on boards that cannot boot anything once: the files are replaced, and the
// first boot with them is the trial. At any later one that finds it neither kept nor given
// back, Settle puts the old files back, which an early unit asks for (boot-helper
// --restore). So a board must come as far as that unit with what is tried: a
// configuration with which it does not is not undone.

// wake is the first look at an armed trial in a boot that is not the one in which it was armed.
func (h *Helper) wake() error {
	s := h.state
	live, err := h.live()
	if err != nil {
		return err
	}
	switch half := bytes.Equal(live.Config, via(s.To.Config)); {
	case s.Trial == "" && live.Equal(s.From): // the power was cut before anything was there
		return h.idle()
	case s.Trial == "":
		s.Trial, s.Ran = h.Board.BootID(), h.taken()
		return h.save(s)
	case s.Trial == h.Board.BootID() && half: // the board has booted the new files, though not all are in their places
		return h.swap(s.From, s.To)
	case s.Trial == h.Board.BootID():
		return nil
	}
	return h.giveBack(false)
}

// giveBack puts the files from before the trial back, late where its deadline is over.
func (h *Helper) giveBack(late bool) error {
	s := h.state
	if s.Ran {
		s.Left, s.Late = s.Candidate, late
	}
	s.Phase, s.Boot = PhaseReturning, h.Board.BootID()
	if err := h.save(s); err != nil {
		return err
	}
	err := h.finishReturn()
	if s.Trial == "" || err == nil && h.state.Phase != PhaseLeaving {
		return err
	}
	// what could not be given back may be so in the next boot, as on a partition that has become read-only
	return errors.Join(err, h.Board.Reboot(""))
}

func (h *Helper) finishReturn() error {
	s := h.state
	if err := h.direct(); err != nil {
		return err
	}
	live, err := h.live()
	if err != nil {
		return err
	}
	if now := h.Board.BootID(); s.Boot != now {
		if live.Equal(s.From) { // the power was cut, and the board has booted what it is to run
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
	if s.Trial == "" { // nothing of the new files was ever booted
		return h.idle()
	}
	s.Phase = PhaseLeaving
	return h.save(s)
}

// Leave reboots where the board runs what it is to run no more.
func (h *Helper) Leave() error {
	if h.state.Phase != PhaseLeaving || h.state.Boot != h.Board.BootID() {
		return nil
	}
	return h.Board.Reboot("")
}

// armGrub lets GRUB try the candidate at the next boot: custom.cfg first, which changes
// nothing by itself.
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

// cleanGrub takes a trial away.
func (h *Helper) cleanGrub(dir string) error {
	f, err := h.live()
	if err == nil {
		err = h.one(h.path(dir, customCfg), f.Config)
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

// one writes a file, or removes it where nothing is in it.
func (h *Helper) one(name string, text []byte) error {
	if len(text) > 0 {
		return replace(h.Disk, name, text)
	}
	if err := h.Disk.Remove(name); err != nil {
		return err
	}
	return h.Disk.SyncDir(filepath.Dir(name)) // also where it is gone already: it may be so only in memory
}

// swapOne is swap for boards that boot by one file.
func (h *Helper) swapOne(backend, dir string, from, to Files) error {
	name := h.path(dir, uEnvTxt)
	if backend == fleet.BootGrub {
		name = h.path(dir, customCfg)
	}
	live, err := h.live()
	if err == nil && !live.Equal(to) {
		if err = h.spare(h.one(name+".prev", from.Config), name+".prev"); err == nil {
			err = h.one(name, to.Config)
		}
	}
	if err != nil {
		return err
	}
	return h.clean()
}
