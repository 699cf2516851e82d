package boothelper

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// stage verifies a configuration and renders its files. It changes nothing.
func (h *Helper) stage(f *wire.Firmware) (b *fleet.BootConfig, from, to Files, err error) {
	if b, err = h.verify(f); err != nil {
		return
	}
	if from, err = h.liveFiles(); err != nil {
		return
	}
	way := h.way(b.Backend, b.Trial)
	if _, offered := h.Board.Tryboot(); way == fleet.TrialTryboot && !offered {
		err = errors.New("this board's firmware does not offer trials (tryboot): update its bootloader " +
			"with rpi-eeprom-update, or set the profile's trial to auto")
		return
	}
	if err = h.refuses(way, space(from)); err != nil {
		return
	}
	to, err = render(from, b)
	return
}

// space returns how many bytes a change of these files needs on the boot partition.
func space(f Files) int64 { return int64(3*(len(f.Config)+len(f.Cmdline)) + 1<<20) }

// Inspect returns the changes that a configuration would make.
func (h *Helper) Inspect(f *wire.Firmware) (string, error) {
	b, from, to, err := h.stage(f)
	if err != nil {
		return "", err
	}
	return changes(b.Backend, from, to), nil
}

// trialCmdlineLines makes the firmware read the kernel's command line from tryCmdline.
const trialCmdlineLines = "[all]\ncmdline=" + tryCmdline + "\n"

// withTrialCmdline returns config.txt with tryCmdline as the file of the kernel's command line.
func withTrialCmdline(config []byte) []byte {
	out := bytes.Clone(config)
	if n := len(out); n > 0 && out[n-1] != '\n' {
		out = append(out, '\n')
	}
	return append(out, trialCmdlineLines...)
}

// completeSwap completes a swap that was interrupted while config.txt named tryCmdline: it copies
// that file's text to cmdline.txt and removes the lines. Until then tryCmdline must not be written
// or removed.
func (h *Helper) completeSwap() error {
	backend, dir, err := h.Board.Boots()
	if err != nil || backend != fleet.BootConfigTxt {
		return err
	}
	if err := h.Disk.SyncDir(dir); err != nil { // from here on a read returns the text that the firmware would read
		return err
	}
	text, err := h.Disk.Read(h.path(dir, configTxt))
	if err != nil {
		return err
	}
	config, named := bytes.CutSuffix(text, []byte(trialCmdlineLines))
	if !named {
		return nil
	}
	line, err := h.Disk.Read(h.path(dir, tryCmdline))
	if err == nil {
		err = replace(h.Disk, h.path(dir, cmdlineTxt), line)
	}
	if err == nil {
		err = replace(h.Disk, h.path(dir, configTxt), config)
	}
	return err
}

// Arm writes the files of a trial and reboots into it. Repeated calls have the same effect.
func (h *Helper) Arm(f *wire.Firmware) error {
	if h.state.Phase != PhaseIdle && f != nil && h.state.Candidate == f.Digest { // the live files may be the trial's
		if _, err := h.verify(f); err != nil {
			return err
		}
		return h.arm(h.state)
	}
	b, from, to, err := h.stage(f)
	if err != nil {
		return err
	}
	s := h.state
	s.Generation = f.Generation
	if s.Phase == PhaseIdle && s.Kept == f.Digest && from.Equal(to) {
		return h.save(s)
	}
	s.Candidate, s.Way, s.Deadline, s.From, s.To = f.Digest, h.way(b.Backend, b.Trial), b.Deadline(), from, to
	return h.arm(s)
}

// UndoDigest returns the name of the files from before a digest. It differs from the digest of
// every document.
func UndoDigest(digest string) string { return wire.FirmwareDigest([]byte("undo " + digest)) }

// Undo arms a trial of the files from before the kept configuration. They need no signature: the
// board came with them, or the hub has signed them earlier.
func (h *Helper) Undo(digest string) error {
	s := h.state
	if s.Phase != PhaseIdle && s.Candidate == UndoDigest(digest) {
		return h.arm(s)
	}
	if s.Previous == nil || s.Kept != digest || digest == "" {
		return fmt.Errorf("nothing to undo: %.80q is not kept here, or the previous files are unknown",
			digest)
	}
	backend, _, err := h.Board.Boots()
	if err != nil {
		return err
	}
	live, err := h.liveFiles()
	if err != nil {
		return err
	}
	if s.Phase == PhaseIdle && !live.Equal(s.Current) {
		return errors.New(
			"another program has changed the boot files since the configuration was kept: remove Flotilla's section by hand")
	}
	if s.KeptWay == "" {
		s.KeptWay = h.way(backend, "")
	}
	if err := h.refuses(s.KeptWay, space(live)); err != nil {
		return err
	}
	s.Candidate, s.Way, s.Deadline, s.From, s.To = UndoDigest(digest), s.KeptWay,
		cmp.Or(s.KeptDeadline, fleet.DefaultBootDeadline), s.Current, *s.Previous
	return h.arm(s)
}

// arm writes the files of s.Candidate, for the first time or again, and reboots.
func (h *Helper) arm(s savedState) error {
	switch was := h.state; {
	case was.Phase != PhaseIdle && h.inTrial():
		return errors.New("the board runs a trial: keep or restore it first")
	case was.Phase != PhaseIdle && was.Phase != PhaseArmed:
		return fmt.Errorf("the helper is still %s %s: try again later", was.Phase, was.Candidate)
	case was.Phase == PhaseArmed && was.Candidate != s.Candidate:
		return fmt.Errorf("the trial of %.80s is armed: restore the old files first", was.Candidate)
	case was.Phase == PhaseArmed:
		if err := h.unchanged(s); err != nil {
			return err
		}
	case s.From.Equal(s.To): // the files already contain the candidate, so a trial is not needed
		return h.save(s.kept())
	}
	_, dir, err := h.Board.Boots()
	if err != nil {
		return err
	}
	s.Phase, s.Left, s.Late, s.Boot, s.Trial, s.Ran = PhaseArmed, "", false, h.Board.BootID(), "", false
	if err := h.save(s); err != nil {
		return err
	}
	switch s.Way {
	case fleet.TrialDeadman:
		if err := h.swap(s.From, s.To); err != nil {
			return err
		}
		return h.Board.Reboot("")
	case fleet.TrialGrub:
		return h.armGrub(dir)
	}
	line, end, err := cmdline(s.To.Cmdline)
	if err == nil { // the trial has its own command line, which ends with the trial's mark
		err = replace(h.Disk, h.path(dir, tryCmdline), []byte(line+" "+grubTrialOf+trialName(s.Candidate)+end))
	}
	if err == nil {
		text := append([]byte(trialMark+": "+s.Candidate+"\n"), withTrialCmdline(s.To.Config)...)
		err = replace(h.Disk, h.path(dir, tryTxt), text)
	}
	if err == nil {
		err = h.Board.Reboot("0 tryboot")
	}
	return err
}

// unchanged returns an error if another program has changed the boot files since the trial was
// armed.
func (h *Helper) unchanged(s savedState) error {
	live, err := h.liveFiles()
	if err != nil {
		return err
	}
	if s.Way != fleet.TrialDeadman {
		err = h.refuses(s.Way, space(live))
	} else if live.Equal(s.To) || bytes.Equal(live.Config, withTrialCmdline(s.To.Config)) {
		return nil
	}
	if err == nil && !live.Equal(s.From) {
		err = errors.New("another program has changed the boot files since the trial was armed")
	}
	return err
}
