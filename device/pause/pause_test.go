package pause

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// The sandbox program waits for a signal and then exits with 0, on every supported architecture.
func TestPauseWaitsAndEndsOnSIGTERM(t *testing.T) {
	for arch, emulator := range map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static",
		"arm": "qemu-arm-static"} {
		t.Run(arch, func(t *testing.T) {
			path, err := Write(t.TempDir(), arch)
			if err != nil {
				t.Fatal(err)
			}
			argv := []string{path}
			if arch != runtime.GOARCH {
				q, err := exec.LookPath(emulator)
				if err != nil {
					if os.Getenv("CI") == "true" {
						t.Fatal(err)
					}
					t.Skipf("%s is missing, which runs %s programs: install qemu-user-static", emulator, arch)
				}
				argv = []string{q, path}
			}
			cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			for !awaitsSignal(t, cmd.Process.Pid) {
				select {
				case err := <-ended:
					t.Fatalf("the program ended before the signal: %v", err)
				case <-time.After(5 * time.Millisecond):
				}
			}
			if !ignoresChildren(t, cmd.Process.Pid) {
				t.Error("the program does not ignore SIGCHLD, so orphans stay zombies")
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatalf("the program ended with %v, want exit code 0", err)
			}
		})
	}
}

// ignoresChildren reports whether a process ignores SIGCHLD, so that the kernel reaps its children.
func ignoresChildren(t *testing.T, pid int) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := bytes.Cut(status, []byte("SigIgn:"))
	var ignored uint64
	if _, err := fmt.Sscanf(string(after), "%x", &ignored); err != nil {
		t.Fatal(err)
	}
	return ignored&(1<<(syscall.SIGCHLD-1)) != 0
}

// awaitsSignal reports whether a process, or its emulator, is in rt_sigtimedwait. Before that call
// the process may not have blocked the signals yet.
func awaitsSignal(t *testing.T, pid int) bool {
	t.Helper()
	now, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	return bytes.HasPrefix(now, fmt.Appendf(nil, "%d ", syscall.SYS_RT_SIGTIMEDWAIT))
}
