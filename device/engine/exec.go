package engine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"
)

// execEnd waits for the exit code of a command whose output has ended: engines close the output a moment earlier.
func (a *api) execEnd(ctx context.Context, execID string) (int, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		now, err := a.client().ExecInspect(ctx, execID, client.ExecInspectOptions{})
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

// killExec ends a command that nobody waits for any more. The API cannot, and probes that hang would pile up until the
// container's memory is full. The process is only killed when the kernel says that it belongs to the container: where we
// run in a container ourselves, the engine's process numbers mean nothing to us.
func (a *api) killExec(id, execID string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	now, err := a.client().ExecInspect(ctx, execID, client.ExecInspectOptions{})
	if err != nil || !now.Running || now.PID <= 1 {
		return
	}
	if found, err := a.client().ContainerInspect(ctx, id, client.ContainerInspectOptions{}); err == nil && belongs(now.PID, found.Container.ID) {
		_ = syscall.Kill(now.PID, syscall.SIGKILL) // it may have ended by now
	}
}

// belongs tells whether a process runs in a container's control group.
func belongs(pid int, containerID string) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), containerID)
}
