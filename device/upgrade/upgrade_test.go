package upgrade

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A device is a device with programs whose text says what they do: their version, then "ends" for
// one that ends at once, or "silent" for one that does not reach the hub.
type device struct {
	t       *testing.T
	store   Store
	program string
	want    *wire.Upgrade
	files   map[string]string // the hub's agents, by path
	keys    []ed25519.PublicKey
	owner   bool // allows unsigned agents
	offline bool
	now     time.Time
	said    *wire.UpgradeStatus
	running string   // text of the program that runs
	starts  []string // texts of the programs that were started

	at, killAt int    // step of the disk at which the process is killed; 0: never
	cut        bool   // the power is cut: names that are not synced are lost
	before     []byte // the file under the name that is not synced
}

type killed struct{}
type became struct{}

var release = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

func newDevice(t *testing.T, program string) *device {
	dir := t.TempDir()
	d := &device{t: t, program: filepath.Join(dir, "flotilla-device"), files: map[string]string{},
		keys: []ed25519.PublicKey{release.Public().(ed25519.PublicKey)}, now: time.Unix(1_800_000_000, 0)}
	d.store = Store{Dir: filepath.Join(dir, "state", "upgrade"), step: d.step}
	if err := os.WriteFile(d.program, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

func build(text string, key ed25519.PrivateKey) fleet.AgentBuild {
	sum := sha256.Sum256([]byte(text))
	b := fleet.AgentBuild{Version: versionOf(text), Arch: Arch(), Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
	if key != nil {
		b.Signature = ed25519.Sign(key, b.Text())
	}
	return b
}

func versionOf(text string) string { return strings.Fields(text + " none")[0] }

// offer makes the hub want a program.
func (d *device) offer(text string) {
	d.want = &wire.Upgrade{AgentBuild: build(text, release), Try: true}
	d.files["/install/flotilla-device-"+Arch()] = text
}

// step counts the changes of the disk, and kills the process before one of them.
func (d *device) step(what string) {
	d.at++
	name, isSync := strings.CutPrefix(what, "sync ")
	if d.at == d.killAt {
		if d.cut && isSync { // the rename is lost
			path := filepath.Join(d.store.Dir, name)
			if name == filepath.Base(d.program) {
				path = d.program
			}
			if d.before == nil {
				_ = os.Remove(path)
			} else if err := os.WriteFile(path, d.before, 0o755); err != nil {
				d.t.Fatal(err)
			}
		}
		panic(killed{})
	}
	if name, ok := strings.CutPrefix(what, "rename "); ok {
		path := filepath.Join(d.store.Dir, name)
		if name == filepath.Base(d.program) {
			path = d.program
		}
		d.before, _ = os.ReadFile(path)
	}
}

// life runs a process from its start to its end. It returns false if nothing happens any more.
func (d *device) life() (restarts bool) {
	text, err := os.ReadFile(d.program)
	if err != nil {
		d.t.Fatal(err)
	}
	self := d.program
	run := func(f func() error) (err error) {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case killed:
				err = errors.New("killed")
			case became:
				err = nil
			default:
				panic(r)
			}
		}()
		return f()
	}
	err = run(func() error {
		return d.store.Launch(Starter{Self: self, Watch: func(string, int) error { return nil }, Exec: func(to string) error {
			next, err := os.ReadFile(to)
			if err != nil {
				return err
			}
			if strings.Contains(string(next), "no program") {
				return errors.New("exec format error")
			}
			self, text = to, next
			panic(became{})
		}})
	})
	if err != nil {
		return true
	}
	d.running = string(text)
	d.starts = append(d.starts, versionOf(d.running))
	if strings.Contains(d.running, "ends") {
		return true
	}
	r := &Runner{
		Store: d.store, Self: self, Version: versionOf(d.running), Keys: d.keys, Unsigned: d.owner,
		Want:   func() *wire.Upgrade { return d.want },
		Heard:  func() bool { return !d.offline && !strings.Contains(d.running, "silent") },
		Report: func(st *wire.UpgradeStatus) { d.said = st },
		Fetch: func(_ context.Context, path string, offset, size int64, w io.Writer) error {
			_, err := io.WriteString(w, d.files[path][offset:])
			return err
		},
		Log: slog.New(slog.DiscardHandler),
		Check: func(_ context.Context, program string, b fleet.AgentBuild) error {
			text, err := os.ReadFile(program)
			if err == nil && versionOf(string(text)) != b.Version {
				err = &badProgram{fmt.Errorf("it says that it is %s", versionOf(string(text)))}
			}
			return err
		},
	}
	if err := run(func() error { r.Announce(); return nil }); err != nil {
		return true
	}
	for range 200 { // about 16 minutes
		d.now = d.now.Add(stepTime)
		if err := run(func() error { return r.Step(context.Background(), d.now) }); err != nil {
			return true
		}
	}
	return false
}

// settle runs the device as a supervisor does, until nothing happens any more.
func (d *device) settle() {
	d.t.Helper()
	for range 20 {
		if !d.life() {
			return
		}
		if text, err := os.ReadFile(d.program); err != nil || versionOf(string(text)) == "none" {
			d.t.Fatalf("after step %d the installed program is %q: %v", d.at, text, err)
		}
	}
	d.t.Fatalf("killed at step %d, the device starts for ever: %v", d.killAt, d.starts)
}

func (d *device) installed() string {
	text, err := os.ReadFile(d.program)
	if err != nil {
		d.t.Fatal(err)
	}
	return versionOf(string(text))
}

// TestAnUpgradeEndsInOneOfTheTwoVersions kills the process and cuts the power at every step.
func TestAnUpgradeEndsInOneOfTheTwoVersions(t *testing.T) {
	for _, c := range []struct {
		rule, to, ends, state string
	}{
		{"a version that works is installed", "v2", "v2", wire.FirmwareUpToDate},
		{"one that ends at once is not", "v2 ends", "v1", wire.FirmwareRolledBack},
		{"one that the hub does not hear is not", "v2 silent", "v1", wire.FirmwareRolledBack},
		{"one that cannot be started is not", "v2 no program", "v1", wire.FirmwareRolledBack},
	} {
		t.Run(c.rule, func(t *testing.T) {
			steps := 0
			for _, cut := range []bool{false, true} {
				for kill := 0; kill == 0 || kill <= steps; kill++ {
					d := newDevice(t, "v1")
					d.killAt, d.cut = kill, cut
					d.offer(c.to)
					d.settle()
					if kill == 0 {
						steps = d.at
					}
					if v := versionOf(d.running); v != c.ends || d.installed() != c.ends || d.said.State != c.state {
						t.Errorf("killed at step %d of %d (power cut: %t): %s runs, %s is installed, and it says %+v; it "+
							"started %v", kill, steps, cut, v, d.installed(), d.said, d.starts)
					}
				}
			}
			if steps < 5 {
				t.Errorf("only %d steps were found", steps)
			}
			t.Logf("%d steps, each with a kill and with a power cut", steps)
		})
	}
}

// TestAnUndoBringsTheVersionBefore does so at every step, too.
func TestAnUndoBringsTheVersionBefore(t *testing.T) {
	steps := 0
	for kill := 0; kill == 0 || kill <= steps; kill++ {
		d := newDevice(t, "v1")
		d.offer("v2")
		d.settle()
		d.at, d.killAt = 0, kill
		d.want.Try, d.want.Undo = false, true
		d.settle()
		if kill == 0 {
			steps = d.at
		}
		if d.installed() != "v1" || d.said.State != wire.FirmwareUpToDate || d.said.Previous != "v2" {
			t.Errorf("killed at step %d of %d: %s is installed: %+v", kill, steps, d.installed(), d.said)
		}
	}
}

func TestWhatADeviceUpgradesTo(t *testing.T) {
	other := ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", ed25519.SeedSize)))
	for _, c := range []struct {
		rule  string
		with  func(*device)
		ends  string
		state string
		why   string
	}{
		{"an agent signed by the release key", func(*device) {}, "v2", wire.FirmwareUpToDate, ""},
		{"none without the hub's permission", func(d *device) { d.want.Try = false }, "v1", wire.FirmwareStaged, ""},
		{"none that nobody signed", func(d *device) { d.want.Signature = nil }, "v1", wire.FirmwareFailed, "is not signed"},
		{"none signed by another key", func(d *device) { d.want.AgentBuild = build("v2", other) }, "v1", wire.FirmwareFailed,
			"is not signed by this device's release key"},
		{"none whose version was changed after it was signed", func(d *device) { d.want.Version = "v3" }, "v1",
			wire.FirmwareFailed, "is not signed by"},
		{"none where the agent knows no key", func(d *device) { d.keys = nil }, "v1", wire.FirmwareFailed, "development build"},
		{"an unsigned one where the owner allows it", func(d *device) { d.want.Signature, d.keys, d.owner = nil, nil, true }, "v2",
			wire.FirmwareUpToDate, ""},
		{"no other bytes than the signed ones", func(d *device) { d.files["/install/flotilla-device-"+Arch()] = "vX" }, "v1",
			wire.UpgradeDownloading, "is not the one that its rollout names"},
		{"none that says another version", func(d *device) {
			d.offer("v9")
			d.want.Version = "v8"
			d.want.Signature = ed25519.Sign(release, d.want.Text())
		}, "v1", wire.FirmwareRolledBack, "it says that it is v9"},
		{"none for another processor", func(d *device) {
			d.want.Arch = "z80"
			d.want.Signature = ed25519.Sign(release, d.want.Text())
		}, "v1", wire.FirmwareFailed, "it is for z80"},
	} {
		d := newDevice(t, "v1")
		d.offer("v2")
		c.with(d)
		d.settle()
		if d.installed() != c.ends || d.said.State != c.state || !strings.Contains(d.said.Message, c.why) {
			t.Errorf("%s: %s is installed: %+v", c.rule, d.installed(), d.said)
		}
	}
}

// While the line is down, a candidate goes back, and is tried again later: it is not bad.
func TestALineThatIsDownMakesNoVersionBad(t *testing.T) {
	d := newDevice(t, "v1")
	d.offer("v2")
	d.want.Try = false
	d.settle()
	d.want.Try, d.offline = true, true
	for range 3 {
		d.life()
	}
	if d.installed() != "v1" || len(d.said.Bad) > 0 {
		t.Errorf("%s is installed: %+v", d.installed(), d.said)
	}
	d.offline = false
	d.settle()
	if d.installed() != "v2" {
		t.Errorf("when the line is back, %s is installed: %+v", d.installed(), d.said)
	}
}

// A failed version is tried again only when the retry of its rollout is raised.
func TestAFailedVersionIsTriedAgainOnRetry(t *testing.T) {
	d := newDevice(t, "v1")
	d.offer("v2 ends")
	d.settle()
	before := len(d.starts)
	d.settle()
	if len(d.starts) != before+1 {
		t.Errorf("it was tried again by itself: %v", d.starts)
	}
	d.want.Retry++
	d.settle()
	if len(d.starts) <= before+2 || d.installed() != "v1" {
		t.Errorf("it was not tried again: %v", d.starts)
	}
}

// A package that was installed in the meantime wins over the candidate.
func TestAnInstalledPackageWins(t *testing.T) {
	d := newDevice(t, "v1")
	d.offer("v2 silent")
	for d.said == nil || d.said.State != wire.FirmwareTrial {
		d.life()
	}
	d.want = nil
	if err := os.WriteFile(d.program, []byte("v3"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.settle()
	if d.running != "v3" || d.installed() != "v3" {
		t.Errorf("%s runs, %s is installed", d.running, d.installed())
	}
}

// A broken download goes on where it stopped.
func TestABrokenDownloadGoesOn(t *testing.T) {
	d := newDevice(t, "v1")
	d.offer("v2 with a long text")
	b := d.want.AgentBuild
	if err := os.MkdirAll(d.store.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.store.Dir, "part-"+b.SHA256[:16]), []byte("v2 with"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.files["/install/flotilla-device-"+Arch()] = strings.Repeat("?", 7) + " a long text" // only the rest is asked for
	d.settle()
	if d.installed() != "v2" {
		t.Errorf("%s is installed: %+v", d.installed(), d.said)
	}
}

// The watcher ends a candidate that lives and says nothing.
func TestTheWatcherEndsACandidateAtItsDeadline(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	start := func() *exec.Cmd {
		c := exec.Command("sleep", "600")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		return c
	}
	for _, c := range []struct {
		rule, phase, then string
		ends              bool
	}{
		{"one that is not confirmed", trying, back, true},
		{"not one that is", confirmed, confirmed, false},
	} {
		if err := s.update(func(j *journal) bool { *j = journal{Phase: c.phase, Starts: 1}; return true }); err != nil {
			t.Fatal(err)
		}
		p := start()
		ended := make(chan error, 1)
		go func() { ended <- p.Wait() }()
		if err := s.Watch(t.Context(), p.Process.Pid, 0, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if c.ends {
			<-ended
		} else if startOf(p.Process.Pid) == "" {
			t.Errorf("%s: it was ended", c.rule)
		}
		if j, err := s.read(); err != nil || j.Phase != c.then {
			t.Errorf("%s: the phase is %q: %v", c.rule, j.Phase, err)
		}
	}
}
