package boothelper_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/device/firmware"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// healthy returns the health of a board on which every check holds.
func healthy() firmware.Health {
	return firmware.Health{Hub: true, Disk: fine, Desired: []string{"a", "b"}, Running: []string{"a", "b"}}
}

// broken makes each check fail.
var broken = map[string]func(*firmware.Health){
	fleet.CheckEnginePing:     func(f *firmware.Health) { f.Engine = "cannot connect to the Docker daemon" },
	fleet.CheckHubReconnected: func(f *firmware.Health) { f.Hub = false },
	fleet.CheckDiskWritable:   func(f *firmware.Health) { f.Disk = func() string { return "read-only file system" } },
	fleet.CheckPeripherals:    func(f *firmware.Health) { f.Missing = "env: nothing answers at address 0x76 of i2c-1" },
	fleet.CheckWorkloads:      func(f *firmware.Health) { f.Running = []string{"b"} },
	fleet.CheckUndervoltage:   func(f *firmware.Health) { f.Undervoltage = true },
}

// A check that fails in the trial restores the old files, and the message names the check.
func TestEachCheckThatFailsRollsBack(t *testing.T) {
	for check, breakIt := range broken {
		t.Run(check, func(t *testing.T) {
			b := boothelper.TrialProfile()
			b.Health = fleet.BootHealth{
				Deadline:  metav1.Duration{Duration: 5 * time.Minute},
				StableFor: metav1.Duration{Duration: 2 * time.Minute},
				Checks:    []string{fleet.CheckAgentRunning, check},
			}
			w, f := newBoard(t, b)
			st, j, h := w.live(f, func(w *fakeBoard) firmware.Health {
				now := healthy()
				if like(w.runs, w.new) {
					breakIt(&now)
				}
				return now
			})
			w.check(st, j, h, wire.FirmwareRolledBack)
			if !strings.Contains(st.Message, check+": ") || !strings.Contains(st.Message, "after 5m0s") ||
				!slices.Contains(st.Bad, f.Digest) {
				t.Errorf("the status is %+v, want check %s in its message, and the configuration in Bad", st, check)
			}
		})
	}
	// Checks that fail at first and then hold for long enough keep the configuration; checks that
	// hold only briefly do not.
	for rule, c := range map[string]struct {
		bad  func(uptime time.Duration) bool
		want string
	}{
		"healthy after two minutes":            {func(up time.Duration) bool { return up < 2*time.Minute }, wire.FirmwareUpToDate},
		"never healthy for two minutes":        {func(up time.Duration) bool { return up/time.Minute%2 == 0 }, wire.FirmwareRolledBack},
		"healthy too late before the deadline": {func(up time.Duration) bool { return up < 4*time.Minute }, wire.FirmwareRolledBack},
	} {
		t.Run(rule, func(t *testing.T) {
			b := boothelper.TrialProfile()
			b.Health = fleet.BootHealth{
				Deadline:  metav1.Duration{Duration: 5 * time.Minute},
				StableFor: metav1.Duration{Duration: 2 * time.Minute},
			}
			w, f := newBoard(t, b)
			st, j, h := w.live(f, func(w *fakeBoard) firmware.Health {
				now := healthy()
				if like(w.runs, w.new) && w.trying && c.bad(w.uptime) {
					now.Engine = "no answer"
				}
				return now
			})
			w.check(st, j, h, c.want)
		})
	}
	// Time in which the agent stands still does not count as holding, because the first facts after
	// it are old.
	t.Run("healthy for a moment before the agent stands still", func(t *testing.T) {
		b := boothelper.TrialProfile()
		b.Health = fleet.BootHealth{
			Deadline:  metav1.Duration{Duration: 20 * time.Minute},
			StableFor: metav1.Duration{Duration: 2 * time.Minute},
		}
		w, f := newBoard(t, b)
		looks := 0
		st, j, h := w.live(f, func(w *fakeBoard) firmware.Health {
			now := healthy()
			if like(w.runs, w.new) && w.trying {
				if looks++; looks == 4 {
					w.uptime += 5 * time.Minute
				} else if looks > 4 {
					now.Engine = "no answer"
				}
			}
			return now
		})
		w.check(st, j, h, wire.FirmwareRolledBack)
	})
}
