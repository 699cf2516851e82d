// Package e2e tests both programs as users run them: built without cgo, as processes with real
// ports, certificates, engines and kubectl, which can be killed.
//
// It has only tests, and knows the programs by their output, their responses and their files. From
// the product it uses only kubectltest. Tests of a single package are in that package.
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

// leaseInterval and grace are the shortest that the hub accepts and that hold on a busy machine
// with two processors.
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
			_ = os.RemoveAll(buildDir) // its files are not needed any more
		}
	}()
	code = m.Run()
}

// readSources opens the sources of the programs. go test reuses a result if all files that a test
// opened are unchanged, but does not see files that a build in the test reads.
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
		_ = f.Close() // opened for reading only
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

// here is this machine's platform.
var here = platform{arch: runtime.GOARCH}

type workpiece struct {
	program string
	platform
}

var (
	buildsMu sync.Mutex
	builds   = map[workpiece]func() (string, error){}
)

// program builds flotilla-hub, -device or -simulate as for a release, once, and returns its path.
func program(t testing.TB, name string, p platform) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this runs the real programs")
	}
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("E2E_PROGRAMS"); dir != "" && p == here { // built by make faults
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

// need skips a test that needs missing software. If CI is true, it fails.
func need(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// await waits until do returns nil, and fails with its last error.
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
