package boothelper

import (
	"bytes"
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

// A Board is the hardware and system that the helper runs on.
type Board interface {
	Compatible() []string
	BootID() string
	Uptime() time.Duration
	Tryboot() (now, offered bool)
	// Boots returns the backend that boots the board (one of fleet.BootBackends) and the directory
	// of its files. The error says why those files may not be changed.
	Boots() (backend, dir string, err error)
	Cmdline() string // command line of the running kernel
	// Restores returns an error if the old files would not be restored early in each boot.
	Restores() error
	// Refuses returns other reasons against a change now. need is the required space in bytes.
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

// Phases of a Status.
const (
	PhaseIdle      = ""
	PhaseArmed     = "armed"     // the files of a trial are written
	PhaseKeeping   = "keeping"   // the files of the trial replace the old ones
	PhaseReturning = "returning" // the old files are restored after a deadman trial
	PhaseLeaving   = "leaving"   // the old files are restored, and the board still runs the trial
)

// A Status is the state of the helper and its board.
type Status struct {
	Node       string        `json:"node,omitempty"` // name of the node that may send boot configurations; empty: not pinned yet
	Key        []byte        `json:"key,omitempty"`  // public key of the node's hub
	Generation int64         `json:"generation,omitempty"`
	Phase      string        `json:"phase,omitempty"`
	Candidate  string        `json:"candidate,omitempty"`
	Kept       string        `json:"kept,omitempty"`
	Undoable   bool          `json:"undoable,omitempty"`
	Left       string        `json:"left,omitempty"`  // digest of the last trial that ran and was abandoned
	Late       bool          `json:"late,omitempty"`  // Left was abandoned because its deadline had passed
	Ran        bool          `json:"ran,omitempty"`   // the trial of Candidate has run since it was armed
	Armed      string        `json:"armed,omitempty"` // boot id at which the phase began
	BootID     string        `json:"bootID"`
	Uptime     time.Duration `json:"uptime"`
	Lost       bool          `json:"lost,omitempty"`    // the boot files no longer contain all of Kept
	Tryboot    bool          `json:"tryboot,omitempty"` // this boot is the trial, and the kernel runs with its settings
	Backend    string        `json:"backend,omitempty"` // the board's boot method
	Trial      string        `json:"trial,omitempty"`   // fleet.TrialTryboot, TrialDeadman or TrialGrub
	// Refused says why the boot files may not be changed on this board, now or ever.
	Refused string `json:"refused,omitempty"`
}

// savedState is the state that the helper stores between requests and boots.
type savedState struct {
	Node         string        `json:"node,omitempty"`
	Key          []byte        `json:"key,omitempty"`
	Generation   int64         `json:"generation,omitempty"`
	Phase        string        `json:"phase,omitempty"`
	Boot         string        `json:"boot,omitempty"`
	Way          string        `json:"way,omitempty"`   // how Candidate is tried; empty: tryboot
	Trial        string        `json:"trial,omitempty"` // boot id of the running trial
	Ran          bool          `json:"ran,omitempty"`   // the trial has run with its settings
	Left         string        `json:"left,omitempty"`  // digest of the last trial that ran and was abandoned
	Late         bool          `json:"late,omitempty"`  // Left was abandoned because its deadline had passed
	Candidate    string        `json:"candidate,omitempty"`
	Deadline     time.Duration `json:"deadline,omitempty"` // time from the boot to the verdict about Candidate
	From         Files         `json:"from,omitzero"`      // old and new files of the phase
	To           Files         `json:"to,omitzero"`
	Kept         string        `json:"kept,omitempty"`
	KeptWay      string        `json:"keptWay,omitempty"` // how Kept was tried
	KeptDeadline time.Duration `json:"keptDeadline,omitempty"`
	Previous     *Files        `json:"previous,omitempty"` // the files from before Kept
	PreviousKept string        `json:"previousKept,omitempty"`
	Current      Files         `json:"current,omitzero"` // the files of Kept
}

// A Helper changes the boot files of one board. Its methods are not safe for concurrent use.
type Helper struct {
	Disk  Disk
	Board Board
	Slots *Slots
	state savedState
}

// New loads the helper's stored state. The caller must call Settle first.
func New(d Disk, b Board, stateDir string) (*Helper, error) {
	h := &Helper{Disk: d, Board: b, Slots: &Slots{Disk: d, Dir: stateDir, Name: "boot-helper"}}
	text, err := h.Slots.Load()
	if err == nil && text != nil {
		err = json.Unmarshal(text, &h.state)
	}
	return h, err
}

func (h *Helper) save(s savedState) error {
	text, err := json.Marshal(s)
	if err == nil {
		err = h.Slots.Save(text)
	}
	if err == nil {
		h.state = s
	}
	return err
}

// Status returns the state of the helper and its board.
func (h *Helper) Status() Status {
	s := h.state
	out := Status{
		Node: s.Node, Key: s.Key, Generation: s.Generation, Phase: s.Phase, Candidate: s.Candidate, Kept: s.Kept,
		Armed:    s.Boot,
		Undoable: s.Previous != nil, Left: s.Left, Late: s.Late, Ran: s.Ran, BootID: h.Board.BootID(),
		Uptime: h.Board.Uptime(),
	}
	out.Tryboot = h.inTrial() && h.argsApplied()
	out.Backend, _, _ = h.Board.Boots() // refuses reports the error of Boots
	if out.Trial = s.Way; s.Phase == PhaseIdle {
		out.Trial = h.way(out.Backend, "")
	}
	live, err := h.liveFiles()
	if err == nil && s.Phase == PhaseIdle && s.Kept != "" {
		out.Lost = sectionLost(s.Current, live) ||
			out.Backend == fleet.BootGrub && grubArgs(live.Config) != "" && h.grubIgnoresArgs()
	}
	if err != nil {
		out.Refused = err.Error()
	} else if err := h.refuses(out.Trial, 0); err != nil {
		out.Refused = err.Error()
	}
	return out
}

// Pin stores the node and its hub's key. After the first call it accepts no others until Forget.
func (h *Helper) Pin(node string, key []byte) error {
	s := h.state
	switch {
	case s.Node == node && bytes.Equal(s.Key, key):
		return nil
	case s.Node != "":
		return fmt.Errorf("this device takes boot configurations for node %s from its first hub: "+
			"if both have changed, run `flotilla-device boot-helper --forget` on the device", s.Node)
	case wire.ValidNode(node) != nil || len(key) != ed25519.PublicKeySize:
		return errors.New("pin: a node's name and an Ed25519 key of 32 bytes are needed")
	}
	s.Node, s.Key = node, key
	return h.save(s)
}

func (h *Helper) path(dir, name string) string { return filepath.Join(dir, name) }

// liveFiles reads the boot files, without the block of a GRUB trial.
func (h *Helper) liveFiles() (f Files, err error) {
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

// grubIgnoresArgs reports whether GRUB's entries ignore flotilla_args.
func (h *Helper) grubIgnoresArgs() bool {
	_, dir, err := h.Board.Boots()
	if err != nil {
		return false
	}
	cfg, err := h.Disk.Read(h.path(dir, grubCfg))
	return err == nil && grubTakes(string(cfg)) != nil
}

// verify decodes a configuration. It returns an error unless the hub has signed it for this board
// and it is at least as new as the last one.
func (h *Helper) verify(f *wire.Firmware) (*fleet.BootConfig, error) {
	if f == nil {
		return nil, errors.New("the boot configuration is missing")
	}
	b, err := f.Verify(h.state.Key, h.state.Node, h.Board.Compatible())
	if err != nil {
		return nil, err
	}
	if f.Generation < h.state.Generation {
		return nil, fmt.Errorf("generation %d of the configuration is older than %d, the last one of this device", f.Generation,
			h.state.Generation)
	}
	backend, _, err := h.Board.Boots()
	switch {
	case b.Backend == fleet.BootNone:
		return nil, fmt.Errorf("backend %s has no boot configuration", b.Backend)
	case err != nil:
		return nil, err
	case b.Backend != backend:
		return nil, fmt.Errorf("the configuration is for boards that boot by %s, and this board boots by %s: set the profile's backend",
			b.Backend, backend)
	}
	for _, o := range b.Config.DTOverlay {
		if name := fleet.OverlayOf(o); !h.Board.HasOverlay(name) {
			return nil, fmt.Errorf("this board has no overlay %s: overlays/%s.dtbo is missing on the boot partition", name, name)
		}
	}
	return b, nil
}

// way returns the kind of trial on this board for a trial setting (one of fleet.BootTrials).
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

// inTrial reports whether this boot is the trial. GRUB and firmware with tryboot put a mark on the
// kernel's command line. The firmware's own flag alone proves nothing, because the firmware may
// have booted other files.
func (h *Helper) inTrial() bool {
	s := h.state
	if s.Way == fleet.TrialDeadman {
		return s.Phase != PhaseIdle && s.Trial != "" && s.Trial == h.Board.BootID()
	}
	return s.Candidate != "" && slices.Contains(strings.Fields(h.Board.Cmdline()), grubTrialOf+trialName(s.Candidate))
}

// mayBeInTrial reports whether this boot is the trial, or the firmware says so.
func (h *Helper) mayBeInTrial() bool {
	now, _ := h.Board.Tryboot()
	return now || h.inTrial()
}

// argsApplied reports whether the kernel runs with every word that the candidate adds. After a
// deadman's swap the board may boot from other files, such as another card. Consoles do not count,
// because the firmware of Raspberry Pis renames them.
func (h *Helper) argsApplied() bool {
	s := h.state
	if s.Way != fleet.TrialDeadman {
		return true // inTrial has compared the command line
	}
	was, is := wordsOf(s.From), wordsOf(s.To)
	if len(s.From.Cmdline)+len(s.To.Cmdline) == 0 {
		was, is = strings.Fields(uEnvLine(s.From.Config)), strings.Fields(uEnvLine(s.To.Config))
	}
	added := slices.DeleteFunc(subtract(is, was), func(w string) bool { return strings.HasPrefix(w, "console=") })
	return len(subtract(added, strings.Fields(h.Board.Cmdline()))) == 0
}
