package broker

import (
	"context"
	"sync"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/wire"
)

// An outbox holds messages for the connection to a broker. Senders never wait.
type outbox struct {
	wake chan struct{}

	mu       sync.Mutex
	requests []message
	desired  map[string]*message // the newest desired state of each node
	order    []string            // nodes with a desired state, oldest first
	bytes    int
}

// put adds a message. replaced: it replaces an earlier desired state; ok: there was space.
func (o *outbox) put(node string, m message) (replaced, ok bool) {
	size := len(m.payload)
	for _, p := range m.more {
		size += len(p)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes+size > maxOutBytes && o.bytes > 0 || len(o.requests) >= maxOut {
		return false, false
	}
	o.bytes += size
	if m.channel != wire.ChannelDesired {
		o.requests = append(o.requests, m)
	} else {
		if o.desired == nil {
			o.desired = map[string]*message{}
		}
		old := o.desired[node]
		if replaced = old != nil; replaced {
			o.bytes -= sizeOf(old)
		} else {
			o.order = append(o.order, node)
		}
		o.desired[node] = &m
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return replaced, true
}

func sizeOf(m *message) int {
	size := len(m.payload)
	for _, p := range m.more {
		size += len(p)
	}
	return size
}

// next removes the next message: requests, then desired states.
func (o *outbox) next() (m message, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case len(o.requests) > 0:
		m = o.requests[0]
		if o.requests = o.requests[1:]; len(o.requests) == 0 {
			o.requests = nil
		}
	case len(o.order) > 0:
		m = *o.desired[o.order[0]]
		delete(o.desired, o.order[0])
		o.order = o.order[1:]
	default:
		return m, false
	}
	o.bytes -= sizeOf(&m)
	return m, true
}

// clear drops the messages for an earlier connection. The next leases show that they are missing.
func (o *outbox) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests, o.desired, o.order, o.bytes = nil, nil, nil, 0
}

// drain publishes messages until ctx ends.
func (o *outbox) drain(ctx context.Context, c *Client, client paho.Client) {
	defer o.clear()
	for {
		m, ok := o.next()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-o.wake:
			}
			continue
		}
		for _, p := range append([][]byte{m.payload}, m.more...) {
			if ctx.Err() != nil {
				return
			}
			if m.channel == wire.ChannelDesired {
				c.b.stats.received[desireds].Add(1)
			} else {
				c.b.stats.received[requests].Add(1)
			}
			t := client.Publish(m.topic, 0, false, p)
			select { // until paho has written it, so that messages queue here and not in paho
			case <-t.Done():
			case <-ctx.Done(): // the connection has ended
				return
			}
		}
	}
}
