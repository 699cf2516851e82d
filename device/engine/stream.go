package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

func (a *api) Logs(ctx context.Context, id string, o LogOptions, stdout, stderr io.Writer) (err error) {
	// Only the container tells whether it has a terminal; a terminal's log has no stderr.
	found, err := a.look(ctx, id)
	if err != nil {
		return explain(err, "read the log of container", id)
	}
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: o.Follow, Timestamps: o.Timestamps}
	over := found.Container.State != nil && !found.Container.State.Running // the log no longer grows
	if o.Tail >= 0 && (!o.Follow || over) && a.podman() {
		// Podman's own tail leaves out a last line without a line feed, which is the important line
		// of a crash.
		last := &lastLines{most: o.Tail}
		defer func() {
			if err == nil {
				err = last.flush()
			}
		}()
		stdout, stderr = last.of(stdout), last.of(stderr)
	} else if o.Tail >= 0 {
		options.Tail = fmt.Sprint(o.Tail)
	}
	if o.Since.After(time.Unix(0, 0)) { // the API accepts no time before 1970
		options.Since = fmt.Sprintf("%d.%09d", o.Since.Unix(), o.Since.Nanosecond())
	}
	tty := found.Container.Config != nil && found.Container.Config.Tty
	if o.Follow && !tty {
		f := &follower{path: found.Container.LogPath, stamped: o.Timestamps}
		stdout, stderr, options.Timestamps = &followed{follower: f, to: stdout}, &followed{follower: f, to: stderr}, true
	}
	_, err = again(ctx, func() (struct{}, error) { return struct{}{}, a.copyLog(ctx, id, options, tty, stdout, stderr) })
	if o.Follow && ctx.Err() != nil {
		return nil // a followed log ends without an error when ctx ends
	}
	return explain(err, "read the log of container", id)
}

// copyLog copies a log. If the engine reports an internal error instead of the log, copyLog returns
// that error and has copied nothing.
func (a *api) copyLog(ctx context.Context, id string, options client.ContainerLogsOptions, tty bool, stdout,
	stderr io.Writer) error {
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := a.client().ContainerLogs(reading, id, options)
	if err != nil {
		return err
	}
	defer stream.Close()
	log := &waiting{Reader: stream}
	if options.Follow {
		go a.endLog(reading, id, log, cancel)
	}
	if tty {
		_, err = io.Copy(stdout, log)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, &frames{Reader: log})
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case context.Cause(reading) == errLogEnded:
		return nil
	}
	return err
}

// frames reads the multiplexed streams of a log. Podman (all versions so far) inspects the
// container again after the response has begun, and writes a failure as JSON instead of the log.
type frames struct {
	io.Reader
	begun bool
}

func (f *frames) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	if f.begun || n == 0 {
		return n, err
	}
	if f.begun = true; b[0] != '{' {
		return n, err
	}
	text, _ := io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(bytes.Clone(b[:n])), f.Reader), 1<<12))
	var reply struct{ Message string }
	if json.Unmarshal(text, &reply) != nil {
		reply.Message = string(text)
	}
	return 0, engineError(reply.Message)
}

// An engineError is an internal error of the engine.
type engineError string

func (e engineError) Error() string { return string(e) }
func (engineError) System()         {} // makes errdefs.IsInternal true

// lastLines keeps the last lines of the two streams of a log. Its memory is limited by the size
// limit of the log.
type lastLines struct {
	most    int64
	streams int
	lines   []lastLine
}

type lastLine struct {
	stream int
	to     io.Writer
	text   []byte
}

func (l *lastLines) of(to io.Writer) io.Writer {
	l.streams++
	stream := l.streams
	return writer(func(p []byte) (int, error) {
		for part := range bytes.Lines(p) {
			l.add(stream, to, part)
		}
		return len(p), nil
	})
}

// add appends a line, or a part that continues the stream's unfinished line.
func (l *lastLines) add(stream int, to io.Writer, part []byte) {
	for i := len(l.lines) - 1; i >= 0; i-- {
		if have := &l.lines[i]; have.stream == stream {
			if !bytes.HasSuffix(have.text, []byte("\n")) {
				have.text = append(have.text, part...)
				return
			}
			break
		}
	}
	l.lines = append(l.lines, lastLine{stream, to, bytes.Clone(part)})
	if int64(len(l.lines)) > 2*l.most { // trim now and then, not at every line
		l.cut()
	}
}

func (l *lastLines) cut() {
	l.lines = slices.Delete(l.lines, 0, max(0, len(l.lines)-int(min(l.most, int64(len(l.lines))))))
}

func (l *lastLines) flush() error {
	l.cut()
	for _, line := range l.lines {
		if _, err := line.to.Write(line.text); err != nil {
			return err
		}
	}
	return nil
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// stateEvents are the events that change a container's state; Podman's names are died and remove.
// Events of probes (exec_…) and logs (attach) are left out, because they would wake the agent too
// often.
var stateEvents = []string{"create", "start", "die", "died", "oom", "pause", "unpause", "destroy", "remove"}

// Events also calls changed once when it has subscribed, since earlier events were missed.
func (a *api) Events(ctx context.Context, label string, changed func()) error {
	stream := a.client().Events(ctx, client.EventsListOptions{
		Filters: client.Filters{}.Add("type", "container").Add("label", label).Add("event", stateEvents...),
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

// eventsError returns ErrUnavailable if the stream of events ended before ctx, because the engine
// went away.
func eventsError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		err = io.EOF
	}
	return explain(err, "listen to", "container events")
}

// logSilence is the longest pause of a log after its container has ended.
const logSilence = 5 * time.Second

var errLogEnded = errors.New("the container has ended and its log is silent")

// A waiting is a reader; since is the time at which the current Read began to wait for data, or
// nil.
type waiting struct {
	io.Reader
	since atomic.Pointer[time.Time]
}

func (w *waiting) Read(b []byte) (int, error) {
	now := time.Now()
	w.since.Store(&now)
	defer w.since.Store(nil)
	return w.Reader.Read(b)
}

// endLog stops following a log when the container has ended and the log is silent: Podman sometimes
// misses the end of a container that exits at once.
func (a *api) endLog(ctx context.Context, id string, log *waiting, end context.CancelCauseFunc) {
	var quiet *time.Time // the Read that was waiting when the container was found ended; nil: the container still runs
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.silence):
		}
		now := log.since.Load()
		if quiet != nil && now == quiet {
			end(errLogEnded)
			return
		}
		found, err := a.look(ctx, id)
		quiet = nil
		if errdefs.IsNotFound(err) || err == nil && found.Container.State != nil && !found.Container.State.Running &&
			found.Container.State.Status != "created" {
			quiet = now
		}
	}
}
