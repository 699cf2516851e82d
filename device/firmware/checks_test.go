package firmware

import (
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
)

// before returns the health of a board on which every check holds.
func before() Health {
	return Health{Hub: true, Disk: writable, Desired: []string{"a", "b"}, Running: []string{"a", "b"}}
}

// broken makes each check fail.
var broken = map[string]struct {
	how func(*Health)
	why string
}{
	fleet.CheckEnginePing: {
		func(f *Health) { f.Engine = "cannot connect to the Docker daemon" },
		"cannot connect to the Docker daemon",
	},
	fleet.CheckHubReconnected: {
		func(f *Health) { f.Hub = false },
		"the hub was connected before the trial and is not now",
	},
	fleet.CheckDiskWritable: {
		func(f *Health) { f.Disk = func() string { return "read-only file system" } },
		"read-only file system",
	},
	fleet.CheckPeripherals: {
		func(f *Health) { f.Missing = "env: nothing answers at address 0x76 of i2c-1" },
		"env: nothing answers",
	},
	fleet.CheckWorkloads: {
		func(f *Health) { f.Running = []string{"b"} },
		"pod a ran before the trial and does not now",
	},
	fleet.CheckUndervoltage: {func(f *Health) { f.Undervoltage = true }, "voltage is too low"},
}

func TestEachCheckFindsItsOwnFault(t *testing.T) {
	was := Baseline{Hub: true, Running: []string{"a", "b"}}
	for _, check := range fleet.BootChecks {
		if out := failing([]string{check}, was, before()); out != nil {
			t.Errorf("check %s fails on a healthy board: %q", check, out)
		}
		for of, x := range broken {
			now := before()
			x.how(&now)
			out := failing([]string{check}, was, now)
			if (len(out) == 1) != (of == check) ||
				of == check && (!strings.HasPrefix(out[0], check+": ") || !strings.Contains(out[0], x.why)) {
				t.Errorf("check %s, with %s broken, reports %q; only the broken check must fail", check, of, out)
			}
		}
		if _, can := broken[check]; !can && check != fleet.CheckAgentRunning {
			t.Errorf("the test lacks a case for check %s", check)
		}
	}
	for rule, c := range map[string]struct {
		was Baseline
		now Health
	}{
		"a hub that was offline before the trial does not fail its check": {Baseline{}, Health{Disk: writable}},
		"a pod that the hub has removed does not fail its check":          {was, Health{Hub: true, Disk: writable, Desired: []string{"b"}, Running: []string{"b"}}},
	} {
		if out := failing(fleet.BootChecks, c.was, c.now); out != nil {
			t.Errorf("%s, but these checks fail: %q", rule, out)
		}
	}
	if out := failing([]string{"of-a-newer-hub"}, was, before()); len(out) != 1 {
		t.Errorf("an unknown check does not fail: %q", out)
	}
}

func writable() string { return "" }
