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

// A Loop is what changes the fleet.
type Loop interface {
	Snapshot() state.Snapshot
	Now() time.Time
	Do(ctx context.Context, news func(s state.Snapshot, now time.Time) ([]state.Change, error)) ([]state.Applied, error)
}

// Options are what a Reader works with.
type Options struct {
	Source  string // path of a file, or an https URL
	Loop    Loop
	Startup time.Duration // the hub's startup grace
	Log     *slog.Logger
	Client  *http.Client // nil: one that insists on TLS
	// Tell returns the change by which people get to know how reading went; warn: it
	// did not.
	Tell func(s state.Snapshot, now time.Time, warn bool, message string) state.Change
}

// A Reader keeps the fleet in line with a list.
type Reader struct {
	Options
	source  source
	list    List
	problem string // the last one that was told
	begun   bool   // it has been read, or could not be
	told    atomic.Pointer[Health]
}

// Health is how reading goes.
type Health struct {
	Readable bool
	Machines int       // entries of the list
	Read     time.Time // when the list was last seen to be as it is
}

// NewReader returns a reader; Run runs it.
func NewReader(o Options) *Reader {
	if o.Client == nil {
		o.Client = newClient()
	}
	return &Reader{Options: o, source: open(o.Source, o.Client)}
}

// Health says how reading goes; ok is false before the first reading. It never waits.
func (r *Reader) Health() (h Health, ok bool) {
	if p := r.told.Load(); p != nil {
		return *p, true
	}
	return Health{}, false
}

// Run reads the list until ctx is done: a file every 10 s where it has changed, a page
// every minute. After each look it decides, also where the list is as before, because
// nodes are not.
func (r *Reader) Run(ctx context.Context) error {
	for {
		r.look(ctx)
		// looking costs the loop nothing
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

// look reads the list if it has changed. One that cannot be read takes the place of
// the last one that could: it decides nothing.
func (r *Reader) look(ctx context.Context) {
	text, err := r.source.read(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, errUnsettled):
		return
	case errors.Is(err, errUnchanged):
		if r.problem == "" {
			r.told.Store(&Health{Readable: true, Machines: r.list.Len(), Read: r.Loop.Now()})
		}
		return
	case err == nil:
		r.list, err = Parse(text)
	}
	if err == nil {
		r.told.Store(&Health{Readable: true, Machines: r.list.Len(), Read: r.Loop.Now()})
		if r.problem != "" || !r.begun {
			r.recordEvent(ctx, false, fmt.Sprintf("the inventory %s names %d machines", displayName(r.Source), r.list.Len()))
		}
		r.problem, r.begun = "", true
		return
	}
	r.list, r.begun = List{}, true
	h, _ := r.Health()
	h.Readable, h.Machines = false, 0
	r.told.Store(&h)
	// A file that was read stays as bad as it is; one that was not is tried again.
	if text == nil {
		r.source.forget()
	}
	if r.problem != err.Error() {
		r.problem = err.Error()
		r.recordEvent(ctx, true, fmt.Sprintf("the inventory %s cannot be read, so it decides nothing: %s", displayName(r.Source),
			oneLine(err)))
	}
}

// oneLine is an error of several lines in one.
func oneLine(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

// recordEvent makes an event of how reading went, and a line in the log.
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
		r.Log.Error("tell about the inventory", "err", err)
	}
}
