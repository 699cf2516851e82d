package firmware

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A Board is what the helper asks of the board, and what it does to it.
type Board interface {
	Compatible() []string
	BootID() string
	Uptime() time.Duration
	Tryboot() (now, offered bool)
	// Boots is by what the board boots, one of fleet.BootBackends, and the directory of the files that are
	// read then. The error says why none of it may be changed.
	Boots() (backend, dir string, err error)
	Cmdline() string // of the kernel that runs
	// Restores says why nothing would put the old files back early in the next boots.
	Restores() error
	// Refuses says what else speaks against a change now: it needs so many bytes.
	Refuses(need int64) error
	HasOverlay(name string) bool
	Reboot(argument string) error
}

// Files on the boot partition.
const (
	configTxt  = "config.txt"
	cmdlineTxt = "cmdline.txt"
	tryTxt     = "tryboot.txt"
	tryCmdline = "cmdline-flotilla.txt"
	trialMark  = "# Flotilla has written this file for one trial"
)

// Phases of a HelperStatus.
const (
	PhaseIdle      = ""
	PhaseArmed     = "armed"     // the files of a trial are there
	PhaseKeeping   = "keeping"   // what was tried takes the place of what was there
	PhaseReturning = "returning" // what was there takes its place again, of what a deadman has tried
	PhaseLeaving   = "leaving"   // the board runs what it is to run no more, until the next boot
)

// A HelperStatus is what the helper knows.
type HelperStatus struct {
	Node       string        `json:"node,omitempty"` // for which it takes boot configurations; empty: none yet
	Key        []byte        `json:"key,omitempty"`  // of its hub
	Generation int64         `json:"generation,omitempty"`
	Phase      string        `json:"phase,omitempty"`
	Candidate  string        `json:"candidate,omitempty"`
	Kept       string        `json:"kept,omitempty"`
	Undoable   bool          `json:"undoable,omitempty"`
	Left       string        `json:"left,omitempty"`  // digest whose trial ran last, and was left
	Armed      string        `json:"armed,omitempty"` // boot id of the phase's beginning
	BootID     string        `json:"bootID"`
	Uptime     time.Duration `json:"uptime"`
	Tryboot    bool          `json:"tryboot,omitempty"` // this boot is a trial
	Backend    string        `json:"backend,omitempty"` // by which the board boots
	Trial      string        `json:"trial,omitempty"`   // how it tries, one of fleet.TrialTryboot, TrialDeadman, TrialGrub
	Refused    string        `json:"refused,omitempty"` // why nothing of the boot may be changed on this board, now or ever
}

// helperState is what the helper must not forget.
type helperState struct {
	Node         string        `json:"node,omitempty"`
	Key          []byte        `json:"key,omitempty"`
	Generation   int64         `json:"generation,omitempty"`
	Phase        string        `json:"phase,omitempty"`
	Boot         string        `json:"boot,omitempty"`
	Way          string        `json:"way,omitempty"`   // how the candidate is tried; empty: tryboot
	Trial        string        `json:"trial,omitempty"` // boot id of the deadman's trial, once it runs
	Left         string        `json:"left,omitempty"`  // digest whose trial ran last, and was left
	Candidate    string        `json:"candidate,omitempty"`
	Deadline     time.Duration `json:"deadline,omitempty"` // of the candidate
	From         Files         `json:"from,omitzero"`      // of the phase
	To           Files         `json:"to,omitzero"`
	Kept         string        `json:"kept,omitempty"`
	KeptWay      string        `json:"keptWay,omitempty"` // how Kept was tried, and its deadline
	KeptDeadline time.Duration `json:"keptDeadline,omitempty"`
	Previous     *Files        `json:"previous,omitempty"` // what was there before Kept
	PreviousKept string        `json:"previousKept,omitempty"`
	Current      Files         `json:"current,omitzero"` // what was kept
}

// A Helper changes the boot files of one board. Its methods are not for concurrent use.
type Helper struct {
	Disk  Disk
	Board Board
	Slots *Slots
	state helperState
}

// NewHelper reads what the helper has remembered. Settle comes next, and before all else.
func NewHelper(d Disk, b Board, stateDir string) (*Helper, error) {
	h := &Helper{Disk: d, Board: b, Slots: &Slots{Disk: d, Dir: stateDir, Name: "boot-helper"}}
	text, err := h.Slots.Load()
	if err == nil && text != nil {
		err = json.Unmarshal(text, &h.state)
	}
	return h, err
}

func (h *Helper) save(s helperState) error {
	text, err := json.Marshal(s)
	if err == nil {
		err = h.Slots.Save(text)
	}
	if err == nil {
		h.state = s
	}
	return err
}

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
	case s.Phase == PhaseReturning:
		return h.finishReturn()
	case s.Phase == PhaseKeeping:
		if live, err := h.live(); err != nil {
			return err
		} else if !h.trying() && live.equal(s.From) { // the power was cut before anything was kept, and the board runs the old files
			return h.idle()
		}
		return h.finishKeep()
	case s.Phase == PhaseLeaving && s.Boot != h.Board.BootID():
		return h.idle()
	}
	return nil
}

// Status says what the helper knows.
func (h *Helper) Status() HelperStatus {
	s := h.state
	out := HelperStatus{
		Node: s.Node, Key: s.Key, Generation: s.Generation, Phase: s.Phase, Candidate: s.Candidate, Kept: s.Kept, Armed: s.Boot,
		Undoable: s.Previous != nil, Left: s.Left, BootID: h.Board.BootID(), Uptime: h.Board.Uptime(),
	}
	out.Tryboot = h.trying()
	out.Backend, _, _ = h.Board.Boots() // refuses says it
	if out.Trial = s.Way; s.Phase == PhaseIdle {
		out.Trial = h.way(out.Backend, "")
	}
	if _, err := h.live(); err != nil {
		out.Refused = err.Error()
	} else if err := h.refuses(out.Trial, 0); err != nil {
		out.Refused = err.Error()
	}
	return out
}

// Pin takes the node and its hub's key for good: the first that it is told.
func (h *Helper) Pin(node string, key []byte) error {
	s := h.state
	switch {
	case s.Node == node && bytes.Equal(s.Key, key):
		return nil
	case s.Node != "":
		return fmt.Errorf("boot configurations are taken here for node %s from the hub that it has first belonged to: if both have changed, run `flotilla-device boot-helper --forget` on the device", s.Node)
	case wire.ValidNode(node) != nil || len(key) != ed25519.PublicKeySize:
		return errors.New("pin: a node's name and an Ed25519 key of 32 bytes are needed")
	}
	s.Node, s.Key = node, key
	return h.save(s)
}

func (h *Helper) path(dir, name string) string { return filepath.Join(dir, name) }

// live are the files as they are, where they may be changed at all.
func (h *Helper) live() (f Files, err error) {
	backend, dir, err := h.Board.Boots()
	if err != nil {
		return f, err
	}
	switch backend {
	case fleet.BootUEnv:
		f.Config, err = h.Disk.Read(h.path(dir, uEnvTxt))
	case fleet.BootGrub:
		if f.Config, err = h.Disk.Read(h.path(dir, customCfg)); errors.Is(err, fs.ErrNotExist) {
			return f, nil
		}
		if err == nil {
			f.Config, err = untried(f.Config)
		}
	default:
		if f.Config, err = h.Disk.Read(h.path(dir, configTxt)); err == nil {
			f.Cmdline, err = h.Disk.Read(h.path(dir, cmdlineTxt))
		}
	}
	if err != nil {
		return f, fmt.Errorf("read the boot files: %w", err)
	}
	return f, nil
}

// chooses are the settings by which config.txt chooses what is booted.
var chooses = []string{"cmdline", "os_prefix", "overlay_prefix", "include", "boot_partition", "tryboot_a_b", "kernel_old", "boot_ramdisk"}

// refuses says why this board is not Flotilla's to change in such a way.
func (h *Helper) refuses(way string, need int64) error {
	backend, dir, err := h.Board.Boots()
	if err != nil {
		return err
	}
	switch backend {
	case fleet.BootUEnv:
		var f Files
		if f, err = h.live(); err == nil {
			err = checkUEnv(f.Config)
		}
	case fleet.BootGrub:
		err = h.refusesGrub(dir)
	default:
		err = h.refusesPi(dir)
	}
	if err == nil && way == fleet.TrialDeadman {
		err = h.Board.Restores()
	}
	if err != nil {
		return err
	}
	return h.Board.Refuses(need)
}

func (h *Helper) refusesGrub(dir string) error {
	cfg, err := h.Disk.Read(h.path(dir, grubCfg))
	if err != nil {
		return err
	}
	env, err := h.Disk.Read(h.path(dir, grubEnv))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no grubenv, so GRUB can try nothing once: make it with grub-editenv /boot/grub/grubenv create")
	}
	if err != nil {
		return err
	}
	return checkGrub(cfg, env)
}

// refusesPi looks at what stands beside our section, on a Raspberry Pi.
func (h *Helper) refusesPi(dir string) error {
	switch text, err := h.Disk.Read(h.path(dir, tryTxt)); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !bytes.HasPrefix(text, []byte(trialMark)):
		return fmt.Errorf("%s is there already and not Flotilla's: something else tries a configuration; remove the file if nothing does", tryTxt)
	}
	if _, err := h.Disk.Read(h.path(dir, "autoboot.txt")); !errors.Is(err, fs.ErrNotExist) {
		return errors.New("autoboot.txt chooses the partition to boot (A/B): whatever wrote it owns the boot of this board")
	}
	f, err := h.live()
	if err != nil {
		return err
	}
	c, err := split(f.Config)
	if err != nil {
		return err
	}
	if h.state.Phase == PhaseIdle || h.state.Phase == PhaseArmed {
		for l := range strings.Lines(string(c.before) + "\n" + string(c.after)) {
			l = strings.TrimSpace(l)
			key, _, _ := strings.Cut(strings.ReplaceAll(l, " ", "="), "=")
			for _, k := range chooses {
				if strings.EqualFold(key, k) {
					return fmt.Errorf("config.txt has %.40q, which chooses what is booted: whatever wrote it owns the boot of this board", l)
				}
			}
			if strings.EqualFold(l, "[tryboot]") {
				return errors.New("config.txt has a section [tryboot]: whatever wrote it owns the boot of this board")
			}
		}
	}
	return nil
}

// verify reads what the hub has signed, if it is for this board and not older than another.
func (h *Helper) verify(f *wire.Firmware) (*fleet.BootConfig, error) {
	if f == nil {
		return nil, errors.New("no boot configuration is given")
	}
	b, err := f.Verify(h.state.Key, h.state.Node, h.Board.Compatible())
	if err != nil {
		return nil, err
	}
	if f.Generation < h.state.Generation {
		return nil, fmt.Errorf("its generation %d is older than %d, which this device has taken", f.Generation, h.state.Generation)
	}
	backend, _, err := h.Board.Boots()
	switch {
	case b.Backend == fleet.BootNone:
		return nil, fmt.Errorf("backend %s changes nothing of the boot", b.Backend)
	case err != nil:
		return nil, err
	case b.Backend != backend:
		return nil, fmt.Errorf("it is for boards that boot by %s, and this one boots by %s: give its profile that backend", b.Backend, backend)
	}
	for _, o := range b.Config.DTOverlay {
		if name := fleet.OverlayOf(o); !h.Board.HasOverlay(name) {
			return nil, fmt.Errorf("this board has no overlay %s: overlays/%s.dtbo is missing on the boot partition", name, name)
		}
	}
	return b, nil
}

// way is how a configuration would be tried here, that asks for one of fleet.BootTrials.
func (h *Helper) way(backend, trial string) string {
	_, offered := h.Board.Tryboot()
	switch {
	case backend == "":
		return ""
	case backend == fleet.BootGrub:
		return fleet.TrialGrub
	case backend == fleet.BootUEnv || trial == fleet.TrialDeadman || trial != fleet.TrialTryboot && !offered:
		return fleet.TrialDeadman
	}
	return fleet.TrialTryboot
}

// trying tells whether this boot is a trial.
func (h *Helper) trying() bool {
	s := h.state
	switch s.Way {
	case fleet.TrialDeadman:
		return s.Phase != PhaseIdle && s.Trial != "" && s.Trial == h.Board.BootID()
	case fleet.TrialGrub:
		return s.Candidate != "" && slices.Contains(strings.Fields(h.Board.Cmdline()), grubTrialOf+trialName(s.Candidate))
	}
	now, _ := h.Board.Tryboot()
	return now
}

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
		err = errors.New("this board's firmware does not say whether it tries anything (tryboot): update its bootloader with rpi-eeprom-update, or let the profile's trial be auto")
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
	return Changes(b.Backend, from, to), nil
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
	if s.Phase == PhaseIdle && s.Kept == f.Digest && from.equal(to) {
		return h.save(s)
	}
	s.Candidate, s.Way, s.Deadline, s.From, s.To = f.Digest, h.way(b.Backend, b.Trial), b.Deadline(), from, to
	return h.arm(s)
}

// undoOf is the name of what was there before a digest: no document has it.
func undoOf(digest string) string { return wire.FirmwareDigest([]byte("undo " + digest)) }

// Undo arms the trial of what was there before what is kept. It needs no signature: the hub
// has once signed that, or the board came with it.
func (h *Helper) Undo(digest string) error {
	s := h.state
	if s.Phase != PhaseIdle && s.Candidate == undoOf(digest) {
		return h.arm(s)
	}
	if s.Previous == nil || s.Kept != digest || digest == "" {
		return fmt.Errorf("there is nothing to undo: %.80q is not what is kept here, or what was there before is not known", digest)
	}
	backend, _, err := h.Board.Boots()
	if err != nil {
		return err
	}
	live, err := h.live()
	if err != nil {
		return err
	}
	if s.Phase == PhaseIdle && !live.equal(s.Current) {
		return errors.New("somebody has changed the boot files since this was kept: undo it by hand, by removing Flotilla's section")
	}
	if s.KeptWay == "" {
		s.KeptWay = h.way(backend, "")
	}
	if err := h.refuses(s.KeptWay, space(live)); err != nil {
		return err
	}
	s.Candidate, s.Way, s.Deadline, s.From, s.To = undoOf(digest), s.KeptWay, cmp.Or(s.KeptDeadline, fleet.DefaultBootDeadline), s.Current, *s.Previous
	return h.arm(s)
}

// arm writes the files of a state's candidate, the first time or again, and reboots.
func (h *Helper) arm(s helperState) error {
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
	case s.From.equal(s.To): // it is so already: there is nothing to try
		return h.save(s.kept())
	}
	_, dir, err := h.Board.Boots()
	if err != nil {
		return err
	}
	s.Phase, s.Left, s.Boot, s.Trial = PhaseArmed, "", h.Board.BootID(), ""
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
	text := s.To.Config
	if !bytes.Equal(s.From.Cmdline, s.To.Cmdline) {
		text = via(s.To.Config)
		err = replace(h.Disk, h.path(dir, tryCmdline), s.To.Cmdline)
	}
	if err == nil {
		err = replace(h.Disk, h.path(dir, tryTxt), append([]byte(trialMark+": "+s.Candidate+"\n"), text...))
	}
	if err == nil {
		err = h.Board.Reboot("0 tryboot")
	}
	return err
}

// unchanged looks whether nobody else has written what is written again.
func (h *Helper) unchanged(s helperState) error {
	live, err := h.live()
	if err != nil {
		return err
	}
	if s.Way != fleet.TrialDeadman {
		err = h.refuses(s.Way, space(live))
	} else if live.equal(s.To) || bytes.Equal(live.Config, via(s.To.Config)) {
		return nil
	}
	if err == nil && !live.equal(s.From) {
		err = errors.New("somebody has changed the boot files since the trial was armed")
	}
	return err
}

// Keep puts what was tried in the place of what was there. Only while the trial runs.
func (h *Helper) Keep(digest string) error {
	s := h.state
	now := h.trying()
	switch {
	case s.Phase == PhaseIdle && s.Kept == digest && digest != "":
		return nil
	case s.Phase != PhaseArmed || s.Candidate != digest:
		return fmt.Errorf("%.80s is not what is tried here", digest)
	case !now || s.Boot == h.Board.BootID():
		return errors.New("the board does not run the trial: its firmware says that it has booted the old files")
	}
	live, err := h.live()
	if err != nil {
		return err
	}
	there := s.From
	if s.Way == fleet.TrialDeadman {
		there = s.To
	}
	if !live.equal(there) {
		return errors.New("somebody has changed the boot files since the trial began: what would be kept is not what was tried")
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
func (s helperState) kept() helperState {
	if s.Candidate == undoOf(s.Kept) { // there is no second step back
		s.Kept, s.Previous, s.PreviousKept, s.KeptWay, s.KeptDeadline = s.PreviousKept, nil, "", "", 0
	} else {
		previous := s.From
		s.Previous, s.PreviousKept = &previous, s.Kept
		s.Kept, s.KeptWay, s.KeptDeadline = s.Candidate, s.Way, s.Deadline
	}
	s.Current = s.To
	return s.idle()
}

// idle is a state in which nothing is tried.
func (s helperState) idle() helperState {
	s.Phase, s.Boot, s.Candidate, s.Deadline, s.From, s.To, s.Way, s.Trial = PhaseIdle, "", "", 0, Files{}, Files{}, "", ""
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
			return h.giveBack()
		}
		if running := h.trying() && s.Boot != h.Board.BootID(); !running {
			return h.idle()
		}
		s.Phase, s.Boot, s.Left = PhaseLeaving, h.Board.BootID(), s.Candidate
		if err := h.save(s); err != nil {
			return err
		}
	case PhaseLeaving:
	default: // config.txt may name a file that clean removes
		return fmt.Errorf("the helper is %s %s: that is to end first", s.Phase, s.Candidate)
	}
	if err := h.clean(); err != nil {
		return err
	}
	return h.Board.Reboot("")
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
	if !live.equal(to) {
		type file struct {
			name string
			text []byte
		}
		list := []file{{configTxt + ".prev", from.Config}, {cmdlineTxt + ".prev", from.Cmdline}}
		if !bytes.Equal(live.Cmdline, to.Cmdline) {
			list = append(list, file{tryCmdline, to.Cmdline}, file{configTxt, via(to.Config)}, file{cmdlineTxt, to.Cmdline})
		}
		for _, f := range append(list, file{configTxt, to.Config}) {
			if err := replace(h.Disk, h.path(dir, f.name), f.text); err != nil {
				return err
			}
		}
	}
	return h.clean()
}

// Overdue tells whether a trial runs that nobody has judged, though its deadline is over:
// what would judge it does not run.
func (h *Helper) Overdue() (trial bool, left time.Duration) {
	const grace = 2 * time.Minute
	if h.state.Phase != PhaseArmed || !h.trying() || h.state.Boot == h.Board.BootID() {
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
