package access

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// queueing is how long a device waits for the slot, so that it receives a response before its own
// timeout.
const queueing = 10 * time.Second

// joinSlot waits for the slot of joins, which are decided one at a time. If many devices join at once,
// some are told to try again later, and not that they failed.
func (g *Guard) joinSlot(ctx context.Context) (leave func(), err error) {
	late := time.NewTimer(queueing)
	defer late.Stop()
	select {
	case g.joining <- struct{}{}:
		return func() { <-g.joining }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errUnavailable, ctx.Err())
	case <-late.C:
		after := time.Duration(5+rand.IntN(15)) * time.Second // random, so that they do not all come back together
		return nil, &busy{"many devices join now; try again in a moment", after}
	}
}

// busy refuses a valid request that may be tried again later. It is ErrBusy.
type busy struct {
	text  string
	after time.Duration
}

func (b *busy) Error() string     { return b.text }
func (b *busy) Is(err error) bool { return err == ErrBusy }

const (
	renewEvery = time.Minute // interval of renewals of one node's certificate
	renewBurst = 3           // burst, since a response may get lost

	requestEvery = time.Second // interval of new approval requests with one token
	requestBurst = 1000        // burst: the largest number of requests
)

// allowances are rate limiters by name.
type allowances struct {
	every time.Duration
	burst int

	mu   sync.Mutex
	by   map[string]*rate.Limiter // authenticated names only
	most int                      // limiters to keep before full ones are dropped
}

// take uses one of a name's allowance, and reports whether there was one.
func (l *allowances) take(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[string]*rate.Limiter{}
	}
	r := l.by[name]
	if r == nil {
		if len(l.by) >= max(l.most, 1024) { // a limiter that is full again need not be kept
			maps.DeleteFunc(l.by, func(_ string, r *rate.Limiter) bool { return r.Tokens() >= float64(l.burst) })
			l.most = 2 * len(l.by)
		}
		r = rate.NewLimiter(rate.Every(l.every), l.burst)
		l.by[name] = r
	}
	return r.Allow()
}
