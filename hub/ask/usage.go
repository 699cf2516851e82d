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
	// usageFor is how long a measurement is good for. Nobody measures anything, or
	// sends it, while nobody asks.
	usageFor = 15 * time.Second
	// usageShown is how long one is better than none.
	usageShown = time.Minute
)

// usages are the newest measurements, and those under way.
type usages struct {
	mu     sync.Mutex
	byNode map[string]*nodeUsage
	swept  time.Time
}

// A nodeUsage is what is known of one node.
type nodeUsage struct {
	newest *measurement // nil: none, or the last one failed
	last   wire.Usage   // that came
	shown  time.Time    // when LastUsage last asked
}

type measurement struct {
	done  chan struct{} // closed when the rest is there
	at    time.Time     // of the question
	usage wire.Usage
	err   error
}

// Usage asks a node what it and its pods use now. The device takes some two
// seconds to measure if it has not been asked lately; whoever asks within 15 s gets
// the same answer, which must not be changed. Its Time is the hub's. Many nodes may
// be asked at once. ErrOffline comes at once.
func (c *Client) Usage(ctx context.Context, node string) (wire.Usage, error) {
	m, mine := c.usages.begin(node, time.Now())
	if mine {
		go func() {
			defer close(m.done)
			defer panics.CatchThen("usage", func(err error) {
				m.err = err
				c.usages.end(node, m)
			})
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
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

// LastUsage returns what is known of a node, of the last minute, and does not wait.
// Where it is not of the last seconds the device is asked besides, and heard is called
// when it has answered.
func (c *Client) LastUsage(node string, heard func()) (wire.Usage, bool) {
	now := time.Now()
	c.usages.mu.Lock()
	defer c.usages.mu.Unlock()
	g := c.usages.of(node, now)
	if now.Sub(g.shown) >= usageFor {
		g.shown = now
		go func() {
			defer panics.Catch("usage")
			if _, err := c.Usage(context.Background(), node); err == nil {
				heard()
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

// of is a node's gauge; the caller holds mu. Those that nobody has asked for are forgotten.
func (u *usages) of(node string, now time.Time) *nodeUsage {
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

// begin finds a measurement that is good, or makes one for the caller to do.
func (u *usages) begin(node string, now time.Time) (m *measurement, mine bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	g := u.of(node, now)
	if g.newest != nil && now.Sub(g.newest.at) < usageFor {
		return g.newest, false
	}
	g.newest = &measurement{done: make(chan struct{}), at: now}
	return g.newest, true
}

// end keeps a measurement. One that failed is forgotten: the next one who asks asks anew.
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
