package firmware

import (
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
)

// before is how the board fares with its old files, and with any of which nothing is wrong.
func before() Fares {
	return Fares{Hub: true, Disk: writable, Desired: []string{"a", "b"}, Running: []string{"a", "b"}}
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
		"a site that was offline before is no reason": {Was{}, Fares{Disk: writable}},
		"nor is a pod that the hub has taken away":    {was, Fares{Hub: true, Disk: writable, Desired: []string{"b"}, Running: []string{"b"}}},
	} {
		if out := failing(fleet.BootChecks, c.was, c.now); out != nil {
			t.Errorf("%s: %q", rule, out)
		}
	}
	if out := failing([]string{"of-a-newer-hub"}, was, before()); len(out) != 1 {
		t.Errorf("a check that nobody knows holds: %q", out)
	}
}

func writable() string { return "" }
