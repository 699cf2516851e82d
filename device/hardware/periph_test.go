package hardware

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAFailedChildLosesOnlyTheBuses(t *testing.T) {
	for _, tt := range []struct{ name, mode, want string }{
		{"a driver that hangs", "child-hangs", "hangs"},
		{"a driver that panics", "child-panics", "index out of range in a driver"},
		{"endless output", "child-floods", "read the buses with periph"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Periph{args: []string{tt.mode}, limit: 500 * time.Millisecond}
			if tt.mode != "child-hangs" {
				p.limit = 0
			}
			r, err := Probe(t.Context(), Options{Periph: p})
			if err != nil || r.Capacity.CPUs == 0 {
				t.Fatalf("with a failed child the probe returns %v, capacity %+v", err, r.Capacity)
			}
			if text := strings.Join(r.Problems, "\n"); !strings.Contains(text, tt.want) {
				t.Errorf("the problems %q do not contain %q", text, tt.want)
			}
		})
	}
}

func TestTheLastGoodResultIsKept(t *testing.T) {
	p := &Periph{args: []string{"child-answers"}}
	good, err := p.Read(t.Context())
	if err != nil || len(good.Buses.I2C) != 1 {
		t.Fatalf("got %+v, %v; want one I2C bus", good, err)
	}
	p.args = []string{"child-panics"}
	if again, err := p.Read(t.Context()); err != nil || !reflect.DeepEqual(again, good) {
		t.Errorf("a result that is minutes old was not reused: %+v, %v", again, err)
	}
	p.next = time.Time{} // the result counts as old
	if kept, err := p.Read(t.Context()); err == nil || !reflect.DeepEqual(kept, good) {
		t.Errorf("after a failure: %+v, %v; want the last good answer and the error", kept, err)
	}
	p.args = []string{"child-answers"}
	if _, err := p.Read(t.Context()); err == nil {
		t.Error("a failed child is started again at once")
	}
	p.next = time.Time{}
	if _, err := p.Read(t.Context()); err != nil {
		t.Errorf("with a working child again: %v", err)
	}
}

func TestTheChildHasNoPrivilege(t *testing.T) {
	if os.Geteuid() != 0 {
		need(t, "root, to drop privileges")
	}
	got, err := (&Periph{args: []string{"child-answers"}}).Read(t.Context())
	if err != nil || !reflect.DeepEqual(got.Buses.I2C, []string{"uid-65534"}) {
		t.Errorf("the child ran as %v, %v; want uid 65534", got.Buses.I2C, err)
	}
}

func TestOnlyTheGroupsOfBusesAreKept(t *testing.T) {
	root := rootOf(t, map[string]string{"etc/group": "root:x:0:\nsudo:x:27:gpio\ngpio:x:986:pi\ni2c:x:0:\nspi:x:989:\n"})
	if got := groupIDs(tree(root), busGroups); !reflect.DeepEqual(got, []uint32{986, 989}) {
		t.Errorf("the groups are %v, want those of gpio and spi: 986 and 989", got)
	}
}

// need skips a test that this machine cannot run; with CI=true it fails the test instead.
func need(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this test needs %s", what)
	}
	t.Skipf("this test needs %s", what)
}

// A static program works in a directory that looks like a board: built for this machine, or for ARM
// in an emulator.
func TestTheProbeRunsInTheRootOfABoard(t *testing.T) {
	if os.Geteuid() != 0 {
		need(t, "root, to change the root directory")
	}
	for _, tt := range []struct{ name, board, goarch, goarm, emulator, want string }{
		{"Pi 4, natively", "raspberrypi-4", runtime.GOARCH, "", "", "raspberrypi4"},
		{"Pi 4, 64 bit", "raspberrypi-4", "arm64", "", "/usr/bin/qemu-aarch64-static", "raspberrypi4"},
		{"Zero W, ARMv6", "raspberrypi-armv6", "arm", "6", "/usr/bin/qemu-arm-static", "raspberrypi-zero-w"},
		{"BeagleBone, 32 bit", "beaglebone-black", "arm", "6", "/usr/bin/qemu-arm-static", "beaglebone-black"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.CopyFS(root, os.DirFS(filepath.Join(boards, tt.board, "root"))); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(root, "dev/null"), "") // stdin of the child process
			build(t, filepath.Join(root, "probe"), tt.goarch, tt.goarm)
			command := []string{"/probe"}
			if tt.emulator != "" {
				qemu, err := os.ReadFile(tt.emulator)
				if err != nil {
					need(t, tt.emulator+" (package qemu-user-static)")
				}
				if err := os.WriteFile(filepath.Join(root, "emulator"), qemu, 0o755); err != nil {
					t.Fatal(err)
				}
				// An old ARM1176 must run programs for ARMv6.
				command = []string{"/emulator", "/probe"}
				if tt.board == "raspberrypi-armv6" {
					command = []string{"/emulator", "-cpu", "arm1176", "/probe"}
				}
			}
			var r Report
			if err := json.Unmarshal(inside(t, root, command), &r); err != nil {
				t.Fatal(err)
			}
			if r.Board.Name != tt.want || r.Host.Arch != tt.goarch || r.Capacity.Memory == 0 || r.Host.BootID == "" {
				t.Errorf("the report has board %q, %s, %d bytes of memory, boot %q", r.Board.Name, r.Host.Arch, r.Capacity.Memory,
					r.Host.BootID)
			}
			var f Found
			if err := json.Unmarshal(inside(t, root, append(command, ChildCommand)), &f); err != nil {
				t.Fatal(err)
			}
			if len(f.Buses.LEDs) == 0 {
				t.Errorf("periph finds no LED of the board: %+v", f)
			}
			if tt.emulator == "" && !reflect.DeepEqual(r.Buses, f.Buses) {
				t.Errorf("the report has the buses %+v, the child found %+v; problems %q", r.Buses, f.Buses, r.Problems)
			}
		})
	}
}

func build(t *testing.T, out, goarch, goarm string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-o", out, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+goarch, "GOARM="+goarm, "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build for %s: %v\n%s", goarch, err, text)
	}
}

func inside(t *testing.T, root string, command []string) []byte {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, errs.String())
	}
	return out
}
