package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"flotilla.dev/shared/loopback"
)

// patience is the time limit for a start, and for a command that ends by itself.
const patience = 3 * time.Minute

// A process is a child process of the test.
type process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	output *outputBuffer
	over   chan struct{} // closed when the process has ended
}

// An outputBuffer stores both outputs of a process.
type outputBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *outputBuffer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *outputBuffer) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// start starts a program. The program is killed at the end of the test.
func start(t testing.TB, path string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return startCommand(t, cmd)
}

// startCommand is start for a prepared command.
func startCommand(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: filepath.Base(cmd.Path), cmd: cmd, output: &outputBuffer{}, over: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.over)
		_ = p.cmd.Wait() // ProcessState has the exit code
	}()
	t.Cleanup(func() {
		p.end(syscall.SIGTERM)
		healthy(t, p.name, p.output.String())
		if t.Failed() {
			t.Logf("the end of the output of %s:\n%s", p.name, tail(p.output.String(), 40))
		}
	})
	return p
}

// environment returns the test's environment without the programs' settings.
func environment(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "FLOTILLA_") {
			env = append(env, e)
		}
	}
	return append(env, more...)
}

// end sends a signal, and SIGKILL if the process does not end.
func (p *process) end(s syscall.Signal) {
	select {
	case <-p.over:
		return
	default:
	}
	_ = p.cmd.Process.Signal(s) // the process may have ended before
	select {
	case <-p.over:
	case <-time.After(patience):
		p.t.Errorf("%s did not exit %s after %s", p.name, patience, s)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // the process prints its goroutines
		select {
		case <-p.over:
		case <-time.After(10 * time.Second):
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // also kills its children, which keep its files open
			<-p.over
		}
	}
}

// kill sends SIGKILL.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// stop sends SIGTERM, after which the process must exit with code 0.
func (p *process) stop() {
	p.t.Helper()
	p.end(syscall.SIGTERM)
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("%s exited with code %d after SIGTERM, want 0", p.name, code)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// healthy fails if a program has panicked or used a wrong format string.
func healthy(t testing.TB, name, printed string) {
	t.Helper()
	for _, bad := range []string{"panic: ", "fatal error: ", "goroutine 1 ["} {
		if i := strings.Index(printed, bad); i >= 0 {
			t.Errorf("%s panicked: %s", name, printed[i:min(i+2000, len(printed))])
			return
		}
	}
	if m := formatted.FindString(printed); m != "" {
		t.Errorf("%s printed %q: a format string is wrong", name, m)
	}
}

// formatted matches the output of package fmt for a wrong format string.
var formatted = regexp.MustCompile(`%![a-zA-Z]?\([^)]*\)?`)

// A result is the output and exit code of a command.
type result struct {
	out, err string
	code     int
}

// A command is a program that ends by itself.
type command struct {
	path  string
	args  []string
	env   []string
	stdin string
	dir   string
}

func (c command) run(t testing.TB) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(c.stdin), &out, &errs, c.dir
	cmd.Env = environment(c.env...)
	cmd.WaitDelay = patience
	err := cmd.Run()
	var exit *exec.ExitError
	if ctx.Err() != nil {
		t.Fatalf("%s %s did not end within %s\n%s%s", filepath.Base(c.path), strings.Join(c.args, " "), patience,
			out.String(), errs.String())
	}
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	healthy(t, filepath.Base(c.path), errs.String())
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// output runs a command that must succeed.
func output(t testing.TB, path string, args ...string) string {
	t.Helper()
	r := command{path: path, args: args}.run(t)
	if r.code != 0 {
		t.Fatalf("%s %s exited with code %d: %s", filepath.Base(path), strings.Join(args, " "), r.code, r.err)
	}
	return r.out
}

// freePort returns an unused loopback address.
func freePort(t testing.TB) string {
	t.Helper()
	addr, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
