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

// queueing is how long a device waits for the slot. It is shorter than the device's own timeout, so
// that the device receives a response.
const queueing = 10 * time.Second

// joinSlot waits for the slot of joins, which are decided one at a time. If many devices join at
// once, the hub asks some of them to retry later.
func (g *Guard) joinSlot(ctx context.Context) (leave func(), err error) {
	late := time.NewTimer(queueing)
	defer late.Stop()
	select {
	case g.joining <- struct{}{}:
		return func() { <-g.joining }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errUnavailable, ctx.Err())
	case <-late.C:
		after := time.Duration(5+rand.IntN(15)) * time.Second // random, so that they do not retry all together
		return nil, &busy{"many devices join now; try again in a moment", after}
	}
}

// busy is the refusal of a valid request that may be retried later. It is ErrBusy.
type busy struct {
	text  string
	after time.Duration
}

func (b *busy) Error() string     { return b.text }
func (b *busy) Is(err error) bool { return err == ErrBusy }

const (
	renewEvery = time.Minute // interval of renewals of one node's certificate
	renewBurst = 3           // burst, because a response may get lost

	requestEvery = time.Second // interval of new approval requests with one token
	requestBurst = 1000        // burst; equal to the largest number of requests
)

// allowances are rate limiters by name.
type allowances struct {
	every time.Duration
	burst int

	mu   sync.Mutex
	by   map[string]*rate.Limiter // authenticated names only
	most int                      // number of limiters above which the full ones are dropped
}

// take uses a part of a name's allowance, and reports whether there was any.
func (l *allowances) take(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[string]*rate.Limiter{}
	}
	r := l.by[name]
	if r == nil {
		if len(l.by) >= max(l.most, 1024) { // a full limiter has the state of a new one
			maps.DeleteFunc(l.by, func(_ string, r *rate.Limiter) bool { return r.Tokens() >= float64(l.burst) })
			l.most = 2 * len(l.by)
		}
		r = rate.NewLimiter(rate.Every(l.every), l.burst)
		l.by[name] = r
	}
	return r.Allow()
}
