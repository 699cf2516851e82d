package boothelper_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/device/firmware"
	"flotilla.dev/shared/wire"
)

var ways = []string{boothelper.ByTryboot, boothelper.ByDeadman, boothelper.ByUEnv, boothelper.ByGrub}

// An outcome is the effect of a configuration during its trial, and the status that results.
type outcome struct {
	name        string
	health      func(*fakeBoard) firmware.Health
	hangs, dies bool // the board does not boot with the configuration, or crashes after the early units
	want        string
}

var outcomes = []outcome{
	{"a good configuration is kept", well, false, false, wire.FirmwareUpToDate},
	{"a configuration that breaks the network is rolled back", worse, false, false, wire.FirmwareRolledBack},
	{"a configuration that does not boot is not reported as bad", well, true, false, wire.FirmwareFailed},
	{"a configuration that crashes the board before the agent runs is rolled back", well, false, true, wire.FirmwareRolledBack},
}

func (o outcome) applyTo(w *fakeBoard) {
	if o.hangs {
		w.hangs = w.tried
	}
	if o.dies {
		w.dies = w.tried
	}
}

// eachWay tests every outcome on every kind of board. A deadman cannot undo a configuration that
// does not boot.
func eachWay(t *testing.T, test func(t *testing.T, way string, o outcome)) {
	for _, way := range ways {
		for _, o := range outcomes {
			if o.hangs && (way == boothelper.ByDeadman || way == boothelper.ByUEnv) {
				continue
			}
			t.Run(way+": "+o.name, func(t *testing.T) { test(t, way, o) })
		}
	}
}

// live runs agent and helper through every crash and reboot until both are idle.
func (w *fakeBoard) live(want *wire.Firmware,
	health func(w *fakeBoard) firmware.Health) (st *wire.FirmwareStatus, j firmware.Journal, h boothelper.Status) {
	var quiet int
	for range 100 { // starts of the processes
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
			helper, err := boothelper.New(w, w, "/var/helper")
			if err != nil {
				w.t.Fatal(err)
			}
			if w.early { // the early unit runs first
				err := helper.Settle() // the same calls as boothelper.Server.Restore
				if err == nil {
					err = helper.Leave()
				}
				if err != nil && w.fails == nil { // after an error of the disk the unit fails and the boot continues
					w.t.Fatal(err)
				}
				if w.early = false; w.dies != nil && w.dies(w.runs) {
					panic(errDies)
				}
			}
			r := &firmware.Runner{
				Node: "pi-1", Disk: w, Dir: "/var/agent", Log: slog.New(slog.DiscardHandler),
				Ask: func(_ context.Context, q boothelper.Request) (boothelper.Reply, error) {
					a := helper.Do(q)
					return a, a.Err()
				},
				Desired: func() (*wire.Firmware, []byte) { return want, boothelper.HubsKey },
				Health:  func(context.Context) firmware.Health { return health(w) },
				Report:  func(s *wire.FirmwareStatus) { st = s },
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
				if again || st != nil && st.State == wire.FirmwareUnsupported { // wait for the helper
					quiet = 0
				}
				if w.uptime > 3*time.Hour {
					w.t.Fatalf("agent and helper are not idle after 3 hours: %+v %+v", w.journal(), helper.Status())
				}
			}
			j, h = w.journal(), helper.Status()
		}()
		if quiet >= 5 {
			return st, j, h
		}
	}
	w.t.Fatal("agent and helper are not idle after 100 starts")
	return
}

func well(*fakeBoard) firmware.Health { return firmware.Health{Hub: true, Disk: fine} }

// worse is the health of a board whose configuration on trial breaks the network.
func worse(w *fakeBoard) firmware.Health { return firmware.Health{Disk: fine, Hub: !w.tried(w.runs)} }

// tried reports whether f are the files on trial.
func (w *fakeBoard) tried(f boothelper.Files) bool { return like(f, w.new) != w.kept }

// check checks that agent and helper are idle, and that the board has and runs the expected files.
func (w *fakeBoard) check(st *wire.FirmwareStatus, j firmware.Journal, h boothelper.Status, want ...string) {
	w.t.Helper()
	switch {
	case st == nil || !slices.Contains(want, st.State):
		w.t.Fatalf("the status is %+v, want state %v", st, want)
	case j.Phase != firmware.Idle || h.Phase != boothelper.PhaseIdle:
		w.t.Fatalf("the agent is still in phase %q, the helper in %q", j.Phase, h.Phase)
	}
	files, state := w.old, "old"
	if h.Kept != "" {
		files, state = w.new, "new"
	}
	if live := w.files(); !live.Equal(files) || w.trialsLeft() {
		w.t.Fatalf("%s: the boot files are not the %s files:\n%q\n%v", st.State, state, live.Config,
			slices.Collect(maps.Keys(w.names)))
	}
	if !like(w.runs, files) {
		w.t.Fatalf("%s: the board does not run the %s files", st.State, state)
	}
}

// journal reads the agent's journal from the disk.
func (w *fakeBoard) journal() (j firmware.Journal) {
	text, err := (&boothelper.Slots{Disk: w, Dir: "/var/agent", Name: "firmware"}).Load()
	if err == nil && text != nil {
		err = json.Unmarshal(text, &j)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}
