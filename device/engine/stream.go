package engine

import (
	"context"
	"fmt"
	"io"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

func (a *api) Logs(ctx context.Context, id string, o LogOptions, stdout, stderr io.Writer) error {
	// Only the container knows whether its two streams come as one: a terminal has no stderr.
	found, err := a.look(ctx, id)
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
	stream, err := again(ctx, func() (client.ContainerLogsResult, error) { return a.client().ContainerLogs(ctx, id, options) })
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
