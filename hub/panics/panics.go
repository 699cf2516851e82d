// Package panics keeps a panic in one goroutine from ending the whole hub. A failure of one
// request, one device's message or one view of the page must not disconnect the fleet.
//
// Every goroutine that a package of the hub starts defers Catch or CatchThen first; a test of the
// hub's main package checks that. A caught panic is logged as an error with its stack, and counted
// for the metrics. The package repairs nothing: a goroutine's own deferred calls release its
// resources, and CatchThen informs goroutines that wait for it.
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
	// quiet is how long further stacks of the same family are not logged. A panic that each message
	// repeats must not fill the log.
	quiet = time.Minute
	// again is how long Keep waits before it restarts a function.
	again = time.Second
)

var (
	logger atomic.Pointer[slog.Logger]

	mu     sync.Mutex
	counts = map[string]uint64{}
	logged = map[string]time.Time{}
)

// Log sets the logger for panics; the default is slog.Default().
func Log(l *slog.Logger) { logger.Store(l) }

// Catch must be deferred directly. The family names the goroutine's work in the log and the
// metrics. It is a constant of the code, never input. args are added to the log line.
func Catch(family string, args ...any) {
	if p := recover(); p != nil {
		Note(family, p, args...)
	}
}

// CatchThen is Catch for a goroutine with a waiting caller. It calls then with the error, which
// must end the wait.
func CatchThen(family string, then func(error)) {
	if p := recover(); p != nil {
		Note(family, p)
		then(fmt.Errorf("internal error, see the hub's log: %v", p))
	}
}

// Keep runs a function until ctx ends, and restarts it a second after a panic.
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

// Counts returns the number of caught panics since the process began, by family.
func Counts() map[string]uint64 {
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(counts)
}

// Note logs and counts a panic that the caller has recovered from itself.
func Note(family string, p any, args ...any) {
	now := time.Now()
	mu.Lock()
	counts[family]++
	logs := logged[family].IsZero() || now.Sub(logged[family]).Abs() >= quiet
	if logs {
		logged[family] = now
	}
	mu.Unlock()
	if !logs {
		return
	}
	l := logger.Load()
	if l == nil {
		l = slog.Default()
	}
	l.With(args...).Error("bug in the hub, which goes on; please report it: "+family+" panicked", "err", p,
		"stack", string(debug.Stack()))
}
