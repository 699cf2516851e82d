package engine

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

func (a *api) Logs(ctx context.Context, id string, o LogOptions, stdout, stderr io.Writer) error {
	// Only the container knows whether its two streams come as one: a terminal has no stderr.
	found, err := a.client().ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return explain(err, "read the log of container", id)
	}
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: o.Follow, Timestamps: o.Timestamps}
	if o.Tail >= 0 {
		options.Tail = fmt.Sprint(o.Tail)
	}
	if !o.Since.IsZero() {
		options.Since = fmt.Sprintf("%d.%09d", o.Since.Unix(), o.Since.Nanosecond())
	}
	stream, err := a.client().ContainerLogs(ctx, id, options)
	if err != nil {
		return explain(err, "read the log of container", id)
	}
	defer stream.Close()
	if found.Container.Config != nil && found.Container.Config.Tty {
		_, err = io.Copy(stdout, stream)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, stream)
	}
	if ctx.Err() != nil {
		if o.Follow {
			return nil // that is how following ends
		}
		err = ctx.Err()
	}
	return explain(err, "read the log of container", id)
}

// heard are the events that say that a container's state changed. Podman says died and remove. Neither probes (exec_…)
// nor logs (attach) are among them: they would wake the agent all the time.
var heard = []string{"create", "start", "die", "died", "oom", "pause", "unpause", "destroy", "remove"}

// Events calls changed once at the beginning too, when listening has begun: what happened before was not heard.
func (a *api) Events(ctx context.Context, label string, changed func()) error {
	stream := a.client().Events(ctx, client.EventsListOptions{
		Filters: client.Filters{}.Add("type", "container").Add("label", label).Add("event", heard...),
	})
	select {
	case err := <-stream.Err:
		return eventsError(ctx, err)
	default:
		changed()
	}
	for {
		select {
		case <-stream.Messages:
			changed()
		case err := <-stream.Err:
			return eventsError(ctx, err)
		}
	}
}

// eventsError: a stream of events that ends without our doing means that the engine went away.
func eventsError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		err = io.EOF
	}
	return explain(err, "listen to", "container events")
}

// Exec returns 126 or 127 as shells do when the command cannot be run, whatever the engine makes of that.
func (a *api) Exec(ctx context.Context, id string, command []string, stdout, stderr io.Writer) (int, error) {
	created, err := a.client().ExecCreate(ctx, id, client.ExecCreateOptions{Cmd: command, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return 0, explain(err, "run a command in container", id)
	}
	stream, err := a.client().ExecAttach(ctx, created.ID, client.ExecAttachOptions{})
	if err != nil {
		return a.execRefused(ctx, id, err, stderr)
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, stream.Close)
	defer stop()
	_, err = stdcopy.StdCopy(stdout, stderr, stream.Reader)
	if ctx.Err() != nil {
		a.killExec(id, created.ID)
		return 0, fmt.Errorf("run %s in container %s: %w", command[0], id, ctx.Err())
	}
	if err != nil {
		return 0, explain(err, "run "+command[0]+" in container", id)
	}
	done, err := a.execEnd(ctx, created.ID)
	if err != nil {
		return 0, explain(err, "ask the exit code of "+command[0]+" in container", id)
	}
	return done, nil
}

func (a *api) execRefused(ctx context.Context, id string, err error, stderr io.Writer) (int, error) {
	text := err.Error()
	switch {
	case ctx.Err() != nil || lost(err):
	case strings.Contains(text, "not found"), strings.Contains(text, "no such file"):
		fmt.Fprintln(stderr, cause(err))
		return 127, nil
	case strings.Contains(text, "permission denied"):
		fmt.Fprintln(stderr, cause(err))
		return 126, nil
	}
	return 0, explain(err, "run a command in container", id)
}
