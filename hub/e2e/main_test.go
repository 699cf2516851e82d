// Package e2e tries both programs the way people use them: built without cgo, run
// as processes that can be killed, with real ports, certificates, engines and
// kubectl.
//
// It has tests only, and knows the programs by what they print, answer and leave
// behind; the one thing that it takes from another room is how to get a kubectl.
// What a room does by itself is that room's test.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// leaseInterval and grace are the shortest that the hub accepts and that a busy
// machine with two processors still keeps.
const (
	leaseInterval = time.Second
	grace         = 6 * time.Second
)

// testLong is set by make test-long.
var testLong = os.Getenv("FLOTILLA_LONG") != ""

func TestMain(m *testing.M) {
	code := 1
	defer func() { os.Exit(code) }()
	if addr := os.Getenv(devicesOf); addr != "" {
		code = playDevices(addr)
		return
	}
	defer func() {
		if workshop != "" {
			_ = os.RemoveAll(workshop) // nothing in it is of use to anybody
		}
	}()
	code = m.Run()
}

// readSources opens what the programs are built from: go test takes the last run's outcome for today's
// where every file that the tests have opened is as it was, and does not see what they build.
var readSources = sync.OnceValue(func() error {
	const files = "{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$.Dir}}/{{.}}\n{{end}}{{range $.EmbedFiles}}{{$.Dir}}/{{.}}\n{{end}}{{end}}{{end}}"
	list, err := exec.Command("go", "list", "-deps", "-f", files, "flotilla.dev/hub", "flotilla.dev/hub/cli/quickstart", "flotilla.dev/device", "flotilla.dev/device/simulate").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for _, path := range append(strings.Fields(string(list)), repository+"/go.mod") {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_ = f.Close() // it was only read
	}
	return nil
})

// workshop is where the programs of this test run are.
var workshop string

// A platform is what a program is built for.
type platform struct{ arch, arm string }

func (p platform) String() string {
	if p.arm != "" {
		return p.arch + "/v" + p.arm
	}
	return p.arch
}

// here is this machine's.
var here = platform{arch: runtime.GOARCH}

type workpiece struct {
	program string
	platform
}

var (
	buildsMu sync.Mutex
	builds   = map[workpiece]func() (string, error){}
)

// program returns the path of flotilla-hub, -device or -simulate as releases are made,
// and builds it the first time.
func program(t testing.TB, name string, p platform) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this runs the real programs")
	}
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("E2E_PROGRAMS"); dir != "" && p == here { // make faults builds them once
		return filepath.Join(dir, "flotilla-"+name)
	}
	buildsMu.Lock()
	if workshop == "" {
		dir, err := os.MkdirTemp("", "flotilla-e2e-")
		if err != nil {
			buildsMu.Unlock()
			t.Fatal(err)
		}
		workshop = dir
	}
	w := workpiece{name, p}
	if builds[w] == nil {
		builds[w] = sync.OnceValues(func() (string, error) { return build(w) })
	}
	do := builds[w]
	buildsMu.Unlock()
	path, err := do()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func build(w workpiece) (string, error) {
	dir := filepath.Join(workshop, w.arch+w.arm)
	path := filepath.Join(dir, "flotilla-"+w.program)
	cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w", "-o", path, "flotilla.dev/"+strings.Replace(w.program, "simulate", "device/simulate", 1))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false", "GOOS=linux", "GOARCH="+w.arch, "GOARM="+w.arm)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build flotilla-%s for %s: %w\n%s", w.program, w.platform, err, out)
	}
	return path, nil
}

// need skips a test for want of real software, which is a failure where CI is true.
func need(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// await waits until do returns nil, and fails with what it said last.
func await(t testing.TB, what string, within time.Duration, do func() error) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s did not happen within %s: %v", what, within, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
