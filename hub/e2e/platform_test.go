package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// platforms are the targets of a release, each with its emulator.
var platforms = []struct {
	platform
	emulator string
}{
	{platform{"amd64", ""}, "qemu-x86_64-static"},
	{platform{"arm64", ""}, "qemu-aarch64-static"},
	{platform{"arm", "7"}, "qemu-arm-static"},
	{platform{"arm", "6"}, "qemu-arm-static"},
}

// budget is the size limit for a stripped program in bytes. The clients of PostgreSQL and for MQTT
// brokers take 4.5 MB of the hub. slices.SortFunc adds 20 kB for each struct type that it sorts;
// sort.Slice adds nothing.
var budget = map[string]int64{"device": 17_150_000, "hub": 53_700_000}

// TestPlatforms builds both programs for every release target and checks their sizes. It runs
// programs for other processors in an emulator.
func TestPlatforms(t *testing.T) {
	t.Parallel()
	for _, p := range platforms {
		t.Run(p.String(), func(t *testing.T) {
			if p.arm == "7" && !testLong {
				t.Skip("make test-long: compiles for minutes, and behaves like ARMv6")
			}
			for name, most := range budget {
				path := program(t, name, p.platform)
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("flotilla-%s for %s: %.1f MB", name, p, float64(info.Size())/1e6)
				if info.Size() > most {
					t.Errorf("flotilla-%s for %s has %d bytes, its budget is %d: `go tool nm -size -sort size` shows the symbols "+
						"of an unstripped program", name, p, info.Size(), most)
				}
			}
			run := func(name string, args ...string) string {
				t.Helper()
				c := command{path: program(t, name, p.platform), args: args}
				if p.arch != here.arch {
					emulator, err := exec.LookPath(p.emulator)
					if err != nil {
						need(t, "%s is not installed (Debian's qemu-user-static)", p.emulator)
					}
					c.path, c.args = emulator, append([]string{c.path}, args...)
				}
				r := c.run(t)
				if r.code != 0 {
					t.Errorf("flotilla-%s %s ended with code %d: %s", name, strings.Join(args, " "), r.code, r.err)
				}
				return r.out
			}
			if out := run("hub", "version"); !strings.HasPrefix(out, "flotilla-hub ") ||
				!strings.Contains(out, " linux/"+p.arch+" ") {
				t.Errorf("flotilla-hub version prints %q, want its name and platform", out)
			}
			if out := run("hub", "serve", "--print-config"); !strings.Contains(out, "node-monitor-grace-period: 40s") {
				t.Errorf("flotilla-hub serve --print-config prints %q, want the default grace period", out)
			}
			if out := run("device", "version"); !strings.HasPrefix(out, "flotilla-device ") {
				t.Errorf("flotilla-device version prints %q, want its name", out)
			}
			var report struct {
				Host struct {
					Arch, Kernel string
				}
				Capacity struct {
					CPUs, Memory int64
				}
			}
			out := run("device", "probe", "--json")
			if err := json.Unmarshal([]byte(out), &report); err != nil {
				t.Fatalf("%v in %q", err, out)
			}
			if report.Host.Arch != p.arch || report.Host.Kernel == "" || report.Capacity.CPUs < 1 ||
				report.Capacity.Memory < 1<<20 {
				t.Errorf("flotilla-device probe --json prints %+v in\n%s", report, out)
			}
		})
	}
}
