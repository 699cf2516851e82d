package inventory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/state"
)

// A Loop changes the fleet.
type Loop interface {
	Snapshot() state.Snapshot
	Now() time.Time
	Do(ctx context.Context, news func(s state.Snapshot, now time.Time) ([]state.Change, error)) ([]state.Applied, error)
}

// Options are the settings of a Reader.
type Options struct {
	Source  string // path of a file, or an https URL
	Loop    Loop
	Startup time.Duration // the hub's startup grace period
	Log     *slog.Logger
	Client  *http.Client // nil: a client that uses only TLS
	// Tell returns the change that reports the result of a read; warn: the read failed.
	Tell func(s state.Snapshot, now time.Time, warn bool, message string) state.Change
}

// A Reader reads a list and makes the fleet follow it.
type Reader struct {
	Options
	source  source
	list    List
	problem string // the problem that was last reported
	hasRead bool   // a read has succeeded or failed
	health  atomic.Pointer[Health]
}

// Health is the state of reading.
type Health struct {
	Readable bool
	Machines int       // entries of the list
	Read     time.Time // when the list was last read or found unchanged
}

// NewReader returns a reader; Run runs it.
func NewReader(o Options) *Reader {
	if o.Client == nil {
		o.Client = newClient()
	}
	return &Reader{Options: o, source: open(o.Source, o.Client)}
}

// Health returns the state of reading; ok is false before the first read. It never waits.
func (r *Reader) Health() (h Health, ok bool) {
	if p := r.health.Load(); p != nil {
		return *p, true
	}
	return Health{}, false
}

// Run reads the list until ctx is done: a file every 10 s, a URL every minute. After each read it
// decides, even if the list is unchanged, because nodes change.
func (r *Reader) Run(ctx context.Context) error {
	for {
		r.look(ctx)
		// Deciding on a snapshot first costs the loop nothing.
		if list := r.list; len(Decide(r.Loop.Snapshot(), list, r.Startup, r.Loop.Now())) > 0 {
			_, err := r.Loop.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
				return Decide(s, list, r.Startup, now), nil
			})
			if err != nil && ctx.Err() == nil {
				r.Log.Error("follow the inventory", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.source.pause()):
		}
	}
}

// look reads the list if it has changed. After an invalid list the reader has no list, so it
// changes nothing.
func (r *Reader) look(ctx context.Context) {
	text, err := r.source.read(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, errUnsettled):
		return
	case errors.Is(err, errUnchanged):
		if r.problem == "" {
			r.health.Store(&Health{Readable: true, Machines: r.list.Len(), Read: r.Loop.Now()})
		}
		return
	case err == nil:
		r.list, err = Parse(text)
	}
	if err == nil {
		r.health.Store(&Health{Readable: true, Machines: r.list.Len(), Read: r.Loop.Now()})
		if r.problem != "" || !r.hasRead {
			r.recordEvent(ctx, false, fmt.Sprintf("the inventory %s names %d machines", displayName(r.Source), r.list.Len()))
		}
		r.problem, r.hasRead = "", true
		return
	}
	r.list, r.hasRead = List{}, true
	h, _ := r.Health()
	h.Readable, h.Machines = false, 0
	r.health.Store(&h)
	// An invalid file stays invalid until it changes, but every other error is retried.
	if text == nil {
		r.source.forget()
	}
	if r.problem != err.Error() {
		r.problem = err.Error()
		r.recordEvent(ctx, true, fmt.Sprintf("the inventory %s cannot be read and changes nothing: %s", displayName(r.Source),
			oneLine(err)))
	}
}

// oneLine joins an error of several lines.
func oneLine(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

// recordEvent reports a read as an event and a log line.
func (r *Reader) recordEvent(ctx context.Context, warn bool, message string) {
	if warn {
		r.Log.Warn(message)
	} else {
		r.Log.Info(message)
	}
	_, err := r.Loop.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		return []state.Change{r.Tell(s, now, warn, message)}, nil
	})
	if err != nil && ctx.Err() == nil {
		r.Log.Error("record the state of the inventory", "err", err)
	}
}
