package engine

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// again repeats a read up to four times while the engine reports an internal error. Podman reports
// one for a log whose last line is being written. Before 4.4, Podman also fails a whole list if one
// container ends during the call ("read /proc/PID/cgroup: no such process"). Calls that change
// something have their own rules.
func again[T any](ctx context.Context, ask func() (T, error)) (answer T, err error) {
	for try := 1; ; try++ {
		if answer, err = ask(); err == nil || try == 4 || !errdefs.IsInternal(err) {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// look inspects one container.
func (a *api) look(ctx context.Context, id string,
	o ...client.ContainerInspectOptions) (client.ContainerInspectResult, error) {
	var options client.ContainerInspectOptions
	if len(o) > 0 {
		options = o[0]
	}
	return again(ctx, func() (client.ContainerInspectResult, error) {
		return a.client().ContainerInspect(ctx, id, options)
	})
}

// list lists the containers that o selects.
func (a *api) list(ctx context.Context, o client.ContainerListOptions) (client.ContainerListResult, error) {
	return again(ctx, func() (client.ContainerListResult, error) { return a.client().ContainerList(ctx, o) })
}

// lookExec inspects one command in a container.
func (a *api) lookExec(ctx context.Context, id string) (client.ExecInspectResult, error) {
	return again(ctx, func() (client.ExecInspectResult, error) {
		return a.client().ExecInspect(ctx, id, client.ExecInspectOptions{})
	})
}
