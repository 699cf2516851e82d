package firmware

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

var (
	hubKey  = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	hubsKey = hubKey.Public().(ed25519.PublicKey)
)

// An inode is a file with what of it would be there after a power cut.
type inode struct{ text, durable []byte }

// A cut is what a power cut leaves of what was not synced.
type cut struct {
	names bool // new names are there
	last  bool // only the newest of them is, for nothing orders those that are not synced
	text  int  // 0: nothing of new text; 1: its first half; 2: all of it
}

var cuts = []cut{{}, {names: true}, {names: true, text: 1}, {names: true, text: 2}, {text: 1}, {text: 2}, {last: true, text: 2}}

// A stop ends everything at a call.
type stop struct {
	after int
	what  error // errPower or errCrash
	cut   cut
}

// next makes the next stop the one that comes.
func (w *world) next() {
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

// A world is a board with its disk and firmware, in memory.
type world struct {
	t     *testing.T
	names map[string]*inode
	saved map[string]*inode // names that are durable

	renamed string // last, since the directory was synced

	calls  int
	stopAt int   // call at which stop happens; 0: never
	stop   error // errPower or errCrash
	cut    cut
	clock  func(*world) time.Time                       // the wall clock
	fails  func(call int, dir string, frees bool) error // what the disk answers instead
	then   []stop                                       // after that, so many calls after the one before

	boot    int
	uptime  time.Duration
	try     bool // the argument of the reboot was "0 tryboot"
	trying  bool // this boot is a trial
	hangs   func(Files) bool
	old     Files
	new     Files
	runs    Files // what the board has booted
	early   bool  // nothing of the system has run since
	way     string
	args    string           // the kernel's command line, where GRUB gives it
	dies    func(Files) bool // after the early units
	kept    bool             // new is what the board has, and old is what may befall it
	boots   int
	armed   func() // a trial is to boot
	ignores int    // so many trials are not tried by the firmware, which offers them
	booted  func() // changes what the board has booted
}

// fault is what the disk answers to the call that comes.
func (w *world) fault(dir string, frees bool) error {
	if w.fails == nil {
		return nil
	}
	err := w.fails(w.calls+1, dir, frees)
	if err != nil {
		w.calls++
	}
	return err
}

func (w *world) call() error {
	w.calls++
	if w.calls == w.stopAt {
		panic(w.stop)
	}
	return nil
}

func (w *world) Read(name string) ([]byte, error) {
	if i := w.names[name]; i != nil {
		return bytes.Clone(i.text), nil
	}
	return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

func (w *world) Write(name string, text []byte) error {
	i := w.names[name]
	if i == nil {
		i = &inode{}
		w.names[name] = i
	}
	if err := w.fault(path.Dir(name), false); err != nil {
		i.text = bytes.Clone(text[:len(text)/2])
		return err
	}
	i.text = bytes.Clone(text)
	return w.call()
}

func (w *world) Sync(name string) error {
	err := w.fault(path.Dir(name), false)
	if err == nil {
		err = w.call()
	}
	if err != nil {
		return err
	}
	w.names[name].durable = bytes.Clone(w.names[name].text)
	return nil
}

func (w *world) SyncDir(dir string) error {
	err := w.fault(dir, true) // it needs no room
	if err == nil {
		err = w.call()
	}
	if err != nil {
		return err
	}
	w.renamed = ""
	maps.DeleteFunc(w.saved, func(n string, _ *inode) bool { return path.Dir(n) == dir })
	for n, i := range w.names {
		if path.Dir(n) == dir {
			w.saved[n] = i
		}
	}
	return nil
}

func (w *world) Rename(from, to string) error {
	if err := w.fault(path.Dir(to), false); err != nil {
		return err
	}
	w.names[to] = w.names[from]
	delete(w.names, from)
	w.renamed = to
	return w.call()
}

func (w *world) Remove(name string) error {
	if err := w.fault(path.Dir(name), true); err != nil {
		return err
	}
	delete(w.names, name)
	return w.call()
}

func (w *world) put(name string, text []byte) {
	i := &inode{bytes.Clone(text), bytes.Clone(text)}
	w.names[name], w.saved[name] = i, i
}

// lose is the power cut.
func (w *world) lose(c cut) {
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

// start is what the firmware of a Raspberry Pi does, or another boot loader.
func (w *world) start() {
	w.boots++
	for tries := 1; ; tries++ {
		w.boot++
		w.uptime, w.early = 20*time.Second, true
		w.trying = false
		if w.way == byTryboot && w.try && w.names[w.dir()+"/"+tryTxt] != nil {
			if w.armed != nil {
				w.armed()
			}
			w.trying = w.ignores == 0
			w.ignores -= min(w.ignores, 1)
		}
		w.try = false // before anything else
		switch {
		case w.way == byGrub:
			w.runs, w.args = w.grub()
		case w.trying:
			w.runs = w.read(w.dir() + "/" + tryTxt)
		default:
			w.runs = w.files()
		}
		if w.way != byGrub {
			w.args = "8250.nr_uarts=1 " + string(w.runs.Cmdline) + uEnvLine(w.runs.Config)
			if w.trying {
				w.args = string(w.names[w.dir()+"/"+tryCmdline].text)
			}
		}
		if w.booted != nil {
			w.booted()
		}
		if !w.runs.like(w.old) && !w.runs.like(w.new) {
			w.t.Fatalf("the board boots what is neither old nor new:\n%q\n%q", w.runs.Config, w.runs.Cmdline)
		}
		if w.hangs == nil || !w.hangs(w.runs) {
			return
		}
		if tries > 2 { // what hangs is booted again
			w.t.Fatal("the board does not boot")
		}
	}
}

var trialWord = regexp.MustCompile(" " + regexp.QuoteMeta(grubTrialOf) + "[0-9a-f]+")

// read is what the firmware sees, without what is ours to choose the command line.
func (w *world) read(name string) (f Files) {
	i := w.names[name]
	if i == nil {
		w.t.Fatalf("%s is gone: the board does not boot", name)
	}
	line := cmdlineTxt
	text := i.text
	if bytes.HasPrefix(text, []byte(trialMark)) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	if before, ok := bytes.CutSuffix(text, []byte("[all]\ncmdline="+tryCmdline+"\n")); ok {
		line, text = tryCmdline, before
	}
	c := w.names[w.dir()+"/"+line]
	if c == nil {
		w.t.Fatalf("%s is gone: the board does not boot", line)
	}
	return Files{text, trialWord.ReplaceAll(c.text, nil)}
}

func (w *world) Compatible() []string  { return []string{"raspberrypi,4-model-b", "brcm,bcm2711"} }
func (w *world) BootID() string        { return fmt.Sprint("boot-", w.boot) }
func (w *world) Uptime() time.Duration { return w.uptime }
func (w *world) Tryboot() (bool, bool) { return w.trying, w.way == byTryboot }

func (w *world) Boots() (string, string, error) { return w.backend(), w.dir(), nil }
func (w *world) Cmdline() string                { return w.args }
func (w *world) Restores() error                { return nil }
func (w *world) Refuses(int64) error            { return nil }
func (w *world) HasOverlay(string) bool         { return true }

func (w *world) Reboot(argument string) error {
	if err := w.call(); err != nil {
		return err
	}
	w.try = argument == "0 tryboot"
	panic(errReboot)
}

// like is equal for the firmware: a last line break more says nothing.
func (f Files) like(g Files) bool {
	return bytes.Equal(bytes.TrimRight(f.Config, "\n"), bytes.TrimRight(g.Config, "\n")) && bytes.Equal(f.Cmdline, g.Cmdline)
}

var errReboot = errors.New("the board reboots in an orderly way")

// newWorld is a Raspberry Pi 4 to which the hub sends a configuration.
func newWorld(t *testing.T, b *fleet.BootConfig) (*world, *wire.Firmware) {
	return newWorldOf(t, byTryboot, b)
}

// live runs agent and helper until nothing is under way any more, through every crash and
// reboot.
func (w *world) live(want *wire.Firmware, fares func(w *world) Fares) (st *wire.FirmwareStatus, j Journal, h HelperStatus) {
	var quiet int
	for range 100 { // lives of the processes
		func() {
			defer func() {
				switch p := recover(); {
				case p == nil:
				case p == errPower:
					c := w.cut
					w.next()
					w.lose(c)
				case p == errDies:
					w.lose(cuts[w.boot%len(cuts)])
				case p == errCrash:
					w.next()
				case p == errReboot:
					for _, i := range w.names {
						i.durable = bytes.Clone(i.text)
					}
					w.saved = maps.Clone(w.names)
					w.start()
				default:
					panic(p)
				}
			}()
			helper, err := NewHelper(w, w, "/var/helper")
			if err != nil {
				w.t.Fatal(err)
			}
			if w.early { // the early unit, and then whatever else the system starts
				err := helper.Settle() // as Server.Restore
				if err == nil {
					err = helper.Leave()
				}
				if err != nil && w.fails == nil { // with a disk that fails the unit fails, and the boot goes on
					w.t.Fatal(err)
				}
				if w.early = false; w.dies != nil && w.dies(w.runs) {
					panic(errDies)
				}
			}
			r := &Runner{
				Node: "pi-1", Disk: w, Dir: "/var/agent", Log: slog.New(slog.DiscardHandler),
				Ask:     func(_ context.Context, q Request) (Reply, error) { a := helper.Do(q); return a, a.Err() },
				Desired: func() (*wire.Firmware, []byte) { return want, hubsKey },
				Fares:   func(context.Context) Fares { return fares(w) },
				Tell:    func(s *wire.FirmwareStatus) { st = s },
				Uptime:  w.Uptime,
			}
			for quiet = 0; quiet < 5; {
				now := time.Unix(int64(w.boot)*1e6, 0).Add(w.uptime)
				if w.clock != nil {
					now = w.clock(w)
				}
				again, err := r.Step(w.t.Context(), now)
				if err != nil && !again {
					w.t.Log(err)
				}
				w.uptime += 20 * time.Second
				quiet++
				if again || st != nil && st.State == wire.FirmwareUnsupported { // the helper is asked again
					quiet = 0
				}
				if w.uptime > 3*time.Hour {
					w.t.Fatalf("it does not come to an end: %+v %+v", r.journal, helper.state)
				}
			}
			j, h = r.journal, helper.Status()
		}()
		if quiet >= 5 {
			return st, j, h
		}
	}
	w.t.Fatal("it does not come to an end")
	return
}

func well(*world) Fares { return Fares{Hub: true, Disk: fine} }

// worse: what is tried takes the network away.
func worse(w *world) Fares { return Fares{Disk: fine, Hub: !w.tried(w.runs)} }

// tried tells what is on trial here from what the board had.
func (w *world) tried(f Files) bool { return f.like(w.new) != w.kept }

func trialProfile() *fleet.BootConfig {
	b := memoryProfile()
	b.Config.All = map[string]string{"gpu_mem": "16"}
	return b
}

// check checks that everything has come to an end, and which.
func (w *world) check(st *wire.FirmwareStatus, j Journal, h HelperStatus, want ...string) {
	w.t.Helper()
	switch {
	case st == nil || !slices.Contains(want, st.State):
		w.t.Fatalf("it ends as %+v, want %v", st, want)
	case j.Phase != Idle || h.Phase != PhaseIdle:
		w.t.Fatalf("it is still %q, the helper %q", j.Phase, h.Phase)
	}
	files, state := w.old, "old"
	if h.Kept != "" {
		files, state = w.new, "new"
	}
	if live := w.files(); !live.equal(files) || w.trialsLeft() {
		w.t.Fatalf("%s: the boot files are not the %s ones:\n%q\n%v", st.State, state, live.Config, slices.Collect(maps.Keys(w.names)))
	}
	if !w.runs.like(files) {
		w.t.Fatalf("%s: the board does not run the %s files", st.State, state)
	}
}

func TestATrialEndsKeptOrRolledBack(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, o outcome) {
		w, f := newWorldOf(t, way, profileOf(way))
		o.befall(w)
		st, j, h := w.live(f, o.fares)
		w.check(st, j, h, o.want)
		if o.want == wire.FirmwareUpToDate {
			return
		}
		if bad := st.State == wire.FirmwareRolledBack; bad != slices.Equal(st.Bad, []string{f.Digest}) || !bad && len(st.Bad) > 0 || st.Message == "" {
			t.Errorf("it says %+v", st)
		}
		boots := w.boots
		if w.live(f, well); w.boots != boots {
			t.Error("what has failed is tried again by itself")
		}
		again := *f
		again.Retry, w.hangs, w.dies = 1, nil, nil
		st, j, h = w.live(&again, well)
		w.check(st, j, h, wire.FirmwareUpToDate)
	})
}

// left says which stops are left to make test-long: make test makes one of every sixty, and not the
// same one in every way and outcome.
func left(t *testing.T, n int) bool {
	return os.Getenv("FLOTILLA_LONG") == "" && (n+int(crc32.ChecksumIEEE([]byte(t.Name()))%60))%60 > 0
}

// TestWhereverThePowerFails stops every call that changes anything, in every way.
func TestWhereverThePowerFails(t *testing.T) {
	runs := 0
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for k, how := range append(cuts, cut{text: -1}) {
			for n := 1; n < 500; n++ {
				if left(t, n+k) {
					continue
				}
				w, f := newWorldOf(t, way, profileOf(way))
				o.befall(w)
				w.stopAt, w.stop, w.cut = n, errPower, how
				if how.text < 0 {
					w.stop = errCrash
				}
				st, j, h := w.live(f, o.fares)
				runs++
				if w.stopAt != 0 { // there is no call n
					if n < 20 {
						t.Fatalf("only %d calls", n)
					}
					break
				}
				want := []string{o.want}
				if o.want != wire.FirmwareUpToDate || w.stop == errPower { // one of three attempts was cut off
					want = append(want, wire.FirmwareFailed)
				}
				if t.Failed() {
					t.Fatalf("call %d, %+v", n, how)
				}
				w.check(st, j, h, want...)
			}
		}
	})
	t.Logf("%d runs", runs)
}

// TestWhereverThePowerFailsTwice stops what recovers from the first stop, too, and now and
// then what recovers from the second.
func TestWhereverThePowerFailsTwice(t *testing.T) {
	runs := 0
	stops := func(n, m int) []stop {
		out := []stop{{n, errPower, cuts[(n+m)%len(cuts)]}, {m, errPower, cuts[(n+2*m)%len(cuts)]}}
		if (n+m)%2 == 0 { // what a process has written that was killed is there, until the power is cut
			out[0].what = errCrash
		}
		if m%4 == 0 {
			out[1].what = errCrash
		}
		if (n+m)%3 == 0 {
			out = append(out, stop{1 + (n+m)%7, errPower, cuts[m%len(cuts)]})
		}
		return out
	}
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for undo := range 2 {
			for n := 1; n < 500; n++ {
				if left(t, n+undo) {
					continue
				}
				last := 0 // call of which the first stop has come
				for m := 1; m < 40; m++ {
					if way != byDeadman && (n+m)%3 > 0 || m > 8 && (n+2*m)%11 > 0 { // the first calls are those of the recovery
						continue
					}
					var w *world
					var f *wire.Firmware
					if undo > 0 {
						w, f = undoing(t, way, o)
					} else {
						w, f = newWorldOf(t, way, profileOf(way))
						o.befall(w)
					}
					w.then = stops(n, m)
					w.next()
					st, j, h := w.live(f, o.fares)
					runs++
					toCome := len(w.then)
					if w.stopAt != 0 {
						toCome++
					}
					switch {
					case undo == 0 && o.want == wire.FirmwareUpToDate:
						w.check(st, j, h, wire.FirmwareUpToDate, wire.FirmwareFailed)
					case undo == 0:
						w.check(st, j, h, wire.FirmwareRolledBack, wire.FirmwareFailed)
					case o.want == wire.FirmwareUpToDate:
						w.goneBack(st, j, h, wire.FirmwareUpToDate, wire.FirmwareFailed)
					default:
						w.goneBack(st, j, h, wire.FirmwareFailed)
					}
					if toCome < len(stops(n, m)) {
						last = n
					} else {
						break // there is no call n
					}
					if toCome == len(stops(n, m))-1 {
						break // nor a call m after it
					}
				}
				if last < n {
					if n < 20 {
						t.Fatalf("only %d calls", n)
					}
					break
				}
			}
		}
	})
	t.Logf("%d runs", runs)
}

// undoing is a board that has kept a configuration, and is to have what it had before:
// from here on that is what an outcome befalls.
func undoing(t *testing.T, way string, o outcome) (*world, *wire.Firmware) {
	w, f := newWorldOf(t, way, profileOf(way))
	st, j, h := w.live(f, well)
	w.check(st, j, h, wire.FirmwareUpToDate)
	if h.Kept != f.Digest {
		t.Fatalf("it is not kept: %+v", h)
	}
	w.kept = true
	o.befall(w)
	undo := *f
	undo.Undo = true
	return w, &undo
}

// goneBack checks that an undo has come to its end, and which.
func (w *world) goneBack(st *wire.FirmwareStatus, j Journal, h HelperStatus, want ...string) {
	w.t.Helper()
	w.check(st, j, h, want...)
	if (st.State == wire.FirmwareUpToDate) != (h.Kept == "") || st.Candidate != "" || len(st.Bad) > 0 || st.Digest != h.Kept {
		w.t.Fatalf("it ends as %+v, and %q is kept", st, h.Kept)
	}
}

func undone(o outcome) string {
	if o.want == wire.FirmwareRolledBack {
		return wire.FirmwareFailed
	}
	return o.want
}

// What was there before is tried like anything else: it may be what does not work any more.
func TestAnUndoIsATrial(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, o outcome) {
		w, f := undoing(t, way, o)
		st, j, h := w.live(f, o.fares)
		w.goneBack(st, j, h, undone(o))
		if o.want != wire.FirmwareRolledBack {
			return
		}
		if st.Message == "" {
			t.Errorf("it says %+v", st)
		}
		boots := w.boots
		if st, _, _ = w.live(f, well); w.boots != boots {
			t.Error("what has failed is tried again by itself")
		}
		w.goneBack(st, j, h, wire.FirmwareFailed)
		keep := *f
		keep.Undo = false
		if st, _, _ = w.live(&keep, well); st.State != wire.FirmwareUpToDate || w.boots != boots {
			t.Errorf("where it is not to be undone any more it says %+v", st)
		}
		again := *f
		again.Retry, w.hangs, w.dies = 1, nil, nil
		st, j, h = w.live(&again, well)
		w.goneBack(st, j, h, wire.FirmwareUpToDate)
	})
}

func TestATrialWithoutAVerdictIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name          string
		ignores, dies int
		want          string
		trials        int
	}{
		{"the firmware tries it", 0, 0, wire.FirmwareUpToDate, 1},
		{"the firmware ignores the first trial", 1, 0, wire.FirmwareUpToDate, 2},
		{"the firmware ignores two trials, and boots the third", 2, 0, wire.FirmwareUpToDate, 3},
		{"the power is cut in the first trial", 0, 1, wire.FirmwareUpToDate, 2},
		{"a trial is ignored, and in the next the power is cut", 1, 1, wire.FirmwareUpToDate, 3},
		{"the firmware ignores every trial", 100, 0, wire.FirmwareFailed, 3},
		{"the power is cut in two trials, and the firmware ignores the third", 0, 2, wire.FirmwareUpToDate, 3},
		{"the power is cut in every trial", 0, 100, wire.FirmwareRolledBack, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, f := newWorldOf(t, byTryboot, profileOf(byTryboot))
			trials := 0
			w.ignores, w.armed = c.ignores, func() { trials++ }
			w.dies = func(runs Files) bool {
				if !w.trying || c.dies == 0 {
					return false
				}
				c.dies--
				return true
			}
			st, j, h := w.live(f, well)
			w.check(st, j, h, c.want)
			if trials != c.trials || (len(st.Bad) > 0) != (c.want == wire.FirmwareRolledBack) {
				t.Errorf("after %d trials, want %d, it ends as %+v", trials, c.trials, st)
			}
			if c.want == wire.FirmwareFailed && !strings.HasPrefix(st.Message, "was not tried in 3 attempts: ") {
				t.Errorf("it says %q", st.Message)
			}
			boots := w.boots
			w.ignores, w.dies = 0, nil
			if st, _, _ = w.live(f, well); w.boots != boots {
				t.Errorf("it is tried again by itself: %+v", st)
			}
			again := *f
			again.Retry = 1
			st, j, h = w.live(&again, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
		})
	}
}

func TestWhatIsKeptCanBeUndoneWhereverThePowerFails(t *testing.T) {
	runs := 0
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for k, how := range append(cuts, cut{text: -1}) {
			for n := 1; n < 500; n++ {
				if left(t, n+k) {
					continue
				}
				w, f := undoing(t, way, o)
				w.stopAt, w.stop, w.cut = w.calls+n, errPower, how
				if how.text < 0 {
					w.stop = errCrash
				}
				st, j, h := w.live(f, o.fares)
				runs++
				if w.stopAt != 0 { // there is no call n
					if n < 20 {
						t.Fatalf("only %d calls", n)
					}
					break
				}
				want := []string{undone(o)}
				if o.want == wire.FirmwareUpToDate && w.stop == errPower {
					want = append(want, wire.FirmwareFailed)
				}
				w.goneBack(st, j, h, want...)
			}
		}
	})
	t.Logf("%d runs", runs)
}

// TestWhereverTheDiskFails lets calls fail, one or some after the other: a full disk, on which files can still be removed; one
// that is read-only; one that gives errors; each for the boot files, for what is remembered, or for all.
func TestWhereverTheDiskFails(t *testing.T) {
	runs := 0
	kinds := []struct {
		name string
		err  error
		full bool
	}{{"full", unix.ENOSPC, true}, {"read-only", unix.EROFS, false}, {"gives errors", unix.EIO, false}}
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for undo := range 2 {
			for n := 1; n < 500; n++ {
				if left(t, n+undo) {
					continue
				}
				beyond := true // there is no call n
				for k, calls := range [][]int{{1, 30}, {4}}[n%2] {
					kind := kinds[(n+k)%len(kinds)]
					var w *world
					var f *wire.Firmware
					if undo > 0 {
						w, f = undoing(t, way, o)
					} else {
						w, f = newWorldOf(t, way, profileOf(way))
						o.befall(w)
					}
					where := []string{"", w.dir(), "/var/helper", "/var/agent"}[(n/2)%4]
					from, failed := w.calls+n, 0
					w.fails = func(call int, dir string, frees bool) error {
						if call >= from {
							beyond = false
						}
						if call < from || failed >= calls || where != "" && dir != where || frees && kind.full {
							return nil
						}
						failed++
						return kind.err
					}
					st, j, h := w.live(f, o.fares)
					runs++
					want := []string{o.want, wire.FirmwareFailed}
					if o.want == wire.FirmwareUpToDate {
						want = append(want, wire.FirmwareRolledBack)
					}
					if undo > 0 {
						if want = append(want, wire.FirmwareFailed); o.want == wire.FirmwareRolledBack {
							want = []string{wire.FirmwareFailed}
						}
						w.goneBack(st, j, h, want...)
					} else {
						w.check(st, j, h, want...)
					}
					if t.Failed() {
						t.Fatalf("undo %d: call %d and %d more, %s: %s", undo, n, calls, where, kind.name)
					}
				}
				if beyond {
					if n < 20 {
						t.Fatalf("only %d calls", n)
					}
					break
				}
			}
		}
	})
	t.Logf("%d runs", runs)
}

// TestATrialEndsOnAFullOrReadOnlyBootPartition: while something is tried that takes the network away, the boot partition
// becomes read-only, as after an error of its file system and until the next boot; or full, as by a new kernel, and for good.
func TestATrialEndsOnAFullOrReadOnlyBootPartition(t *testing.T) {
	for _, way := range ways {
		for _, kind := range []struct {
			name string
			err  error
		}{{"read-only", unix.EROFS}, {"full", unix.ENOSPC}} {
			for undo := range 2 {
				t.Run(fmt.Sprintf("%s: %s, undo %d", way, kind.name, undo), func(t *testing.T) {
					var w *world
					var f *wire.Firmware
					if undo > 0 {
						w, f = undoing(t, way, outcomes[1])
					} else {
						w, f = newWorldOf(t, way, profileOf(way))
					}
					prev := func() (n int) {
						for name := range w.names {
							if path.Dir(name) == w.dir() && strings.HasSuffix(name, ".prev") {
								n += len(w.names[name].text)
							}
						}
						return n
					}
					boot, before := 0, 0
					w.fails = func(_ int, dir string, frees bool) error {
						if boot == 0 && w.tried(w.runs) && !w.early {
							boot, before = w.boot, prev()
						}
						switch {
						case boot == 0 || dir != w.dir():
							return nil
						case kind.err == unix.EROFS && w.boot != boot:
							return nil
						case kind.err == unix.ENOSPC && (frees || prev() < before):
							return nil // what was removed has made room
						case kind.err == unix.ENOSPC && w.boot != boot && (way == byTryboot || way == byGrub):
							return nil // it was somebody
						}
						return kind.err
					}
					st, j, h := w.live(f, worse)
					if boot == 0 {
						t.Fatal("nothing was tried")
					}
					if undo > 0 {
						w.goneBack(st, j, h, wire.FirmwareFailed)
					} else {
						w.check(st, j, h, wire.FirmwareRolledBack)
					}
				})
			}
		}
	}
}

func TestAnAgentThatNeverRunsIsRolledBackByTheDeadman(t *testing.T) {
	w, f := newWorld(t, trialProfile())
	helper, err := NewHelper(w, w, "/var/helper")
	if err != nil {
		t.Fatal(err)
	}
	reboots := func(do func() error) {
		t.Helper()
		defer func() {
			if p := recover(); p != errReboot {
				t.Fatalf("the board does not reboot: %v", p)
			}
			w.start()
		}()
		t.Fatal(do())
	}
	if trial, _ := helper.Overdue(); trial {
		t.Error("a trial runs before there was one")
	}
	if err := helper.Pin("pi-1", hubsKey); err != nil {
		t.Fatal(err)
	}
	reboots(func() error { return helper.Arm(f) })
	if helper, err = NewHelper(w, w, "/var/helper"); err != nil {
		t.Fatal(err)
	}
	trial, left := helper.Overdue()
	if !trial || left <= 10*time.Minute {
		t.Fatalf("trial %v, %s left", trial, left)
	}
	if w.uptime += left; !w.runs.equal(w.new) {
		t.Fatal("the trial does not run")
	}
	if _, left = helper.Overdue(); left > 0 {
		t.Fatalf("%s left", left)
	}
	reboots(helper.Restore)
	// The agent comes back with what it has remembered.
	agent := &Slots{Disk: w, Dir: "/var/agent", Name: "firmware"}
	if err := agent.Save([]byte(`{"phase":"arming","boot":"boot-1","candidate":"` + f.Digest + `","attempts":1}`)); err != nil {
		t.Fatal(err)
	}
	st, j, h := w.live(f, well)
	w.check(st, j, h, wire.FirmwareRolledBack)
	if !strings.Contains(st.Message, "the agent did not run") {
		t.Errorf("it says %q", st.Message)
	}
}

func fine() string { return "" }

func TestWhatReallyRunsIsWhatIsJudged(t *testing.T) {
	plain := func(w *world) { w.args = "root=/dev/mmcblk0p2 rootwait" }
	for _, c := range []struct {
		name, way string
		boots     func(w *world, trial bool)
		want      string
	}{
		{"the firmware speaks of a trial, and has booted the old files", byTryboot, func(w *world, trial bool) {
			if trial {
				w.runs = w.old
				plain(w)
			}
		}, wire.FirmwareFailed},
		{"it speaks of a trial, and has booted that of another configuration", byTryboot, func(w *world, trial bool) {
			if trial {
				w.args = trialWord.ReplaceAllString(w.args, " "+grubTrialOf+"0123456789abcdef")
			}
		}, wire.FirmwareFailed},
		{"it speaks of no trial, and the kernel has its command line", byTryboot, func(w *world, _ bool) { w.trying = false }, wire.FirmwareUpToDate},
		{"the board boots from another card", byDeadman, func(w *world, _ bool) { plain(w) }, wire.FirmwareFailed},
		{"the board's firmware names its console anew", byDeadman, func(w *world, _ bool) {
			w.args = strings.ReplaceAll(w.args, "console=serial0,115200", "console=ttyS0,115200")
		}, wire.FirmwareUpToDate},
		{"U-Boot boots from the eMMC, not from the card", byUEnv, func(w *world, _ bool) { plain(w) }, wire.FirmwareFailed},
		{"GRUB boots another entry, without our words", byGrub, func(w *world, _ bool) { plain(w) }, wire.FirmwareFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := profileOf(c.way)
			if c.way == byDeadman {
				b.Cmdline.Add = append(b.Cmdline.Add, "console=serial0,115200")
			}
			w, f := newWorldOf(t, c.way, b)
			w.booted = func() { c.boots(w, w.trying) }
			st, j, h := w.live(f, well)
			if st.State != c.want || len(st.Bad) > 0 || j.Phase != Idle || h.Phase != PhaseIdle {
				t.Fatalf("it ends as %+v", st)
			}
			if files := w.files(); !files.equal(w.old) && c.want == wire.FirmwareFailed || w.trialsLeft() {
				t.Errorf("the boot files are\n%s", files.Config)
			}
			w.booted = nil
			again := *f
			again.Retry = 1
			st, j, h = w.live(&again, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
		})
	}
}
