package boothelper_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A stop ends the processes at one call.
type stop struct {
	after int
	what  error // errPower or errCrash
	cut   cut
}

// next arms the next stop.
func (w *fakeBoard) next() {
	w.stopAt = 0
	if len(w.then) > 0 {
		s := w.then[0]
		w.then, w.stopAt, w.stop, w.cut = w.then[1:], w.calls+s.after, s.what, s.cut
	}
}

var (
	errPower = errors.New("the power is cut")
	errCrash = errors.New("the process is killed")
	errDies  = errors.New("the board goes down by itself")
)

// A fakeBoard is a board with its disk and firmware, in memory.
type fakeBoard struct {
	t     *testing.T
	names map[string]*inode
	saved map[string]*inode // names and inodes that survive a power cut

	renamed string // target of the last rename since the directory was synced

	calls  int
	stopAt int   // number of the call at which the processes stop; 0: none
	stop   error // errPower or errCrash
	cut    cut
	clock  func(*fakeBoard) time.Time                   // the wall clock
	fails  func(call int, dir string, frees bool) error // injects an error of the disk
	then   []stop                                       // later stops, each counted in calls after the previous one

	boot    int
	uptime  time.Duration
	try     bool // the reboot's argument was "0 tryboot"
	trying  bool // this boot is a trial
	hangs   func(boothelper.Files) bool
	old     boothelper.Files
	new     boothelper.Files
	runs    boothelper.Files // the booted files
	early   bool             // no process has run since the boot
	way     string
	args    string                      // the kernel's command line
	dies    func(boothelper.Files) bool // the board crashes after the early units
	kept    bool                        // the board has kept the files new and tries old
	boots   int
	armed   func() // called before the boot of a trial
	ignores int    // number of trials that the firmware ignores
	booted  func() // called after the boot; may change the booted files
}

// lose cuts the power.
func (w *fakeBoard) lose(c cut) {
	if !c.names {
		newest := w.names[w.renamed]
		w.names = maps.Clone(w.saved)
		if c.last && newest != nil {
			w.names[w.renamed] = newest
		}
	}
	w.renamed = ""
	for _, i := range w.names {
		switch {
		case bytes.Equal(i.text, i.durable):
		case c.text == 0:
			i.text = i.durable
		case c.text == 1:
			i.text = i.text[:len(i.text)/2]
		}
		i.durable = bytes.Clone(i.text)
	}
	w.saved = maps.Clone(w.names)
	w.try = false
	w.start()
}

// start boots the board as its firmware or boot loader does.
func (w *fakeBoard) start() {
	w.boots++
	for tries := 1; ; tries++ {
		w.boot++
		w.uptime, w.early = 20*time.Second, true
		w.trying = false
		if w.way == boothelper.ByTryboot && w.try && w.names[w.dir()+"/"+boothelper.TryTxt] != nil {
			if w.armed != nil {
				w.armed()
			}
			w.trying = w.ignores == 0
			w.ignores -= min(w.ignores, 1)
		}
		w.try = false // the firmware clears the flag first
		switch {
		case w.way == boothelper.ByGrub:
			w.runs, w.args = w.grub()
		case w.trying:
			w.runs = w.read(w.dir() + "/" + boothelper.TryTxt)
		default:
			w.runs = w.files()
		}
		if w.way != boothelper.ByGrub {
			w.args = "8250.nr_uarts=1 " + string(w.runs.Cmdline) + boothelper.UEnvLine(w.runs.Config)
			if w.trying {
				w.args = string(w.names[w.dir()+"/"+boothelper.TryCmdline].text)
			}
		}
		if w.booted != nil {
			w.booted()
		}
		if !like(w.runs, w.old) && !like(w.runs, w.new) {
			w.t.Fatalf("the board boots files that are neither old nor new:\n%q\n%q", w.runs.Config, w.runs.Cmdline)
		}
		if w.hangs == nil || !w.hangs(w.runs) {
			return
		}
		if tries > 2 { // a person resets a board that hangs
			w.t.Fatal("the board does not boot")
		}
	}
}

var trialWord = regexp.MustCompile(" " + regexp.QuoteMeta(boothelper.GrubTrialOf) + "[0-9a-f]+")

// read returns the files that the firmware reads, without the helper's own lines that select the
// command line.
func (w *fakeBoard) read(name string) (f boothelper.Files) {
	i := w.names[name]
	if i == nil {
		w.t.Fatalf("%s is gone: the board does not boot", name)
	}
	line := boothelper.CmdlineTxt
	text := i.text
	if bytes.HasPrefix(text, []byte(boothelper.TrialMark)) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	if before, ok := bytes.CutSuffix(text, []byte("[all]\ncmdline="+boothelper.TryCmdline+"\n")); ok {
		line, text = boothelper.TryCmdline, before
	}
	c := w.names[w.dir()+"/"+line]
	if c == nil {
		w.t.Fatalf("%s is gone: the board does not boot", line)
	}
	return boothelper.Files{text, trialWord.ReplaceAll(c.text, nil)}
}

func (w *fakeBoard) Compatible() []string  { return []string{"raspberrypi,4-model-b", "brcm,bcm2711"} }
func (w *fakeBoard) BootID() string        { return fmt.Sprint("boot-", w.boot) }
func (w *fakeBoard) Uptime() time.Duration { return w.uptime }
func (w *fakeBoard) Tryboot() (bool, bool) { return w.trying, w.way == boothelper.ByTryboot }

func (w *fakeBoard) Boots() (string, string, error) { return w.backend(), w.dir(), nil }
func (w *fakeBoard) Cmdline() string                { return w.args }
func (w *fakeBoard) Restores() error                { return nil }
func (w *fakeBoard) Refuses(int64) error            { return nil }
func (w *fakeBoard) HasOverlay(string) bool         { return true }

func (w *fakeBoard) Reboot(argument string) error {
	if err := w.call(); err != nil {
		return err
	}
	w.try = argument == "0 tryboot"
	panic(errReboot)
}

// like compares files as the firmware does: a line break at the end does not count.
func like(f, g boothelper.Files) bool {
	return bytes.Equal(bytes.TrimRight(f.Config, "\n"), bytes.TrimRight(g.Config, "\n")) &&
		bytes.Equal(f.Cmdline, g.Cmdline)
}

var errReboot = errors.New("the board reboots in an orderly way")

// newBoard returns a Raspberry Pi 4 and a configuration signed for it.
func newBoard(t *testing.T, b *fleet.BootConfig) (*fakeBoard, *wire.Firmware) {
	return newBoardOf(t, boothelper.ByTryboot, b)
}

// newBoardOf returns a board that boots in this way, and a configuration signed for the board.
func newBoardOf(t *testing.T, way string, b *fleet.BootConfig) (*fakeBoard, *wire.Firmware) {
	w := &fakeBoard{t: t, names: map[string]*inode{}, saved: map[string]*inode{}, way: way}
	switch way {
	case boothelper.ByUEnv:
		w.old = boothelper.Files{Config: []byte("uname_r=5.10.168-ti-r71\ncmdline=coherent_pool=1M quiet")}
		w.put("/boot/uEnv.txt", w.old.Config)
	case boothelper.ByGrub:
		w.old = boothelper.Files{Config: []byte("menuentry 'mine' {\n}\n")}
		w.put("/boot/grub/custom.cfg", w.old.Config)
		w.put("/boot/grub/grub.cfg", []byte("load_env\nlinux /vmlinuz ro ${flotilla_args}\nsource $prefix/custom.cfg\n"))
		w.put("/boot/grub/grubenv", boothelper.EmptyEnv())
	default:
		w.old = boothelper.Files{[]byte("# the board's own\narm_64bit=1"), []byte("root=/dev/mmcblk0p2 rootwait\n")}
		w.put("/boot/firmware/config.txt", w.old.Config)
		w.put("/boot/firmware/cmdline.txt", w.old.Cmdline)
	}
	var err error
	if w.new, err = boothelper.Render(w.old, b); err != nil {
		t.Fatal(err)
	}
	document, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f := wire.SignFirmware(boothelper.HubKey, "pi-1", "raspberrypi,4-model-b", 7, document)
	f.Try = true
	w.start()
	return w, f
}

func (w *fakeBoard) backend() string {
	switch w.way {
	case boothelper.ByUEnv:
		return fleet.BootUEnv
	case boothelper.ByGrub:
		return fleet.BootGrub
	}
	return fleet.BootConfigTxt
}

func (w *fakeBoard) dir() string {
	switch w.way {
	case boothelper.ByUEnv:
		return "/boot"
	case boothelper.ByGrub:
		return "/boot/grub"
	}
	return "/boot/firmware"
}

// files returns the files that the board boots outside of a trial.
func (w *fakeBoard) files() boothelper.Files {
	switch w.way {
	case boothelper.ByUEnv:
		return boothelper.Files{Config: w.text("/boot/uEnv.txt")}
	case boothelper.ByGrub:
		f, err := boothelper.Untried(w.text("/boot/grub/custom.cfg"))
		if err != nil {
			w.t.Fatal(err)
		}
		return boothelper.Files{Config: f}
	}
	return w.read(w.dir() + "/" + boothelper.ConfigTxt)
}

func (w *fakeBoard) text(name string) []byte {
	i := w.names[name]
	if i == nil {
		w.t.Fatalf("%s is gone: the board does not boot", name)
	}
	return i.text
}

func (w *fakeBoard) trialsLeft() bool {
	if w.way == boothelper.ByGrub {
		return bytes.Contains(w.text("/boot/grub/custom.cfg"), []byte(boothelper.GrubBlock)) ||
			bytes.Contains(w.text("/boot/grub/grubenv"), []byte(boothelper.GrubTry))
	}
	return w.names[w.dir()+"/"+boothelper.TryTxt] != nil || w.names[w.dir()+"/"+boothelper.TryCmdline] != nil
}

// grub interprets custom.cfg as the real GRUB does in TestGRUBTriesOnce.
func (w *fakeBoard) grub() (runs boothelper.Files, args string) {
	cfg, env := string(w.text("/boot/grub/custom.cfg")), w.names["/boot/grub/grubenv"]
	runs, args = w.files(), "ro"
	if len(env.text) != boothelper.EnvSize {
		return runs, args // load_env fails
	}
	_, try, _ := strings.Cut(string(env.text), "\n"+boothelper.GrubTry+"=")
	try, _, _ = strings.Cut(try, "\n")
	_, trial, ok := strings.Cut(cfg, `= "`+try+`" ]; then`)
	if try == "" || !ok {
		return runs, args
	}
	cleared, err := boothelper.SetEnv(env.text, boothelper.GrubTry, "")
	if err != nil {
		w.t.Fatal(err)
	}
	w.put("/boot/grub/grubenv", cleared)
	_, trial, _ = strings.Cut(trial, boothelper.GrubSet+`"`)
	trial, _, _ = strings.Cut(trial, `"`)
	for _, f := range []boothelper.Files{w.new, w.old} {
		if trial == strings.TrimSpace(boothelper.GrubArgs(f.Config)+" "+boothelper.GrubTrialOf+try) {
			return f, "ro " + trial
		}
	}
	w.t.Fatalf("the trial's words are %q, neither old nor new", trial)
	return
}
