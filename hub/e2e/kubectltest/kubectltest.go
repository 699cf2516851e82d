// Package kubectltest gives tests the real kubectl in several versions, and a program that uses
// client-go.
//
// Each is built once from its module below testdata, into the user's cache directory. The package
// does not know the hub: the test's kubeconfig names the server.
package kubectltest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Minors are the versions for tests, oldest first. make test-long adds one between them, whose
// build takes minutes and which behaves like one of the others.
var Minors = []string{"1.29", Newest}

func init() {
	if os.Getenv("FLOTILLA_LONG") != "" {
		Minors = []string{"1.29", "1.32", Newest}
	}
}

// Newest is the version for tests that need only one version.
const Newest = "1.37"

// patience is the time limit of one command. A test ends a watch itself.
const patience = 4 * time.Minute

// Build returns the path of kubectl of a minor version such as "1.37". The first build takes
// minutes and needs the Go module proxy. If the build fails, the test is skipped; if CI is true,
// the test fails.
func Build(t testing.TB, minor string) string {
	t.Helper()
	return made(t, "kubectl "+minor, func() (string, error) {
		source, err := sourceOf("kubectl", "v"+minor)
		if err != nil {
			return "", fmt.Errorf("%w: use one of %s", err, strings.Join(Minors, ", "))
		}
		flags := ""
		for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
			flags += fmt.Sprintf(" -X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s", pkg, release(source), pkg, pkg,
				strings.TrimPrefix(minor, "1."))
		}
		// The user agent has the program's name, which must be kubectl.
		return build(module{source, "kubectl-" + minor, "kubectl", flags})
	})
}

// ClientGo returns the path of the program of testdata/clientgo, which uses client-go like a
// controller.
func ClientGo(t testing.TB) string {
	t.Helper()
	return made(t, "clientgo", func() (string, error) {
		source, err := sourceOf("clientgo")
		if err != nil {
			return "", err
		}
		return build(module{source, "clientgo", "clientgo", ""})
	})
}

func made(t testing.TB, what string, make func() (string, error)) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs the real kubectl")
	}
	path, err := make()
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("build %s: %v", what, err)
	}
	t.Skipf("no %s: %v", what, err)
	return ""
}

// A module is a program with its own go.mod.
type module struct{ source, id, program, flags string }

func build(m module) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		b, err := os.ReadFile(filepath.Join(m.source, name))
		if err != nil {
			return "", err
		}
		sum.Write(b)
	}
	flags := "-s -w" + m.flags
	sum.Write([]byte(runtime.Version() + flags))
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "flotilla-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%s", m.id, hex.EncodeToString(sum.Sum(nil))[:12]), m.program)

	// One test program builds while others wait for the lock.
	lock, err := os.OpenFile(filepath.Join(dir, m.id+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // releases the lock on the build
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another build: %w", err)
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fresh := path + ".new"
	cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags="+flags, "-o", fresh, ".")
	cmd.Dir = m.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, last(string(out), 500))
	}
	if err := os.Rename(fresh, path); err != nil {
		return "", err
	}
	return path, nil
}

// release returns the Kubernetes version of a module: v1.37.2 for v0.37.2.
func release(source string) string {
	b, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return "v0.0.0" // the module exists, and kubectl works without its version
	}
	_, rest, _ := strings.Cut(string(b), "k8s.io/kubectl v0.")
	patch, _, _ := strings.Cut(rest, "\n")
	return "v1." + strings.TrimSpace(patch)
}

// sourceOf finds a module below testdata from any directory of the repository.
func sourceOf(names ...string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		source := filepath.Join(dir, "hub", "kube", "testdata", filepath.Join(names...))
		if _, err := os.Stat(filepath.Join(source, "go.mod")); err == nil {
			return source, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("module %s not found", filepath.Join(names...))
		}
	}
}

// Run runs kubectl with a kubeconfig, and returns its output and exit code. Home and caches belong
// to the test.
func Run(t testing.TB, kubectl, kubeconfig string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return RunInput(t, kubectl, kubeconfig, "", args...)
}

// RunInput is Run with standard input.
func RunInput(t testing.TB, kubectl, kubeconfig, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, kubectl, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	cmd.Env = Env(t, kubeconfig)
	cmd.WaitDelay = patience
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("kubectl %s did not end within %s\n%s%s", strings.Join(args, " "), patience, out.String(), errs.String())
	case err != nil && !errors.As(err, &exit):
		t.Fatalf("run kubectl: %v", err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Env returns kubectl's environment: the test's home, without the user's configuration.
func Env(t testing.TB, kubeconfig string) []string {
	t.Helper()
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home(t), "KUBECONFIG=" + kubeconfig, "TZ=UTC", "LANG=C.UTF-8", "TERM=dumb",
		"GOGC=off", // a short process needs no garbage collection
	}
}

// home returns a test's home directory. It is the same in each run, so that kubectl finds its
// cached API.
func home(t testing.TB) string {
	sum := sha256.Sum256([]byte(t.Name()))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("kubectltest-%d-%x", os.Getpid(), sum[:6]))
	if os.Mkdir(dir, 0o700) == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // an old cache does not matter
	}
	return dir
}

func last(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
