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

// queueing is how long a device waits for its turn to join, so that it hears what
// came of it before it gives up by itself.
const queueing = 10 * time.Second

// turn waits until a join may be decided, one at a time. Devices that come with a right
// token all at once are told to come again, not that they have failed.
func (g *Guard) turn(ctx context.Context) (leave func(), err error) {
	late := time.NewTimer(queueing)
	defer late.Stop()
	select {
	case g.joining <- struct{}{}:
		return func() { <-g.joining }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errUnavailable, ctx.Err())
	case <-late.C:
		after := time.Duration(5+rand.IntN(15)) * time.Second // not all in the same moment again
		return nil, &busy{"many devices join now; try again in a moment", after}
	}
}

// busy is a no to something right, which may be asked again after a while. It is ErrBusy.
type busy struct {
	text  string
	after time.Duration
}

func (b *busy) Error() string     { return b.text }
func (b *busy) Is(err error) bool { return err == ErrBusy }

const (
	renewEvery = time.Minute // a node may renew its certificate
	renewBurst = 3           // at once: an answer may get lost

	requestEvery = time.Second // a new request for approval may be made with one token
	requestBurst = 1000        // at once: as many as there can be
)

// allowances limit what each of several names may do.
type allowances struct {
	every time.Duration
	burst int

	mu   sync.Mutex
	by   map[string]*rate.Limiter // of names that have proved who they are
	most int                      // so many are remembered before those that need not be are looked for
}

// take takes one of a name's allowance, if there is one left.
func (l *allowances) take(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[string]*rate.Limiter{}
	}
	r := l.by[name]
	if r == nil {
		if len(l.by) >= max(l.most, 1024) { // whose allowance is whole again need not be remembered
			maps.DeleteFunc(l.by, func(_ string, r *rate.Limiter) bool { return r.Tokens() >= float64(l.burst) })
			l.most = 2 * len(l.by)
		}
		r = rate.NewLimiter(rate.Every(l.every), l.burst)
		l.by[name] = r
	}
	return r.Allow()
}
