package sim

import (
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

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// A bootFleet has the boards of a world. It checks the invariants of their rollouts.
type bootFleet struct {
	*world
	boards map[string]*bootBoard
	dark   map[string]bool // sites without network
	most   int             // most nodes of a site that may be at risk
	first  string          // the canary, and a check that it has finished
	done   func(line string) bool
}

func (w *world) bootFleet(most int) *bootFleet {
	f := &bootFleet{world: w, boards: map[string]*bootBoard{}, dark: map[string]bool{}, most: most}
	for _, d := range w.devices {
		f.boards[d.name] = newBootBoard(d)
	}
	return f
}

// goFirst sets the canary, and the check of its command line after its turn.
func (f *bootFleet) goFirst(name string, done func(line string) bool) {
	f.first, f.done = name, done
}

func has(word string) func(string) bool {
	return func(line string) bool { return slices.Contains(strings.Fields(line), word) }
}

func lacks(word string) func(string) bool { return func(line string) bool { return !has(word)(line) } }

// end stops the helpers and runners of all boards.
func (f *bootFleet) end() {
	for _, b := range f.boards {
		if b.back.IsZero() {
			b.stop()
		}
	}
}

// pass advances the time in steps of a second, and checks after each step.
func (f *bootFleet) pass(t time.Duration) {
	f.t.Helper()
	for end := time.Now().Add(t); time.Now().Before(end); {
		f.step()
	}
}

// goes advances the time until a condition holds.
func (f *bootFleet) goes(most time.Duration, what string, is func() bool) {
	f.t.Helper()
	for end := time.Now().Add(most); !is(); f.step() {
		if time.Now().After(end) {
			f.t.Fatalf("at %s: not met after %s: %s: %+v", f.clock(), most, what, f.status())
		}
	}
}

func (f *bootFleet) step() {
	f.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(f.boards)) {
		f.boards[name].live(f.dark[f.boards[name].d.site])
	}
	time.Sleep(time.Second)
	synctest.Wait()
	f.holds()
}

// holds checks the invariant: only boards of one site are down, in a trial or have their turn, and
// no more than the limit.
func (f *bootFleet) holds() {
	f.t.Helper()
	at := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(f.boards)) {
		b := f.boards[name]
		turn := false
		if f.hub != nil {
			rec := f.snapshot().Record(name)
			turn = rec != nil && rec.Assigned != nil && rec.Assigned.Step != ""
		}
		if b.risk() || turn {
			at[b.d.site] = append(at[b.d.site], name)
		}
	}
	if len(at) > 1 {
		f.t.Fatalf("at %s: two sites are at risk: %v", f.clock(), at)
	}
	for site, nodes := range at {
		if len(nodes) > f.most {
			f.t.Fatalf("at %s: %v of %s are at risk, want at most %d", f.clock(), nodes, site, f.most)
		}
		if f.first == "" || site == "bergen" {
			continue
		}
		if line, trial := f.boards[f.first].runs(); (trial || !f.done(line)) && (len(nodes) > 1 || nodes[0] != f.first) {
			f.t.Fatalf("at %s: %v are at risk before canary %s has finished", f.clock(), nodes, f.first)
		}
	}
}

func (f *bootFleet) status() fleet.FirmwareRolloutStatus {
	if r := f.snapshot().Rollout("cgroup"); r != nil {
		st := r.Status
		st.Document, st.Changes, st.Conditions = "", nil, nil
		return st
	}
	return fleet.FirmwareRolloutStatus{}
}

// over tells whether both rollouts are complete.
func (f *bootFleet) over() bool {
	for r := range state.Each[*fleet.FirmwareRollout](f.snapshot(), state.FirmwareRollouts, "") {
		if r.Status.Phase != fleet.RolloutComplete || r.Status.Undoing != r.Spec.Undo {
			return false
		}
	}
	return true
}

// profile sets the boot configuration of the fleet's boards.
func (f *bootFleet) profile(words ...string) {
	f.t.Helper()
	p := &fleet.BoardProfile{TypeMeta: metav1.TypeMeta{APIVersion: "flotilla.dev/v1alpha1", Kind: "BoardProfile"},
		ObjectMeta: metav1.ObjectMeta{Name: "raspberrypi-4"}}
	p.Spec.Match = fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"}}
	p.Spec.Boot = &fleet.BoardBoot{Backend: fleet.BootConfigTxt, Cmdline: fleet.BootCmdline{Add: words}}
	f.put(p)
}

// rollouts changes both rollouts. One has the site bergen, the other the remaining sites, with a
// canary.
func (f *bootFleet) rollouts(edit func(*fleet.FirmwareRolloutSpec)) {
	f.t.Helper()
	for name, sites := range map[string][]string{"cgroup": {"oslo", "perth"}, "east": {"bergen"}} {
		r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if have := f.snapshot().Rollout(name); have != nil {
			r = have.DeepCopy()
		} else {
			r.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: metav1.LabelSelectorOpIn, Values: sites}}}
			r.Spec.Profile, r.Spec.BatchSize, r.Spec.MaxUnavailablePerSite = "raspberrypi-4", 2, int32(f.most)
			if name == "cgroup" {
				r.Spec.Canary = "perth-2"
			}
		}
		edit(&r.Spec)
		f.put(r)
	}
}

// trying returns the first board in a trial; "": no board is in a trial.
func (f *bootFleet) trying() string {
	for _, name := range slices.Sorted(maps.Keys(f.boards)) {
		b := f.boards[name]
		b.mu.Lock()
		now := b.tries() && b.back.IsZero() && !b.wants
		b.mu.Unlock()
		if now {
			return name
		}
	}
	return ""
}

// boots returns the boards that have kept a configuration with a word.
func (f *bootFleet) boots(word string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(f.boards)) {
		if line, trial := f.boards[name].runs(); !trial && has(word)(line) {
			names = append(names, name)
		}
	}
	return names
}

// A night with boot configurations on three sites and disturbances: a site is cut off during its
// boards' trials, the hub crashes during others, a configuration breaks the network of one board,
// and it is undone.
func TestFleetARolloutOfBootConfigurations(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(3, "oslo")
		w.fleet(2, "bergen", "perth")
		w.deploy("kiosk", 3)
		w.settleWithin(10*time.Second, "the deployment")
		f := w.bootFleet(2)
		defer f.end()
		f.profile("cgroup_enable=memory")
		f.pass(30 * time.Second)
		f.goFirst("perth-2", has("cgroup_enable=memory"))
		f.rollouts(func(*fleet.FirmwareRolloutSpec) {})
		f.goes(30*time.Minute, "the canary has kept the configuration", func() bool { return f.status().Kept == 1 })
		if have := slices.DeleteFunc(f.boots("cgroup_enable=memory"),
			func(n string) bool { return strings.HasPrefix(n, "bergen") }); !slices.Equal(have, []string{"perth-2"}) {
			t.Fatalf("%v have the configuration", have)
		}

		// The site of a board in a trial is cut off for four minutes. The board does not roll back
		// because of that.
		f.goes(20*time.Minute, "a board of oslo is in a trial", func() bool { return strings.HasPrefix(f.trying(), "oslo") })
		f.dark["oslo"] = true
		w.cut(w.at("oslo")...)
		f.pass(4 * time.Minute)
		f.dark["oslo"] = false
		for _, d := range w.at("oslo") {
			if f.boards[d.name].back.IsZero() {
				w.heal(d)
			}
		}
		f.goes(15*time.Minute, "oslo's boards have kept the configuration", func() bool {
			n := 0
			for _, name := range f.boots("cgroup_enable=memory") {
				if strings.HasPrefix(name, "oslo") {
					n++
				}
			}
			return n == 3
		})
		f.goes(time.Hour, "both rollouts are complete", f.over)
		if st := f.status(); st.Kept != 5 || st.Bad != 0 || len(f.boots("cgroup_enable=memory")) != 7 {
			t.Fatalf("the last statuses are %+v", st)
		}

		// With the second configuration oslo-2 has no network. The hub crashes meanwhile.
		f.boards["oslo-2"].cursed = "fbcon=map:2"
		f.goFirst("perth-2", has("fbcon=map:2"))
		f.profile("cgroup_enable=memory", "fbcon=map:2")
		f.goes(30*time.Minute, "the canary is in a trial", func() bool { return f.trying() == "perth-2" })
		w.crashHub()
		f.pass(90 * time.Second)
		w.startHub()
		f.goes(30*time.Minute, "the canary has kept the configuration",
			func() bool { return slices.Contains(f.boots("fbcon=map:2"), "perth-2") && f.status().Kept == 1 })
		f.goes(2*time.Hour, "the rollout has stopped", func() bool { return f.status().Phase == fleet.RolloutStopped })
		st := f.status()
		if st.Bad != 1 || !strings.Contains(st.Sentence, "oslo-2 (hub-reconnected-if-was") {
			t.Errorf("the rollout's sentence is %q", st.Sentence)
		}
		f.pass(2 * time.Hour) // the other rollout continues
		if have := f.boots("fbcon=map:2"); !slices.Equal(have, []string{"bergen-1", "bergen-2", "oslo-1", "perth-1",
			"perth-2"}) {
			t.Errorf("after the stop %v have the configuration", have)
		}
		for name := range f.boards {
			if n := w.node(name); state.ReadyOf(n) != corev1.ConditionTrue || n.Spec.Unschedulable {
				t.Errorf("%s is Ready=%s, cordoned %v", name, state.ReadyOf(n), n.Spec.Unschedulable)
			}
		}

		// The configuration is undone, first on the canary.
		f.goFirst("perth-2", lacks("fbcon=map:2"))
		f.rollouts(func(s *fleet.FirmwareRolloutSpec) { s.Undo = true })
		f.goes(30*time.Minute, "the canary is back",
			func() bool { return f.status().Undoing && !slices.Contains(f.boots("fbcon=map:2"), "perth-2") })
		f.goes(10*time.Minute, "the canary reports that",
			func() bool { return f.snapshot().Record("perth-2").Assigned.Step == "" })
		f.goes(2*time.Hour, "both rollouts are undone", f.over)
		if have, before := f.boots("fbcon=map:2"), f.boots("cgroup_enable=memory"); len(have) != 0 || len(before) != 7 {
			t.Errorf("after the undo %v have the configuration, %v the earlier one", have, before)
		}
		f.pass(10 * time.Minute)
		w.settleWithin(twoLeases, "the night")
	})
}

// A backup is restored on a new machine with a copy of the directory pki. Devices keep the key and
// their newest generation, and accept that hub's signatures. Without the copy they accept no
// signature, and report the reason.
func TestFleetDevicesAcceptARestoredHubsSignature(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]bool{"with the keys": true, "without them": false} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.startHub()
				w.fleet(2, "oslo")
				f := w.bootFleet(2)
				defer f.end()
				f.profile("quiet=1")
				f.pass(30 * time.Second)
				f.rollouts(func(s *fleet.FirmwareRolloutSpec) { s.Canary = "" })
				f.goes(time.Hour, "the configuration is kept", func() bool { return f.status().Kept == 2 })
				backup := filepath.Join(w.dir, "backup.db")
				if err := w.hub.Store.Backup(t.Context(), backup); err != nil {
					t.Fatal(err)
				}
				f.profile("loud=1")
				f.goes(time.Hour, "the second configuration is kept",
					func() bool { return len(f.boots("loud=1")) == 2 && f.status().Kept == 2 })
				w.stopHub()
				old := w.saveDisk("old")
				if err := os.RemoveAll(w.cfg.DataDir); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(w.cfg.DataDir, 0o700); err != nil {
					t.Fatal(err)
				}
				if keys {
					copyDir(t, filepath.Join(w.cfg.DataDir, "pki"), filepath.Join(old, "pki"))
				}
				if err := store.Restore(t.Context(), store.Options{Dir: w.cfg.DataDir, Version: "test", Log: w.log},
					backup); err != nil {
					t.Fatal(err)
				}
				w.startHub()
				f.pass(10 * time.Minute)
				if have := f.boots("loud=1"); len(have) != 2 {
					t.Fatalf("before the resume only %v are unchanged", have)
				}
				if st := f.status(); st.Trying != 0 || !strings.Contains(st.NodeStates[0].Message, "flotilla-hub resume") {
					t.Errorf("before the resume: %+v", st)
				}
				if _, err := w.hub.Loop.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !keys {
					f.goes(time.Hour, "the rollout has stopped", func() bool { return f.status().Phase == fleet.RolloutStopped })
					if st := f.status(); !strings.Contains(st.Sentence, "not signed by this device's hub") ||
						len(f.boots("loud=1")) != 2 {
						t.Errorf("%+v", st)
					}
					return
				}
				f.goes(time.Hour, "the backup's configuration is kept",
					func() bool { return len(f.boots("quiet=1")) == 2 && f.status().Kept == 2 })
			})
		})
	}
}
