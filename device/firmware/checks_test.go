package firmware

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// before is how the board fares with its old files, and with any of which nothing is wrong.
func before() Fares {
	return Fares{Hub: true, Disk: fine, Desired: []string{"a", "b"}, Running: []string{"a", "b"}}
}

// broken is, for each check, what makes it fail.
var broken = map[string]struct {
	how func(*Fares)
	why string
}{
	fleet.CheckEnginePing:     {func(f *Fares) { f.Engine = "cannot connect to the Docker daemon" }, "cannot connect to the Docker daemon"},
	fleet.CheckHubReconnected: {func(f *Fares) { f.Hub = false }, "the hub was connected before, and is not"},
	fleet.CheckDiskWritable:   {func(f *Fares) { f.Disk = func() string { return "read-only file system" } }, "read-only file system"},
	fleet.CheckPeripherals:    {func(f *Fares) { f.Missing = "env: nothing answers at address 0x76 of i2c-1" }, "env: nothing answers"},
	fleet.CheckWorkloads:      {func(f *Fares) { f.Running = []string{"b"} }, "pod a ran before, and does not"},
	fleet.CheckUndervoltage:   {func(f *Fares) { f.Undervoltage = true }, "voltage is too low"},
}

// Each check fails for what it is named for, and for nothing else.
func TestEachCheckFindsItsOwn(t *testing.T) {
	was := Was{Hub: true, Running: []string{"a", "b"}}
	for _, check := range fleet.BootChecks {
		if out := failing([]string{check}, was, before()); out != nil {
			t.Errorf("%s fails where all is well: %q", check, out)
		}
		for of, x := range broken {
			now := before()
			x.how(&now)
			out := failing([]string{check}, was, now)
			if (len(out) == 1) != (of == check) || of == check && (!strings.HasPrefix(out[0], check+": ") || !strings.Contains(out[0], x.why)) {
				t.Errorf("%s where %s is broken: %q", check, of, out)
			}
		}
		if _, can := broken[check]; !can && check != fleet.CheckAgentRunning {
			t.Errorf("nothing is said of what %s finds", check)
		}
	}
	for rule, c := range map[string]struct {
		was Was
		now Fares
	}{
		"a site that was offline before is no reason": {Was{}, Fares{Disk: fine}},
		"nor is a pod that the hub has taken away":    {was, Fares{Hub: true, Disk: fine, Desired: []string{"b"}, Running: []string{"b"}}},
	} {
		if out := failing(fleet.BootChecks, c.was, c.now); out != nil {
			t.Errorf("%s: %q", rule, out)
		}
	}
	if out := failing([]string{"of-a-newer-hub"}, was, before()); len(out) != 1 {
		t.Errorf("a check that nobody knows holds: %q", out)
	}
}

// From the trial to the way back, on the device alone: the message names the check.
func TestEachCheckThatFailsRollsBack(t *testing.T) {
	for check, x := range broken {
		t.Run(check, func(t *testing.T) {
			b := trialProfile()
			b.Health = fleet.BootHealth{Deadline: metav1.Duration{Duration: 5 * time.Minute}, StableFor: metav1.Duration{Duration: 2 * time.Minute}, Checks: []string{fleet.CheckAgentRunning, check}}
			w, f := newWorld(t, b)
			st, j, h := w.live(f, func(w *world) Fares {
				now := before()
				if w.runs.like(w.new) {
					x.how(&now)
				}
				return now
			})
			w.check(st, j, h, wire.FirmwareRolledBack)
			if !strings.Contains(st.Message, check+": ") || !strings.Contains(st.Message, x.why) || !strings.Contains(st.Message, "after 5m0s") || !slices.Contains(st.Bad, f.Digest) {
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
			b := trialProfile()
			b.Health = fleet.BootHealth{Deadline: metav1.Duration{Duration: 5 * time.Minute}, StableFor: metav1.Duration{Duration: 2 * time.Minute}}
			w, f := newWorld(t, b)
			st, j, h := w.live(f, func(w *world) Fares {
				now := before()
				if w.runs.like(w.new) && w.trying && c.bad(w.uptime) {
					now.Engine = "it does not answer"
				}
				return now
			})
			w.check(st, j, h, c.want)
		})
	}
	// Nobody knows how the board fared while its agent stood still, and what it says first is from before.
	t.Run("well for a moment, and then not looked at", func(t *testing.T) {
		b := trialProfile()
		b.Health = fleet.BootHealth{Deadline: metav1.Duration{Duration: 20 * time.Minute}, StableFor: metav1.Duration{Duration: 2 * time.Minute}}
		w, f := newWorld(t, b)
		looks := 0
		st, j, h := w.live(f, func(w *world) Fares {
			now := before()
			if w.runs.like(w.new) && w.trying {
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
