package ask

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/wire"
)

const (
	// usageValid is how long a measurement is reused. Devices measure on request only.
	usageValid = 15 * time.Second
	// usageShown is how long an old measurement is still shown.
	usageShown = time.Minute
)

// usages are the newest measurements and those in progress.
type usages struct {
	mu     sync.Mutex
	byNode map[string]*nodeUsage
	swept  time.Time
}

// A nodeUsage is the usage of one node.
type nodeUsage struct {
	newest *measurement // nil if there is none, or if it failed
	last   wire.Usage   // the last received usage
	shown  time.Time    // last call of LastUsage
}

type measurement struct {
	done  chan struct{} // closed when the result is set
	at    time.Time     // time of the request
	usage wire.Usage
	err   error
}

// Usage returns the current resource usage of a node and its pods. An idle device takes two seconds
// to measure. Calls within 15 s share one result, which must not be modified. The result's Time is
// the hub's. Concurrent calls for many nodes are fine. ErrOffline is returned at once.
func (c *Client) Usage(ctx context.Context, node string) (wire.Usage, error) {
	m, mustMeasure := c.usages.begin(node, time.Now())
	if mustMeasure {
		go func() {
			defer close(m.done)
			defer panics.CatchThen("usage", func(err error) {
				m.err = err
				c.usages.end(node, m)
			})
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*chunkTimeout)
			defer cancel()
			m.usage, m.err = c.measure(ctx, node)
			c.usages.end(node, m)
		}()
	}
	select {
	case <-m.done:
		return m.usage, m.err
	case <-ctx.Done():
		return wire.Usage{}, ctx.Err()
	}
}

// LastUsage returns the newest usage of the last minute without waiting. If that is older than a
// few seconds, it also requests a new usage, and calls notify when the new one arrives.
func (c *Client) LastUsage(node string, notify func()) (wire.Usage, bool) {
	now := time.Now()
	c.usages.mu.Lock()
	defer c.usages.mu.Unlock()
	g := c.usages.entry(node, now)
	if now.Sub(g.shown) >= usageValid {
		g.shown = now
		go func() {
			defer panics.Catch("usage")
			if _, err := c.Usage(context.Background(), node); err == nil {
				notify()
			}
		}()
	}
	if now.Sub(g.last.Time) >= usageShown {
		return wire.Usage{}, false
	}
	return g.last, true
}

func (c *Client) measure(ctx context.Context, node string) (wire.Usage, error) {
	q, err := c.ask(ctx, node, wire.Request{Type: wire.RequestUsage})
	if err != nil {
		return wire.Usage{}, err
	}
	defer q.close()
	var all bytes.Buffer
	for {
		r, err := q.next(ctx, chunkTimeout)
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

// entry returns a node's entry, and removes entries that were not used lately. The caller holds mu.
func (u *usages) entry(node string, now time.Time) *nodeUsage {
	if now.Sub(u.swept) > usageShown {
		for n, g := range u.byNode {
			if now.Sub(g.shown) > usageShown && (g.newest == nil || now.Sub(g.newest.at) > usageShown) {
				delete(u.byNode, n)
			}
		}
		u.swept = now
	}
	if u.byNode == nil {
		u.byNode = map[string]*nodeUsage{}
	}
	g := u.byNode[node]
	if g == nil {
		g = &nodeUsage{}
		u.byNode[node] = g
	}
	return g
}

// begin returns a valid measurement, or a new one that the caller must measure.
func (u *usages) begin(node string, now time.Time) (m *measurement, mustMeasure bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	g := u.entry(node, now)
	if g.newest != nil && now.Sub(g.newest.at) < usageValid {
		return g.newest, false
	}
	g.newest = &measurement{done: make(chan struct{}), at: now}
	return g.newest, true
}

// end stores a measurement. It removes a failed one, so that the next call measures again.
func (u *usages) end(node string, m *measurement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	g := u.byNode[node]
	if g == nil {
		return
	}
	if m.err == nil {
		g.last = m.usage
	} else if g.newest == m {
		g.newest = nil
	}
}
