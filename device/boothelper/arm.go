package boothelper

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// stage renders a configuration without changing anything.
func (h *Helper) stage(f *wire.Firmware) (b *fleet.BootConfig, from, to Files, err error) {
	if b, err = h.verify(f); err != nil {
		return
	}
	if from, err = h.live(); err != nil {
		return
	}
	way := h.way(b.Backend, b.Trial)
	if _, offered := h.Board.Tryboot(); way == fleet.TrialTryboot && !offered {
		err = errors.New("this board's firmware does not say whether it tries anything (tryboot): update its bootloader " +
			"with rpi-eeprom-update, or let the profile's trial be auto")
		return
	}
	if err = h.refuses(way, space(from)); err != nil {
		return
	}
	to, err = render(from, b)
	return
}

// space is how many bytes a change of these files needs.
func space(f Files) int64 { return int64(3*(len(f.Config)+len(f.Cmdline)) + 1<<20) }

// Inspect says what a configuration would change.
func (h *Helper) Inspect(f *wire.Firmware) (string, error) {
	b, from, to, err := h.stage(f)
	if err != nil {
		return "", err
	}
	return changes(b.Backend, from, to), nil
}

// viaTry are the lines that name another file as the command line.
const viaTry = "[all]\ncmdline=" + tryCmdline + "\n"

// via is config.txt with another file as the command line.
func via(config []byte) []byte {
	out := bytes.Clone(config)
	if n := len(out); n > 0 && out[n-1] != '\n' {
		out = append(out, '\n')
	}
	return append(out, viaTry...)
}

// direct ends what a swap has begun that was cut off: where config.txt names the other file
// that takes the place of cmdline.txt, and is named no more. Nobody may write to that file
// or remove it before.
func (h *Helper) direct() error {
	backend, dir, err := h.Board.Boots()
	if err != nil || backend != fleet.BootConfigTxt {
		return err
	}
	if err := h.Disk.SyncDir(dir); err != nil { // what is read is what the firmware would read
		return err
	}
	text, err := h.Disk.Read(h.path(dir, configTxt))
	if err != nil {
		return err
	}
	config, named := bytes.CutSuffix(text, []byte(viaTry))
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

// Arm writes the files of a trial and reboots into it. It is the same whether it is asked
// once or again.
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

// UndoDigest is the name of what was there before a digest: no document has it.
func UndoDigest(digest string) string { return wire.FirmwareDigest([]byte("undo " + digest)) }

// Undo arms the trial of what was there before what is kept. It needs no signature: the hub
// has once signed that, or the board came with it.
func (h *Helper) Undo(digest string) error {
	s := h.state
	if s.Phase != PhaseIdle && s.Candidate == UndoDigest(digest) {
		return h.arm(s)
	}
	if s.Previous == nil || s.Kept != digest || digest == "" {
		return fmt.Errorf("there is nothing to undo: %.80q is not what is kept here, or what was there before is not known",
			digest)
	}
	backend, _, err := h.Board.Boots()
	if err != nil {
		return err
	}
	live, err := h.live()
	if err != nil {
		return err
	}
	if s.Phase == PhaseIdle && !live.Equal(s.Current) {
		return errors.New(
			"somebody has changed the boot files since this was kept: undo it by hand, by removing Flotilla's section")
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

// arm writes the files of a state's candidate, the first time or again, and reboots.
func (h *Helper) arm(s savedState) error {
	switch was := h.state; {
	case was.Phase != PhaseIdle && h.trying():
		return errors.New("the board is in a trial: keep it or go back first")
	case was.Phase != PhaseIdle && was.Phase != PhaseArmed:
		return fmt.Errorf("the helper is %s %s: that is to end first", was.Phase, was.Candidate)
	case was.Phase == PhaseArmed && was.Candidate != s.Candidate:
		return fmt.Errorf("%.80s is about to be tried: that is to be given back first", was.Candidate)
	case was.Phase == PhaseArmed:
		if err := h.unchanged(s); err != nil {
			return err
		}
	case s.From.Equal(s.To): // it is so already: there is nothing to try
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
	if err == nil { // its command line is a file of its own, with a word more
		err = replace(h.Disk, h.path(dir, tryCmdline), []byte(line+" "+grubTrialOf+trialName(s.Candidate)+end))
	}
	if err == nil {
		err = replace(h.Disk, h.path(dir, tryTxt), append([]byte(trialMark+": "+s.Candidate+"\n"), via(s.To.Config)...))
	}
	if err == nil {
		err = h.Board.Reboot("0 tryboot")
	}
	return err
}

// unchanged looks whether nobody else has written what is written again.
func (h *Helper) unchanged(s savedState) error {
	live, err := h.live()
	if err != nil {
		return err
	}
	if s.Way != fleet.TrialDeadman {
		err = h.refuses(s.Way, space(live))
	} else if live.Equal(s.To) || bytes.Equal(live.Config, via(s.To.Config)) {
		return nil
	}
	if err == nil && !live.Equal(s.From) {
		err = errors.New("somebody has changed the boot files since the trial was armed")
	}
	return err
}
