// Package panics keeps a mistake in one goroutine of the hub from ending all of it:
// a fleet must not lose its hub because one request, one device's answer or one view
// of the page met code that was not ready for it.
//
// Every goroutine that a room starts defers Catch or CatchThen first; a test of the
// hub's main package holds that. What was caught is logged as an error with its stack
// and counted for the metrics. The package repairs nothing: what a goroutine held is
// given back by its own deferred calls, and who waits for it is told by CatchThen.
package panics

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// quiet is how long the stack of a family's next panic is not logged: one that comes
	// back with every message must not fill the log, too.
	quiet = time.Minute
	// again is how long Keep waits before it runs something again.
	again = time.Second
)

var (
	logger atomic.Pointer[slog.Logger]

	mu     sync.Mutex
	counts = map[string]uint64{}
	logged = map[string]time.Time{}
)

// Log says where panics are logged; until it is called that is slog's default.
func Log(l *slog.Logger) { logger.Store(l) }

// Catch is to be deferred itself. The family names the goroutine's work in the log and
// the metrics, so it comes from the code, never from a client; args are the log's.
func Catch(family string, args ...any) {
	if p := recover(); p != nil {
		Note(family, p, args...)
	}
}

// CatchThen is Catch for a goroutine that somebody waits for: then is told why nothing
// comes, or comes to the end of, what they wait for.
func CatchThen(family string, then func(error)) {
	if p := recover(); p != nil {
		Note(family, p)
		then(fmt.Errorf("the hub made a mistake, see its log: %v", p))
	}
}

// Keep runs what must not stop while the hub lives: after a panic, a second later, again.
func Keep(ctx context.Context, family string, run func(context.Context) error) error {
	for {
		over, err := once(ctx, family, run)
		if over {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again):
		}
	}
}

func once(ctx context.Context, family string, run func(context.Context) error) (over bool, err error) {
	defer Catch(family)
	return true, run(ctx)
}

// Counts is how many panics were caught since the process began, by family.
func Counts() map[string]uint64 {
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(counts)
}

// Note logs and counts what somebody has recovered from, who has more to do with it.
func Note(family string, p any, args ...any) {
	now := time.Now()
	mu.Lock()
	counts[family]++
	tell := logged[family].IsZero() || now.Sub(logged[family]).Abs() >= quiet
	if tell {
		logged[family] = now
	}
	mu.Unlock()
	if !tell {
		return
	}
	l := logger.Load()
	if l == nil {
		l = slog.Default()
	}
	l.With(args...).Error("the hub made a mistake and goes on, please report this: "+family+" panicked", "err", p,
		"stack", string(debug.Stack()))
}
