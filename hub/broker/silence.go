package broker

import (
	"context"
	"time"
)

// sweep disconnects nodes that have become silent.
func (c *Client) sweep(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.Silence / 8)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, r := range c.silent() {
			if r.online.Load() {
				r.leave(c)
			} else if _, ok := c.cfg.Owner(r.node); !ok {
				c.mu.Lock()
				delete(c.nodes, r.node)
				c.mu.Unlock()
			}
		}
	}
}

// silent returns the nodes that have sent nothing for too long.
func (c *Client) silent() (all []*remote) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, r := range c.nodes {
		if c.isSilent(r) {
			all = append(all, r)
		}
	}
	return all
}

// isSilent reports whether a node has sent nothing for too long.
func (c *Client) isSilent(r *remote) bool {
	quiet := c.since(r.lastMessage.Load())
	if quiet <= c.cfg.Silence {
		return false
	}
	o, _ := c.cfg.Owner(r.node)
	return quiet > max(c.cfg.Silence, o.Silence)
}
