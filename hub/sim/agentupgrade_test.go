package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/upgrade"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A simProgram is a device with an installed program, whose text is its version, and a supervisor.
// One that begins with "bad" ends at once.
type simProgram struct {
	d       *simDevice
	program string
	runner  *upgrade.Runner
	starts  []string // versions that were started
	down    time.Time
}

// simPrograms are the devices of a world.
type simPrograms struct {
	*world
	all  map[string]*simProgram
	most int
}

func (w *world) programs(version string, most int) *simPrograms {
	f := &simPrograms{world: w, all: map[string]*simProgram{}, most: most}
	for _, d := range w.devices {
		d.kill()
		p := &simProgram{d: d, program: filepath.Join(d.dir, "flotilla-device")}
		if err := os.WriteFile(p.program, []byte(version), 0o755); err != nil {
			w.t.Fatal(err)
		}
		f.all[d.name] = p
		p.start()
	}
	return f
}

type otherProgram struct{}

// start starts the installed program, which may become the candidate.
func (p *simProgram) start() {
	t := p.d.w.t
	store := upgrade.Store{Dir: filepath.Join(p.d.dir, "state", "upgrade")}
	self := p.program
	func() {
		defer func() {
			if r := recover(); r != nil && r != (otherProgram{}) {
				panic(r)
			}
		}()
		err := store.Launch(upgrade.Starter{Self: self, Watch: func(string, int) error { return nil }, Exec: func(to string) error {
			self = to
			panic(otherProgram{})
		}})
		if err != nil {
			t.Error(err)
		}
	}()
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	version := string(text)
	p.starts = append(p.starts, version)
	if p.down = time.Now(); strings.HasPrefix(version, "bad") {
		return
	}
	p.down = time.Time{}
	d := p.d
	d.version = version
	d.announce = func() {
		p.runner = &upgrade.Runner{
			Store: store, Self: self, Version: version, Unsigned: true, Log: d.w.log, Report: d.agent.SetUpgrade,
			Want: func() *wire.Upgrade {
				d, _ := d.mem.Desired()
				return d.Upgrade
			},
			Heard: d.link.Heard,
			Fetch: func(_ context.Context, path string, offset, _ int64, w io.Writer) error {
				if !d.w.reached(d) {
					return errors.New("no line")
				}
				text, err := os.ReadFile(filepath.Join(d.w.dir, path))
				if err == nil {
					_, err = w.Write(text[offset:])
				}
				return err
			},
			Check: func(context.Context, string, fleet.AgentBuild) error { return nil },
		}
		p.runner.Announce()
	}
	d.start()
}

// live takes a step of the device.
func (p *simProgram) live() {
	switch {
	case !p.down.IsZero():
		if time.Since(p.down) >= 5*time.Second { // RestartSec
			p.start()
		}
	case p.d.agent != nil:
		if err := p.runner.Step(context.Background(), time.Now()); errors.Is(err, upgrade.ErrRestart) {
			p.d.kill()
			p.down = time.Now()
		}
	}
}

// offer puts a version into the hub, and makes the rollout want it.
func (f *simPrograms) offer(version string) {
	f.t.Helper()
	file := filepath.Join(f.dir, "install", "flotilla-device-"+upgrade.Arch())
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(version), 0o644)); err != nil {
		f.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(version))
	b := fleet.AgentBuild{Version: version, Arch: upgrade.Arch(), Size: int64(len(version)), SHA256: hex.EncodeToString(sum[:])}
	f.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		hub := s.Advertisement().DeepCopyObject().(*state.Advertisement)
		hub.Agents = []fleet.AgentBuild{b}
		return []state.Change{state.Put(hub, "")}, nil
	})
	f.rollout(func(s *fleet.AgentRolloutSpec) { s.Version = version })
}

// rollout changes the rollout.
func (f *simPrograms) rollout(edit func(*fleet.AgentRolloutSpec)) {
	f.t.Helper()
	r := &fleet.AgentRollout{ObjectMeta: metav1.ObjectMeta{Name: "agents"}}
	if have, ok := f.snapshot().Get(state.Key{Kind: state.AgentRollouts, Name: "agents"}).(*fleet.AgentRollout); ok {
		r = have.DeepCopy()
	} else {
		r.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: metav1.LabelSelectorOpExists}}}
		r.Spec.MaxUnavailablePerSite = int32(f.most)
	}
	edit(&r.Spec)
	f.put(r)
}

func (f *simPrograms) status() fleet.FirmwareRolloutStatus {
	if r, ok := f.snapshot().Get(state.Key{Kind: state.AgentRollouts, Name: "agents"}).(*fleet.AgentRollout); ok {
		st := r.Status
		st.Document, st.Conditions, st.Batches = "", nil, nil
		return st
	}
	return fleet.FirmwareRolloutStatus{}
}

// turns are the nodes that have their turn.
func (f *simPrograms) turns() (nodes []string) {
	for n := range f.snapshot().Nodes() {
		if rec := f.snapshot().Record(n.Name); rec != nil && rec.Upgrading != nil && rec.Upgrading.Step != "" {
			nodes = append(nodes, n.Name)
		}
	}
	return nodes
}

// goes advances the time until a condition holds, and checks each step: devices of one site at a
// time, and no more of them than may.
func (f *simPrograms) goes(most time.Duration, what string, is func() bool) time.Duration {
	f.t.Helper()
	began := time.Now()
	for end := began.Add(most); !is(); {
		if time.Now().After(end) {
			f.t.Fatalf("at %s: not so after %s: %s: %+v", f.clock(), most, what, f.status())
		}
		for _, name := range slices.Sorted(maps.Keys(f.all)) {
			f.all[name].live()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		turns, sites := f.turns(), map[string]bool{}
		for _, n := range turns {
			sites[f.all[n].d.site] = true
		}
		if len(sites) > 1 || len(turns) > f.most {
			f.t.Fatalf("at %s: %v have their turn", f.clock(), turns)
		}
	}
	return time.Since(began)
}

// installed counts the devices by their installed version.
func (f *simPrograms) installed() map[string]int {
	count := map[string]int{}
	for _, p := range f.all {
		text, err := os.ReadFile(p.program)
		if err != nil {
			f.t.Fatal(err)
		}
		count[string(text)]++
	}
	return count
}

func (f *simPrograms) phase(is fleet.RolloutPhase) func() bool {
	return func() bool { return f.status().Phase == is }
}

// Forty devices are upgraded. Two are silent, one from the beginning and one in its turn: the
// others do not wait for them, and they catch up. A bad version stops at its first device, which
// goes back by itself; the good one is undone. No container restarts.
func TestFleetAnUpgradeOfAgents(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(5, "athens", "bergen", "cork", "delft", "essen", "faro", "graz", "hull")
		w.daemonSet("kiosk")
		w.settleWithin(30*time.Second, "the daemon set")
		before := map[string][]string{}
		for _, d := range w.devices {
			for _, c := range d.containers() {
				before[d.name] = append(before[d.name], c.ID)
			}
		}
		f := w.programs("1.0.0", 2)
		w.settleWithin(time.Minute, "the restart of the agents")

		away, lost := w.on("bergen-2"), (*simDevice)(nil)
		w.cut(away)
		f.goes(5*time.Minute, "bergen-2 is silent", func() bool { return w.ready("bergen-2") == corev1.ConditionUnknown })
		f.offer("2.0.0")
		f.goes(10*time.Minute, "the first has kept it", func() bool { return f.status().Kept == 1 })
		f.goes(2*time.Hour, "a device of delft has its turn", func() bool {
			for _, n := range f.turns() {
				if strings.HasPrefix(n, "delft") {
					lost = w.on(n)
				}
			}
			return lost != nil
		})
		w.cut(lost)
		took := f.goes(2*time.Hour, "all others run it", func() bool { return f.installed()["2.0.0"] == 38 })
		if st := f.status(); st.Bad != 0 || st.Phase == fleet.RolloutStopped {
			t.Fatalf("with two silent devices: %+v", st)
		}
		t.Logf("38 of 40 devices run it; after one fell silent in its turn, the others took %s", took)
		w.heal(away, lost)
		f.goes(time.Hour, "it is complete", f.phase(fleet.RolloutComplete))
		if count := f.installed(); count["2.0.0"] != 40 {
			t.Fatalf("%v are installed", count)
		}

		f.offer("bad-3.0.0")
		f.goes(time.Hour, "the bad version stops", f.phase(fleet.RolloutStopped))
		tried := 0
		for _, p := range f.all {
			if slices.Contains(p.starts, "bad-3.0.0") {
				tried++
			}
		}
		if count := f.installed(); tried != 1 || count["2.0.0"] != 40 {
			t.Fatalf("%d devices tried it, %v are installed", tried, count)
		}

		f.offer("2.0.0")
		f.goes(time.Hour, "the good version is back", f.phase(fleet.RolloutComplete))
		f.rollout(func(s *fleet.AgentRolloutSpec) { s.Undo = true })
		f.goes(3*time.Hour, "it is undone", func() bool { return f.status().Undoing && f.status().Phase == fleet.RolloutComplete })
		if count := f.installed(); count["1.0.0"] != 40 {
			t.Fatalf("after the undo %v are installed", count)
		}
		for _, d := range w.devices {
			var now []string
			for _, c := range d.containers() {
				now = append(now, c.ID)
			}
			if !slices.Equal(now, before[d.name]) || len(now) == 0 {
				t.Errorf("%s had the containers %v and has %v", d.name, before[d.name], now)
			}
		}
	})
}
