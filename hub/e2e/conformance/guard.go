package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// A run that is killed with SIGKILL cannot clean up. The kernel ends its children, the suite's
// guards end their process groups, and the next run removes containers that agents left on an
// engine.

// guardWord is the first argument of a guard.
const guardWord = "guard"

// guarded returns a command with its own process group. The group ends with this process.
func guarded(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{guardWord, name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) } // the command's group
	cmd.WaitDelay = patience
	return cmd, nil
}

// finish runs a guarded command to its end, and then kills the rest of its group.
func finish(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the group is usually empty
	return err
}

// guard runs a command, and kills its own process group when its parent has ended. It returns the
// command's exit code.
func guard(words []string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM { // the kernel has sent an interrupt to the whole group
				_ = syscall.Kill(0, syscall.SIGKILL)
			}
		}
	}()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		return 1
	}
	return max(cmd.ProcessState.ExitCode(), 0)
}

// Files that a run leaves in its directory for the next run.
const (
	workPrefix = "flotilla-conformance-"
	lockFile   = "run.lock"   // locked as long as the run lasts
	socketFile = "run.socket" // path of the engine with the agents' containers
)

// hold locks a run's directory. The error is EWOULDBLOCK if another run holds the lock.
func hold(dir string, flags int) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), lock.Close())
	}
	return lock, nil
}

// sweep removes the files of killed runs. In each directory without a lock it removes the agents'
// containers, networks and mounts, which reset finds by their labels, and then the directory.
func sweep(ctx context.Context, in, device string) error {
	dirs, err := filepath.Glob(filepath.Join(in, workPrefix+"*"))
	if err != nil {
		return err
	}
	var wrong []error
	for _, dir := range dirs {
		lock, err := hold(dir, 0)
		if err != nil { // the run has not ended, or this is not a run's directory
			continue
		}
		wrong = append(wrong, clear(ctx, dir, device), lock.Close())
	}
	return errors.Join(wrong...)
}

func clear(ctx context.Context, dir, device string) error {
	socket, err := os.ReadFile(filepath.Join(dir, socketFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	states, err := filepath.Glob(filepath.Join(dir, "*", "conformance-*"))
	if err != nil {
		return err
	}
	for _, state := range states {
		ctx, cancel := context.WithTimeout(ctx, patience)
		_, err := output(exec.CommandContext(ctx, device, "reset", "--yes", "--state-dir", state, "--engine",
			strings.TrimSpace(string(socket))))
		cancel()
		if err != nil {
			return fmt.Errorf("remove the files of a killed run in %s: %w", dir, err)
		}
	}
	fmt.Printf("removed the files of a killed run in %s\n", dir)
	return os.RemoveAll(dir)
}
