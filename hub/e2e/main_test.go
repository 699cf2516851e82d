// Package e2e tests both programs as users run them: built without cgo, as processes that can be
// killed, with real ports, certificates, engines and kubectl.
//
// It has only tests, which use the programs' output, responses and files. From the product it
// imports only kubectltest. Tests of a single package are in that package.
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

// leaseInterval and grace are the shortest that the hub accepts and that a busy machine with two
// processors can keep.
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
		if buildDir != "" {
			_ = os.RemoveAll(buildDir) // failures of the removal do not matter
		}
	}()
	code = m.Run()
}

// readSources opens the programs' sources. go test caches a result while the files that the test
// opened are unchanged, but does not see the files that a build in the test reads.
var readSources = sync.OnceValue(func() error {
	const files = "{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$.Dir}}/{{.}}\n{{end}}{{range $.EmbedFiles}}{{$.Dir}}/{{.}}\n{{end}}{{end}}{{end}}"
	list, err := exec.Command("go", "list", "-deps", "-f", files, "flotilla.dev/hub", "flotilla.dev/hub/cli/quickstart",
		"flotilla.dev/device", "flotilla.dev/device/simulate").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for _, path := range append(strings.Fields(string(list)), repository+"/go.mod") {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_ = f.Close() // opening the file is enough
	}
	return nil
})

// buildDir has the programs of this test run.
var buildDir string

// A platform is the target of a build.
type platform struct{ arch, arm string }

func (p platform) String() string {
	if p.arm != "" {
		return p.arch + "/v" + p.arm
	}
	return p.arch
}

// here is the platform of this machine.
var here = platform{arch: runtime.GOARCH}

type workpiece struct {
	program string
	platform
}

var (
	buildsMu sync.Mutex
	builds   = map[workpiece]func() (string, error){}
)

// program builds flotilla-hub, -device or -simulate as for a release. It builds each once, and
// returns the program's path.
func program(t testing.TB, name string, p platform) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs the real programs")
	}
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("E2E_PROGRAMS"); dir != "" && p == here { // make faults has built the program
		return filepath.Join(dir, "flotilla-"+name)
	}
	buildsMu.Lock()
	if buildDir == "" {
		dir, err := os.MkdirTemp("", "flotilla-e2e-")
		if err != nil {
			buildsMu.Unlock()
			t.Fatal(err)
		}
		buildDir = dir
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
	dir := filepath.Join(buildDir, w.arch+w.arm)
	path := filepath.Join(dir, "flotilla-"+w.program)
	cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w", "-o", path,
		"flotilla.dev/"+strings.Replace(w.program, "simulate", "device/simulate", 1))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false", "GOOS=linux",
		"GOARCH="+w.arch, "GOARM="+w.arm)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build flotilla-%s for %s: %w\n%s", w.program, w.platform, err, out)
	}
	return path, nil
}

// need skips a test because software is missing. If CI is true, the test fails.
func need(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// await waits until do returns nil. After the time limit it fails with the last error.
func await(t testing.TB, what string, within time.Duration, do func() error) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
