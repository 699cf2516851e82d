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

// healthy is a board on which every check holds.
func healthy() firmware.Fares {
	return firmware.Fares{Hub: true, Disk: fine, Desired: []string{"a", "b"}, Running: []string{"a", "b"}}
}

// broken has for each check what makes it fail.
var broken = map[string]func(*firmware.Fares){
	fleet.CheckEnginePing:     func(f *firmware.Fares) { f.Engine = "cannot connect to the Docker daemon" },
	fleet.CheckHubReconnected: func(f *firmware.Fares) { f.Hub = false },
	fleet.CheckDiskWritable:   func(f *firmware.Fares) { f.Disk = func() string { return "read-only file system" } },
	fleet.CheckPeripherals:    func(f *firmware.Fares) { f.Missing = "env: nothing answers at address 0x76 of i2c-1" },
	fleet.CheckWorkloads:      func(f *firmware.Fares) { f.Running = []string{"b"} },
	fleet.CheckUndervoltage:   func(f *firmware.Fares) { f.Undervoltage = true },
}

// From the trial to the way back, on the device alone: the message names the check.
func TestEachCheckThatFailsRollsBack(t *testing.T) {
	for check, breakIt := range broken {
		t.Run(check, func(t *testing.T) {
			b := boothelper.TrialProfile()
			b.Health = fleet.BootHealth{Deadline: metav1.Duration{Duration: 5 * time.Minute}, StableFor: metav1.Duration{Duration: 2 * time.Minute}, Checks: []string{fleet.CheckAgentRunning, check}}
			w, f := newWorld(t, b)
			st, j, h := w.live(f, func(w *world) firmware.Fares {
				now := healthy()
				if like(w.runs, w.new) {
					breakIt(&now)
				}
				return now
			})
			w.check(st, j, h, wire.FirmwareRolledBack)
			if !strings.Contains(st.Message, check+": ") || !strings.Contains(st.Message, "after 5m0s") || !slices.Contains(st.Bad, f.Digest) {
				t.Errorf("it says %+v", st)
			}
		})
	}
	// What fails for a while only, and then holds for as long as it must, is kept; what holds
	// for a moment only is not.
	for rule, c := range map[string]struct {
		bad  func(uptime time.Duration) bool
		want string
	}{
		"well after two minutes":   {func(up time.Duration) bool { return up < 2*time.Minute }, wire.FirmwareUpToDate},
		"never well for so long":   {func(up time.Duration) bool { return up/time.Minute%2 == 0 }, wire.FirmwareRolledBack},
		"well too late to be sure": {func(up time.Duration) bool { return up < 4*time.Minute }, wire.FirmwareRolledBack},
	} {
		t.Run(rule, func(t *testing.T) {
			b := boothelper.TrialProfile()
			b.Health = fleet.BootHealth{Deadline: metav1.Duration{Duration: 5 * time.Minute}, StableFor: metav1.Duration{Duration: 2 * time.Minute}}
			w, f := newWorld(t, b)
			st, j, h := w.live(f, func(w *world) firmware.Fares {
				now := healthy()
				if like(w.runs, w.new) && w.trying && c.bad(w.uptime) {
					now.Engine = "it does not answer"
				}
				return now
			})
			w.check(st, j, h, c.want)
		})
	}
	// Nobody knows how the board fared while its agent stood still, and what it says first is from before.
	t.Run("well for a moment, and then not looked at", func(t *testing.T) {
		b := boothelper.TrialProfile()
		b.Health = fleet.BootHealth{Deadline: metav1.Duration{Duration: 20 * time.Minute}, StableFor: metav1.Duration{Duration: 2 * time.Minute}}
		w, f := newWorld(t, b)
		looks := 0
		st, j, h := w.live(f, func(w *world) firmware.Fares {
			now := healthy()
			if like(w.runs, w.new) && w.trying {
				if looks++; looks == 4 {
					w.uptime += 5 * time.Minute
				} else if looks > 4 {
					now.Engine = "it does not answer"
				}
			}
			return now
		})
		w.check(st, j, h, wire.FirmwareRolledBack)
	})
}
