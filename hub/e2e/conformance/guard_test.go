package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runnerWord makes the test program start a guarded process and wait for it, as a run of the suite
// does.
const runnerWord = "runner-that-is-killed"

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 2 && os.Args[1] == guardWord:
		os.Exit(guard(os.Args[2:]))
	case len(os.Args) > 2 && os.Args[1] == runnerWord:
		cmd, err := guarded(context.Background(), os.Args[2], os.Args[3:]...)
		if err == nil {
			cmd.Stdout = os.Stdout
			err = cmd.Start()
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("group", cmd.Process.Pid)
		_ = cmd.Wait()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// empty waits until a process group has no processes.
func empty(t *testing.T, group int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(-group, 0),
		syscall.ESRCH); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			_ = syscall.Kill(-group, syscall.SIGKILL)
			t.Fatal("a process is left a minute after the run was killed")
		}
	}
}

// A killed run leaves no children or grandchildren, even if they ignore signals.
func TestAKilledRunLeavesNoProcesses(t *testing.T) {
	run := exec.Command(os.Args[0], runnerWord, "sh", "-c",
		`trap '' TERM INT; (trap '' TERM INT HUP; echo two; sleep 600) & echo one; sleep 600`)
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	group, lines := 0, bufio.NewScanner(out)
	for n := 0; n < 3 && lines.Scan(); n++ {
		if text, ok := strings.CutPrefix(lines.Text(), "group "); ok {
			group, _ = strconv.Atoi(text)
		}
	}
	if group == 0 {
		t.Fatal("the process did not start")
	}
	if err := syscall.Kill(-group, 0); err != nil {
		t.Fatal("no process runs: ", err)
	}
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait()
	empty(t, group)
}

func TestChildrenOfAGuardedCommandAreKilled(t *testing.T) {
	for _, code := range []int{0, 3} {
		cmd, err := guarded(t.Context(), "sh", "-c", fmt.Sprintf("sleep 600 & exit %d", code))
		if err != nil {
			t.Fatal(err)
		}
		if err := finish(cmd); cmd.ProcessState.ExitCode() != code {
			t.Errorf("%v, want code %d", err, code)
		}
		empty(t, cmd.Process.Pid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd, err := guarded(ctx, "sh", "-c", "trap 'exit 5' INT; echo begun; while :; do sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	out, _ := cmd.StdoutPipe()
	go func() {
		bufio.NewScanner(out).Scan()
		cancel()
	}()
	if _ = finish(cmd); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("after an interrupt the command returns %v, want its own exit code", cmd.ProcessState)
	}
}

func TestARunRemovesTheFilesOfAKilledRun(t *testing.T) {
	in := t.TempDir()
	file := filepath.Join(in, "said")
	device := filepath.Join(in, "device")
	if err := os.WriteFile(device, []byte("#!/bin/sh\necho \"$@\" >> "+file+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dead", "alive", "foreign"} {
		dir := filepath.Join(in, workPrefix+name)
		if err := os.MkdirAll(filepath.Join(dir, "engine", "conformance-7-1"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, socketFile), []byte("/run/some.sock"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "foreign" {
			continue
		}
		lock, err := hold(dir, os.O_CREATE)
		if err != nil {
			t.Fatal(err)
		}
		if name == "dead" {
			_ = lock.Close()
		} else {
			defer lock.Close()
		}
	}
	if err := sweep(t.Context(), in, device); err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(in, workPrefix+"dead")
	got, _ := os.ReadFile(file)
	if want := "reset --yes --state-dir " + filepath.Join(dead, "engine", "conformance-7-1") +
		" --engine /run/some.sock\n"; string(got) != want {
		t.Errorf("the device program is called with %q, want %q", got, want)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Error("the directory of the killed run must be removed")
	}
	for _, name := range []string{"alive", "foreign"} {
		if _, err := os.Stat(filepath.Join(in, workPrefix+name, "engine")); err != nil {
			t.Error(err)
		}
	}
	// A directory that cannot be removed stays, so that the next run tries again.
	again := filepath.Join(in, workPrefix+"again")
	if err := os.MkdirAll(filepath.Join(again, "engine", "conformance-8-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := hold(again, os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
	if err := sweep(t.Context(), in, "/bin/false"); err == nil {
		t.Error("a failed removal must be an error")
	}
	if _, err := os.Stat(again); err != nil {
		t.Error(err)
	}
}
