package firmware

import (
	"bytes"
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// How the boards of these tests boot: by a firmware that tries, by one that does not, by
// U-Boot, by GRUB.
const (
	byTryboot = "tryboot"
	byDeadman = "deadman"
	byUEnv    = "uEnv.txt"
	byGrub    = "GRUB"
)

var ways = []string{byTryboot, byDeadman, byUEnv, byGrub}

// An outcome is what becomes of a trial.
type outcome struct {
	name        string
	fares       func(*world) Fares
	hangs, dies bool // the board does not boot with it; it boots, and goes down after the early units
	want        string
}

var outcomes = []outcome{
	{"a good one is kept", well, false, false, wire.FirmwareUpToDate},
	{"one that takes the network away is rolled back", worse, false, false, wire.FirmwareRolledBack},
	{"one that does not boot is not called bad", well, true, false, wire.FirmwareFailed},
	{"one with which the board crashes before the agent runs is rolled back", well, false, true, wire.FirmwareRolledBack},
}

func (o outcome) befall(w *world) {
	if o.hangs {
		w.hangs = w.tried
	}
	if o.dies {
		w.dies = w.tried
	}
}

// eachWay runs a test of every outcome that a way promises: a deadman cannot undo what does
// not boot at all.
func eachWay(t *testing.T, test func(t *testing.T, way string, o outcome)) {
	for _, way := range ways {
		for _, o := range outcomes {
			if o.hangs && (way == byDeadman || way == byUEnv) {
				continue
			}
			t.Run(way+": "+o.name, func(t *testing.T) { test(t, way, o) })
		}
	}
}

func profileOf(way string) *fleet.BootConfig {
	b := trialProfile()
	switch way {
	case byUEnv:
		b.Backend, b.Config = fleet.BootUEnv, fleet.BootSettings{}
	case byGrub:
		b.Backend, b.Config = fleet.BootGrub, fleet.BootSettings{}
	}
	return b
}

// newWorldOf is a board to which the hub sends a configuration.
func newWorldOf(t *testing.T, way string, b *fleet.BootConfig) (*world, *wire.Firmware) {
	w := &world{t: t, names: map[string]*inode{}, saved: map[string]*inode{}, way: way}
	switch way {
	case byUEnv:
		w.old = Files{Config: []byte("uname_r=5.10.168-ti-r71\ncmdline=coherent_pool=1M quiet")}
		w.put("/boot/uEnv.txt", w.old.Config)
	case byGrub:
		w.old = Files{Config: []byte("menuentry 'mine' {\n}\n")}
		w.put("/boot/grub/custom.cfg", w.old.Config)
		w.put("/boot/grub/grub.cfg", []byte("load_env\nlinux /vmlinuz ro ${flotilla_args}\nsource $prefix/custom.cfg\n"))
		w.put("/boot/grub/grubenv", emptyEnv())
	default:
		w.old = Files{[]byte("# the board's own\narm_64bit=1"), []byte("root=/dev/mmcblk0p2 rootwait\n")}
		w.put("/boot/firmware/config.txt", w.old.Config)
		w.put("/boot/firmware/cmdline.txt", w.old.Cmdline)
	}
	var err error
	if w.new, err = render(w.old, b); err != nil {
		t.Fatal(err)
	}
	document, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f := wire.SignFirmware(hubKey, "pi-1", "raspberrypi,4-model-b", 7, document)
	f.Try = true
	w.start()
	return w, f
}

func emptyEnv() []byte {
	return append([]byte(envHead), bytes.Repeat([]byte("#"), envSize-len(envHead))...)
}

func (w *world) backend() string {
	switch w.way {
	case byUEnv:
		return fleet.BootUEnv
	case byGrub:
		return fleet.BootGrub
	}
	return fleet.BootConfigTxt
}

func (w *world) dir() string {
	switch w.way {
	case byUEnv:
		return "/boot"
	case byGrub:
		return "/boot/grub"
	}
	return "/boot/firmware"
}

// files is what the board would boot if nothing is tried.
func (w *world) files() Files {
	switch w.way {
	case byUEnv:
		return Files{Config: w.text("/boot/uEnv.txt")}
	case byGrub:
		f, err := untried(w.text("/boot/grub/custom.cfg"))
		if err != nil {
			w.t.Fatal(err)
		}
		return Files{Config: f}
	}
	return w.read(w.dir() + "/" + configTxt)
}

func (w *world) text(name string) []byte {
	i := w.names[name]
	if i == nil {
		w.t.Fatalf("%s is gone: the board does not boot", name)
	}
	return i.text
}

func (w *world) trialsLeft() bool {
	if w.way == byGrub {
		return bytes.Contains(w.text("/boot/grub/custom.cfg"), []byte(grubBlock)) || bytes.Contains(w.text("/boot/grub/grubenv"), []byte(grubTry))
	}
	return w.names[w.dir()+"/"+tryTxt] != nil || w.names[w.dir()+"/"+tryCmdline] != nil
}

// grub does what the script says, as GRUB did in TestGRUBTriesOnce.
func (w *world) grub() (runs Files, args string) {
	cfg, env := string(w.text("/boot/grub/custom.cfg")), w.names["/boot/grub/grubenv"]
	runs, args = w.files(), "ro"
	if len(env.text) != envSize {
		return runs, args // load_env fails
	}
	_, try, _ := strings.Cut(string(env.text), "\n"+grubTry+"=")
	try, _, _ = strings.Cut(try, "\n")
	_, trial, ok := strings.Cut(cfg, `= "`+try+`" ]; then`)
	if try == "" || !ok {
		return runs, args
	}
	cleared, err := setEnv(env.text, grubTry, "")
	if err != nil {
		w.t.Fatal(err)
	}
	w.put("/boot/grub/grubenv", cleared)
	_, trial, _ = strings.Cut(trial, grubSet+`"`)
	trial, _, _ = strings.Cut(trial, `"`)
	for _, f := range []Files{w.new, w.old} {
		if trial == strings.TrimSpace(grubArgs(f.Config)+" "+grubTrialOf+try) {
			return f, "ro " + trial
		}
	}
	w.t.Fatalf("the trial's words are %q, neither old nor new", trial)
	return
}
