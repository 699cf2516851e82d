package ask

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

// usageFor is how long a measurement is good for. Nobody measures anything, or
// sends it, while nobody asks.
const usageFor = 15 * time.Second

// usages are the measurements of the last minute or so, and those under way.
type usages struct {
	mu     sync.Mutex
	byNode map[string]*measured
	swept  time.Time
}

type measured struct {
	done  chan struct{} // closed when the rest is there
	at    time.Time     // of the question
	usage wire.Usage
	err   error
}

// Usage asks a node what it and its pods use now. The device takes some two
// seconds to measure if it has not been asked lately; whoever asks within 15 s gets
// the same answer, which must not be changed. Its Time is the hub's. Many nodes may
// be asked at once. ErrOffline comes at once.
func (d *Desk) Usage(ctx context.Context, node string) (wire.Usage, error) {
	m, mine := d.usages.entry(node, time.Now())
	if mine {
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
			defer cancel()
			m.usage, m.err = d.measure(ctx, node)
			if m.err != nil {
				d.usages.drop(node, m)
			}
			close(m.done)
		}()
	}
	select {
	case <-m.done:
		return m.usage, m.err
	case <-ctx.Done():
		return wire.Usage{}, ctx.Err()
	}
}

func (d *Desk) measure(ctx context.Context, node string) (wire.Usage, error) {
	q, err := d.ask(ctx, node, wire.Request{Type: wire.RequestUsage})
	if err != nil {
		return wire.Usage{}, err
	}
	defer q.close()
	var all bytes.Buffer
	for {
		r, err := q.next(ctx, patience)
		if err == nil && all.Len()+len(r.Data) > wire.MaxUsage {
			err = fmt.Errorf("more than %d bytes: %w", wire.MaxUsage, ErrLost)
		}
		if err != nil {
			return wire.Usage{}, err
		}
		all.Write(r.Data)
		if r.EOF {
			break
		}
	}
	u, err := wire.ParseUsage(all.Bytes())
	if err != nil {
		return wire.Usage{}, q.wrap(err)
	}
	u.Time = time.Now()
	return u, nil
}

// entry finds a measurement that is good, or makes one for the caller to do.
func (u *usages) entry(node string, now time.Time) (m *measured, mine bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.swept) > time.Minute {
		for n, old := range u.byNode {
			if now.Sub(old.at) > time.Minute {
				delete(u.byNode, n)
			}
		}
		u.swept = now
	}
	if m = u.byNode[node]; m != nil && now.Sub(m.at) < usageFor {
		return m, false
	}
	if u.byNode == nil {
		u.byNode = map[string]*measured{}
	}
	m = &measured{done: make(chan struct{}), at: now}
	u.byNode[node] = m
	return m, true
}

// drop forgets a measurement that failed: the next one who asks asks anew.
func (u *usages) drop(node string, m *measured) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byNode[node] == m {
		delete(u.byNode, node)
	}
}
