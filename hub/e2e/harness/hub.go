// Package harness starts a new hub for the programs attack and load, and joins devices to it. Like
// any client, it uses only the hub's sockets and command line.
package harness

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"flotilla.dev/shared/loopback"
)

// A Hub is a new hub with its administrator's credentials.
type Hub struct {
	Program, Dir     string
	HTTPS, MQTT, Dev string // addresses
	args             []string
	files            int
	Output           OutputBuffer
	Cmd              *exec.Cmd
	over             chan struct{}
	Down             atomic.Bool   // true from a kill until the next start has completed
	past             time.Duration // processor time of the hub's earlier processes
	Roots            *x509.CertPool
	Admin            *http.Client
}

// An OutputBuffer stores the hub's output.
type OutputBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *OutputBuffer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *OutputBuffer) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// FreeAddresses fills in unused addresses on loopback.
func FreeAddresses(to ...*string) (err error) {
	for _, addr := range to {
		if *addr, err = loopback.Address(); err != nil {
			return err
		}
	}
	return nil
}

// New starts a hub with further arguments. files limits its open files; 0 for this process's limit.
func New(ctx context.Context, program, dir string, files int, more ...string) (*Hub, error) {
	a := &Hub{Program: program, Dir: filepath.Join(dir, "hub"), files: files}
	for tries := 0; ; tries++ {
		if err := FreeAddresses(&a.HTTPS, &a.MQTT, &a.Dev); err != nil {
			return nil, err
		}
		a.args = []string{"serve", "--data-dir", a.Dir, "--https-listen", a.HTTPS, "--mqtt-listen", a.MQTT,
			"--mqtt-dev-listen", a.Dev, "--log-level", "warn"}
		a.args = append(a.args, more...)
		err := a.Start(ctx)
		if err == nil {
			return a, nil
		}
		a.Close()
		if tries == 4 || !strings.Contains(err.Error(), "in use") { // another program has taken the port
			return nil, err
		}
	}
}

// Start starts the hub.
func (a *Hub) Start(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(a.Dir), 0o700); err != nil {
		return err
	}
	a.Cmd = exec.Command(a.Program, a.args...)
	if a.files > 0 {
		a.Cmd = exec.Command("sh",
			append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, a.files), a.Program}, a.args...)...)
	}
	a.Cmd.Stdout, a.Cmd.Stderr = &a.Output, &a.Output
	a.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.Cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	a.over = over
	go func(cmd *exec.Cmd) { _ = cmd.Wait(); close(over) }(a.Cmd)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // long enough for a busy machine
		var err error
		if a.Admin == nil {
			a.Admin, err = a.As(ctx, "admin", "root")
		}
		if err == nil {
			err = a.Answers(ctx, 2*time.Second)
		}
		if err == nil {
			a.Down.Store(false)
			return nil
		}
		select {
		case <-a.over:
			return fmt.Errorf("the hub has exited: %s", a.Output.String())
		default:
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// Kill ends the hub with SIGKILL.
func (a *Hub) Kill() {
	if a.Cmd == nil || a.Cmd.Process == nil {
		return
	}
	a.Down.Store(true)
	a.past += a.CPU()
	_ = a.Cmd.Process.Kill()
	<-a.over
}

func (a *Hub) Close() { a.Kill() }

// Command runs flotilla-hub with the hub's data directory and a line of input.
func (a *Hub) Command(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, a.Program, append(args, "--data-dir", a.Dir)...)
	cmd.Stdin = strings.NewReader(input)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("flotilla-hub %s: %w: %s", args[0], err, bad.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// Peak returns the hub's largest resident memory since its start or the last NewPeak.
func (a *Hub) Peak() int64 { return a.status("VmHWM:") }

// NewPeak resets Peak, for example after a start, whose peak is separate.
func (a *Hub) NewPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", a.Cmd.Process.Pid), []byte("5"), 0)
}

// status returns a figure in bytes from the hub's status in /proc.
func (a *Hub) status(what string) int64 { return StatusOf(a.Cmd.Process.Pid, what) }

// StatusOf returns a figure in bytes from a process's status in /proc.
func StatusOf(pid int, what string) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, what); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// CPU returns the hub's processor time, user and system.
func (a *Hub) CPU() time.Duration { return a.past + CPUOf(a.Cmd.Process.Pid) }

// CPUOf returns a process's processor time, user and system, or 0 after its end.
func CPUOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Wrote returns the number of bytes that the hub has written to disk.
func (a *Hub) Wrote() int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", a.Cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "write_bytes:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// Panicked returns a panic in the hub's output, or "".
func (a *Hub) Panicked() string {
	printed := a.Output.String()
	for _, bad := range []string{"panic: ", "fatal error: ", "DATA RACE", "panic in", ": panic"} {
		if i := strings.Index(printed, bad); i >= 0 {
			return fmt.Sprintf("%.300q", printed[i:])
		}
	}
	return ""
}

// Until repeats a check until it succeeds or the time limit is over.
func Until(ctx context.Context, within time.Duration, what string, so func() (bool, error)) error {
	var last error
	for end := time.Now().Add(within); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		ok, err := so()
		if ok {
			return nil
		}
		last = err
	}
	return errors.Join(fmt.Errorf("%s: not within %s", what, within), last)
}

// Each runs count calls with limited concurrency.
func Each(ctx context.Context, count, atOnce int, do func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range count {
		if ctx.Err() != nil {
			break
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}

func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Build builds the hub as for a release.
func Build(ctx context.Context, dir string) (string, error) {
	hub := filepath.Join(dir, "flotilla-hub")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", hub, "flotilla.dev/hub")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the hub: %w\n%s", err, out)
	}
	return hub, nil
}

// Resident returns the hub's resident memory.
func (a *Hub) Resident() int64 { return a.status("VmRSS:") }
