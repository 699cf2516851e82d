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

// A Board is what the helper asks of the board, and what it does to it.
type Board interface {
	Compatible() []string
	BootID() string
	Uptime() time.Duration
	Tryboot() (now, offered bool)
	// Boots is by what the board boots, one of fleet.BootBackends, and the directory of the files that
	// are read then. The error says why none of it may be changed.
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

// Phases of a Status.
const (
	PhaseIdle      = ""
	PhaseArmed     = "armed"     // the files of a trial are there
	PhaseKeeping   = "keeping"   // what was tried takes the place of what was there
	PhaseReturning = "returning" // what was there takes its place again, of what a deadman has tried
	PhaseLeaving   = "leaving"   // the board runs what it is to run no more, until the next boot
)

// A Status is what the helper knows.
type Status struct {
	Node       string        `json:"node,omitempty"` // for which it takes boot configurations; empty: none yet
	Key        []byte        `json:"key,omitempty"`  // of its hub
	Generation int64         `json:"generation,omitempty"`
	Phase      string        `json:"phase,omitempty"`
	Candidate  string        `json:"candidate,omitempty"`
	Kept       string        `json:"kept,omitempty"`
	Undoable   bool          `json:"undoable,omitempty"`
	Left       string        `json:"left,omitempty"`  // digest whose trial ran last, and was left
	Late       bool          `json:"late,omitempty"`  // as its deadline was over
	Ran        bool          `json:"ran,omitempty"`   // Candidate was seen to run since it was armed
	Armed      string        `json:"armed,omitempty"` // boot id of the phase's beginning
	BootID     string        `json:"bootID"`
	Uptime     time.Duration `json:"uptime"`
	Lost       bool          `json:"lost,omitempty"`    // Kept, or some of it, is not in the boot files any more
	Tryboot    bool          `json:"tryboot,omitempty"` // this boot is a trial, and the kernel has what is tried
	Backend    string        `json:"backend,omitempty"` // by which the board boots
	Trial      string        `json:"trial,omitempty"`   // how it tries, one of fleet.TrialTryboot, TrialDeadman, TrialGrub
	// why nothing of the boot may be changed on this board, now or ever
	Refused string `json:"refused,omitempty"`
}

// savedState is what the helper must not forget.
type savedState struct {
	Node         string        `json:"node,omitempty"`
	Key          []byte        `json:"key,omitempty"`
	Generation   int64         `json:"generation,omitempty"`
	Phase        string        `json:"phase,omitempty"`
	Boot         string        `json:"boot,omitempty"`
	Way          string        `json:"way,omitempty"`   // how the candidate is tried; empty: tryboot
	Trial        string        `json:"trial,omitempty"` // boot id of the trial, once it runs
	Ran          bool          `json:"ran,omitempty"`   // and the kernel had what is tried
	Left         string        `json:"left,omitempty"`  // digest whose trial ran last, and was left
	Late         bool          `json:"late,omitempty"`  // as its deadline was over
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
	state savedState
}

// New reads what the helper has remembered. Settle comes next, and before all else.
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

// Status says what the helper knows.
func (h *Helper) Status() Status {
	s := h.state
	out := Status{
		Node: s.Node, Key: s.Key, Generation: s.Generation, Phase: s.Phase, Candidate: s.Candidate, Kept: s.Kept,
		Armed:    s.Boot,
		Undoable: s.Previous != nil, Left: s.Left, Late: s.Late, Ran: s.Ran, BootID: h.Board.BootID(),
		Uptime: h.Board.Uptime(),
	}
	out.Tryboot = h.trying() && h.taken()
	out.Backend, _, _ = h.Board.Boots() // refuses says it
	if out.Trial = s.Way; s.Phase == PhaseIdle {
		out.Trial = h.way(out.Backend, "")
	}
	live, err := h.live()
	if err == nil && s.Phase == PhaseIdle && s.Kept != "" {
		out.Lost = lost(s.Current, live) || out.Backend == fleet.BootGrub && grubArgs(live.Config) != "" && h.untaken()
	}
	if err != nil {
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
		return fmt.Errorf("boot configurations are taken here for node %s from the hub that it has first belonged to: "+
			"if both have changed, run `flotilla-device boot-helper --forget` on the device", s.Node)
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

// untaken tells whether GRUB's entries do not have the words that are there for them.
func (h *Helper) untaken() bool {
	_, dir, err := h.Board.Boots()
	if err != nil {
		return false
	}
	cfg, err := h.Disk.Read(h.path(dir, grubCfg))
	return err == nil && grubTakes(string(cfg)) != nil
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
		return nil, fmt.Errorf("its generation %d is older than %d, which this device has taken", f.Generation,
			h.state.Generation)
	}
	backend, _, err := h.Board.Boots()
	switch {
	case b.Backend == fleet.BootNone:
		return nil, fmt.Errorf("backend %s changes nothing of the boot", b.Backend)
	case err != nil:
		return nil, err
	case b.Backend != backend:
		return nil, fmt.Errorf("it is for boards that boot by %s, and this one boots by %s: give its profile that backend",
			b.Backend, backend)
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

// trying tells whether this boot is a trial. Firmware that tries, and GRUB, give the kernel a
// word that says so; by what the firmware says of itself alone, it may have booted anything.
func (h *Helper) trying() bool {
	s := h.state
	if s.Way == fleet.TrialDeadman {
		return s.Phase != PhaseIdle && s.Trial != "" && s.Trial == h.Board.BootID()
	}
	return s.Candidate != "" && slices.Contains(strings.Fields(h.Board.Cmdline()), grubTrialOf+trialName(s.Candidate))
}

// away tells whether this boot is a trial, or what the firmware takes for one.
func (h *Helper) away() bool {
	now, _ := h.Board.Tryboot()
	return now || h.trying()
}

// taken tells whether the kernel's command line has every word that the candidate adds to it.
// A board may boot by other files than those that a deadman has replaced. Raspberry Pis' firmware
// changes the names of consoles.
func (h *Helper) taken() bool {
	s := h.state
	if s.Way != fleet.TrialDeadman {
		return true // else it is not trying
	}
	was, is := wordsOf(s.From), wordsOf(s.To)
	if len(s.From.Cmdline)+len(s.To.Cmdline) == 0 {
		was, is = strings.Fields(uEnvLine(s.From.Config)), strings.Fields(uEnvLine(s.To.Config))
	}
	added := slices.DeleteFunc(minus(is, was), func(w string) bool { return strings.HasPrefix(w, "console=") })
	return len(minus(added, strings.Fields(h.Board.Cmdline()))) == 0
}
