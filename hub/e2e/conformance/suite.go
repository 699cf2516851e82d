package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// module is the directory of the suite's module.
const module = "hub/e2e/conformance/testdata/suite"

// A suite is the directory of the programs that are built from Kubernetes' sources.
type suite struct{ dir, source string }

// A product is a program of the suite's module.
type product struct {
	name string
	what string // description for the user
	args []string
	env  []string
}

// products run on this machine; contents run in containers.
var products = []product{
	{name: "kubectl", what: "kubectl", args: []string{"build", "k8s.io/kubernetes/cmd/kubectl"}},
	{name: "ginkgo", what: "the suite's runner", args: []string{"build", "github.com/onsi/ginkgo/v2/ginkgo"}},
	{name: "e2e.test", what: "the suite, which takes ten to twenty minutes on two cores",
		args: []string{"test", "-c", "-vet=off", "k8s.io/kubernetes/test/e2e"}},
}

var contents = []product{
	{name: "agnhost", what: "the image agnhost", args: []string{"build", "k8s.io/kubernetes/test/images/agnhost"},
		env: static},
	{name: "nnp", what: "the image nonewprivs", args: []string{"build", "k8s.io/kubernetes/test/images/nonewprivs"},
		env: static},
}

var static = []string{"CGO_ENABLED=0"}

func (s suite) program(name string) string { return filepath.Join(s.dir, name) }

// place returns the directory for the suite of this go.mod and this compiler.
func place(cache string) (suite, error) {
	source, err := filepath.Abs(module)
	if err != nil {
		return suite{}, err
	}
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return suite{}, fmt.Errorf("run this in the root of the repository: %w", err)
		}
		sum.Write(b)
	}
	sum.Write([]byte(runtime.Version()))
	return suite{filepath.Join(cache, hex.EncodeToString(sum.Sum(nil))[:12]), source}, nil
}

// built reports whether all of these products exist.
func (s suite) built(of []product) bool {
	return !slices.ContainsFunc(of, func(p product) bool {
		_, err := os.Stat(s.program(p.name))
		return err != nil
	})
}

// build builds missing products. Of several concurrent runs one builds while the others wait.
func (s suite) build(ctx context.Context, these []product) error {
	if s.built(these) {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock on the directory
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("wait for another build in %s: %w", s.dir, err)
	}
	for _, p := range these {
		if err := s.make(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (s suite) make(ctx context.Context, p product) error {
	path := s.program(p.name)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fmt.Printf("building %s\n", p.what)
	// The linker writes the version into the programs.
	version, err := s.version(ctx)
	if err != nil {
		return err
	}
	flags := "-s -w"
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
		flags += fmt.Sprintf(" -X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s", pkg, version, pkg, pkg, minor)
	}
	args := slices.Concat(p.args[:len(p.args)-1], []string{"-ldflags=" + flags, "-o", path + ".new"},
		p.args[len(p.args)-1:])
	if _, err := s.tool(ctx, p.env, args...); err != nil {
		return fmt.Errorf("build %s: %w", p.what, err)
	}
	return os.Rename(path+".new", path)
}

// version returns the suite's release of Kubernetes.
func (s suite) version(ctx context.Context) (string, error) {
	out, err := s.tool(ctx, nil, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	return strings.TrimSpace(string(out)), err
}

// sources returns the directory of the suite's sources.
func (s suite) sources(ctx context.Context) (string, error) {
	out, err := s.tool(ctx, nil, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	return strings.TrimSpace(string(out)), err
}

// tool runs the go command in the suite's module.
func (s suite) tool(ctx context.Context, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.source
	cmd.Env = append(append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false"), env...)
	return output(cmd)
}

// output runs a command. The error includes the command's output.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the command ends if this process is killed
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(errs.String() + out.String())
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, text[max(0, len(text)-1000):])
	}
	return out.Bytes(), nil
}

// specs lists the specs marked [Conformance], sorted by name.
func (s suite) specs(ctx context.Context) ([]*spec, error) {
	dir, err := os.MkdirTemp("", "flotilla-conformance-list-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, s.program("e2e.test"), "--ginkgo.dry-run", `--ginkgo.focus=\[Conformance\]`,
		"--ginkgo.json-report="+filepath.Join(dir, "list.json"), "--provider=skeleton")
	cmd.Dir = dir
	if _, err := output(cmd); err != nil {
		return nil, fmt.Errorf("list the specs: %w", err)
	}
	reports, err := read(filepath.Join(dir, "list.json"))
	if err != nil {
		return nil, err
	}
	var all []*spec
	for _, r := range reports {
		if r.LeafNodeType == "It" && r.State != "skipped" {
			all = append(all, &spec{name: r.name()})
		}
	}
	slices.SortFunc(all, func(a, b *spec) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// A report is ginkgo's JSON for one spec.
type report struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 int64 // nanoseconds
	Failure                 struct{ Message string }
}

func (r report) name() string {
	return strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " ")
}

// read reads a JSON report of ginkgo.
func read(file string) ([]report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var suites []struct{ SpecReports []report }
	if err := json.Unmarshal(b, &suites); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var all []report
	for _, s := range suites {
		all = append(all, s.SpecReports...)
	}
	return all, nil
}
