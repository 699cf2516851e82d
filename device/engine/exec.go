package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"
)

const (
	// hangUpTime is the time between SIGHUP and SIGKILL.
	hangUpTime = 2 * time.Second
	// beginTime is the time for a requested command to start on a busy board. Before its start the
	// command has no process to kill.
	beginTime = 30 * time.Second
	// lookTime is the time for the engine's answer about a command. If the engine hangs, the
	// command is left alone.
	lookTime = 10 * time.Second
)

// Exec returns 126 or 127 as shells do if the command cannot run, whatever the engine answers.
func (a *api) Exec(ctx context.Context, id string, command []string, s Streams) (int, error) {
	keys := detachKeys
	if a.podman() || !s.TTY {
		keys = "" // without a terminal Podman needs no detach keys, and with them its response cannot be parsed
	}
	created, err := a.client().ExecCreate(ctx, id, client.ExecCreateOptions{Cmd: command, TTY: s.TTY, DetachKeys: keys,
		AttachStdin: s.Stdin != nil, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return 0, explain(err, "run a command in container", id)
	}
	if s.Began != nil {
		s.Began(created.ID)
	}
	stream, err := a.client().ExecAttach(ctx, created.ID, client.ExecAttachOptions{TTY: s.TTY})
	if err != nil {
		if ctx.Err() != nil { // the engine may have started the command although the call failed
			a.endUnwanted(created.ID, s)
		}
		return a.execRefused(ctx, id, err, s.Stderr)
	}
	j := join{HijackedResponse: stream.HijackedResponse, s: s, tty: s.TTY,
		resize: func(ctx context.Context, z Size) error {
			_, err := a.client().ExecResize(ctx, created.ID,
				client.ExecResizeOptions{Width: uint(z.Width), Height: uint(z.Height)})
			return err
		}}
	err = j.copy(ctx)
	if ctx.Err() != nil || err != nil {
		a.endUnwanted(created.ID, s)
	}
	if ctx.Err() != nil {
		return 0, fmt.Errorf("run %s in container %s: %w", command[0], id, ctx.Err())
	}
	if err != nil {
		return 0, explain(err, "run "+command[0]+" in container", id)
	}
	code, err := a.execCode(ctx, created.ID)
	if err != nil {
		return 0, explain(err, "ask the exit code of "+command[0]+" in container", id)
	}
	return code, nil
}

func (a *api) execRefused(ctx context.Context, id string, err error, stderr io.Writer) (int, error) {
	text := err.Error()
	code := 0
	switch {
	case ctx.Err() != nil || lost(err):
	case strings.Contains(text, "not found"), strings.Contains(text, "no such file"):
		code = 127
	case strings.Contains(text, "permission denied"):
		code = 126
	}
	if code == 0 {
		return 0, explain(err, "run a command in container", id)
	}
	if stderr != nil {
		fmt.Fprintln(stderr, cause(err))
	}
	return code, nil
}

// execCode waits for the exit code of a command after its output: engines close the output a moment
// earlier.
func (a *api) execCode(ctx context.Context, execID string) (int, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		now, err := a.lookExec(ctx, execID)
		if err != nil {
			return 0, err
		}
		if !now.Running {
			return now.ExitCode, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (a *api) EndExec(ctx context.Context, exec string) error {
	now, err := a.lookExec(ctx, exec)
	if err == nil {
		err = a.endExec(ctx, exec, now, true)
	}
	if err = explain(err, "end command", exec); errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// endUnwanted ends a command whose caller has gone. It returns no error, because the caller already
// has one.
func (a *api) endUnwanted(execID string, s Streams) {
	ctx, cancel := context.WithTimeout(context.Background(), beginTime)
	defer cancel()
	if now, err := a.begun(ctx, execID); err == nil {
		_ = a.endExec(ctx, execID, now, s.TTY || s.Stdin != nil)
	}
}

// begun waits until a requested command has a process or has failed, since a caller on a slow board
// may give up before the start. Podman describes a command that has just succeeded like a command
// that has not started, and begun waits in vain in that rare case.
func (a *api) begun(ctx context.Context, execID string) (client.ExecInspectResult, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		looking, cancel := context.WithTimeout(ctx, lookTime)
		now, err := a.lookExec(looking, execID)
		cancel()
		if err != nil || now.PID > 1 || !now.Running && now.ExitCode != 0 {
			return now, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return now, ctx.Err()
		}
	}
}

// endExec kills a command whose caller has gone, and its child processes; a terminal session gets
// SIGHUP first. The API has no such call, and hanging probes would fill the container's memory.
// endExec kills a process only if it is in the container's control group, because an agent in a
// container sees other process ids than the engine.
func (a *api) endExec(ctx context.Context, execID string, now client.ExecInspectResult, hangUp bool) error {
	if !now.Running || now.PID <= 1 || now.ContainerID == "" || !belongs(now.PID, now.ContainerID) {
		return nil
	}
	if hangUp {
		signalSession(now.PID, now.ContainerID, syscall.SIGHUP)
		patient, cancel := context.WithTimeout(ctx, hangUpTime)
		defer cancel()
		if _, err := a.execCode(patient, execID); err == nil {
			return nil
		}
	}
	signalSession(now.PID, now.ContainerID, syscall.SIGKILL)
	return nil
}

// signalSession signals the processes in the session of a command; engines create a session for
// each command.
func signalSession(leader int, containerID string, sig syscall.Signal) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && (pid == leader || sessionOf(string(text)) == leader) && belongs(pid, containerID) {
			_ = syscall.Kill(pid, sig) // the process may have ended meanwhile
		}
	}
}

// sessionOf reads the session from /proc/PID/stat: number (name) state parent group session.
func sessionOf(stat string) int {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 4 {
		return 0
	}
	session, _ := strconv.Atoi(f[3])
	return session
}

// belongs reports whether a process is in a container's control group.
func belongs(pid int, containerID string) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), containerID)
}
