package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/wire"
)

// A remote is a node that is connected to an external broker.
type remote struct {
	node        string
	lastMessage atomic.Int64 // the client's age at the last message
	online      atomic.Bool

	// rate and leases belong to the connection's goroutine. Leases of the node's own boot have
	// their own bucket, so that a client with an older certificate of the same name cannot block
	// them.
	rate, leases bucket

	mu    sync.Mutex
	queue []arrival
	bytes int
	busy  bool // a goroutine handles the queue

	session sync.Mutex // guards a change of online together with its call of the Handler
	peer    Peer       // the device while online

	// The fields below belong to the goroutine that handles the queue. boot is the boot of the
	// newest status, and connection is the newest connection that sent a status of that boot.
	boot       string
	connection uint64
	requested  time.Time // when the device last got a request for a proof
}

// An arrival is a message that waits for the Handler.
type arrival struct {
	channel wire.Channel
	id      string
	payload []byte
}

// receive handles one message of the connection. It must not block.
func (c *Client) receive(m paho.Message) {
	rest, ours := strings.CutPrefix(m.Topic(), c.cfg.Prefix+"/nodes/")
	node, tail, whole := strings.Cut(rest, "/")
	if !ours || !whole {
		return // the topic matches no subscription of the hub
	}
	owner, ok := c.cfg.Owner(node)
	if !ok {
		c.b.stats.refused[refusedByHub].Add(1)
		c.b.warn("stranger", "drop a message of an unknown node: its device has not joined, or the node was removed",
			"node", fmt.Sprintf("%.80q", node))
		return
	}
	r := c.remote(node)
	if r == nil {
		if wire.ValidNode(node) != nil {
			return
		}
		r = &remote{node: node, rate: newBucket(c.cfg.NodeRate), leases: newBucket(c.cfg.NodeRate)}
		c.mu.Lock()
		c.nodes[node] = r
		c.mu.Unlock()
	}
	payload := m.Payload()
	cost := 1 + min(float64(len(payload))/(16<<10), c.cfg.NodeRate)
	if wire.Packed(payload) && len(payload) <= wire.MaxFromDevice { // charge for the unpacked size
		cost += min(float64(wire.TextSize(payload))/(16<<10), c.cfg.NodeRate)
	}
	ch, id, err := wire.ParseChannel(tail)
	from, l, bad := &r.rate, wire.Lease{}, error(nil)
	if ch == wire.ChannelLease {
		if l, bad = wire.ParseLease(payload); bad == nil && l.Boot == owner.Boot {
			from = &r.leases
		}
	}
	if !from.tryTake(cost) {
		c.b.offence(node, badPayload,
			fmt.Sprintf("publishes more than %.0f messages a second; the rest is dropped", c.cfg.NodeRate))
		return
	}
	switch {
	case err != nil || !ch.FromDevice():
		c.b.offence(node, forbiddenTopic, fmt.Sprintf("published on %.80q, which is not a device's channel", tail))
		return
	case m.Retained():
		c.b.offence(node, retained, fmt.Sprintf(
			"has a retained message on %.40q at the broker, which is ignored: clear it there", tail))
		return
	case len(payload) > wire.MaxFromDevice:
		c.b.offence(node, packetTooLarge,
			fmt.Sprintf("sent a %s of %d bytes, but at most %d are allowed", ch, len(payload), wire.MaxFromDevice))
		return
	}
	r.lastMessage.Store(c.age())
	if ch != wire.ChannelLease {
		c.enqueue(r, arrival{ch, id, payload})
		return
	}
	if bad != nil {
		c.b.offence(node, badPayload, bad.Error())
		return
	}
	c.b.stats.received[leases].Add(1)
	p := c.peer(node, owner)
	// A lease with another boot comes from a clone or a replaced device. The hub waits for the
	// sender's status, and requests nothing of the node.
	if l.Boot != owner.Boot && r.online.Load() {
		return
	}
	if r.waits() { // the missing message may be in the queue, so do not request it again
		if l.Boot != owner.Boot {
			return
		}
		l.Status, l.Pods = 0, 0
	}
	if l.Boot == owner.Boot && !r.online.Load() {
		r.join(c, p)
	}
	c.cfg.Handler.Lease(p, l)
}

// waits reports whether messages of the node wait for the Handler.
func (r *remote) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy
}

// peer returns the device of a node.
func (c *Client) peer(node string, o Owner) Peer {
	return Peer{Node: node, Machine: o.Machine, Key: o.Key, Boot: o.Boot, Addr: "broker"}
}

// tryTake takes n if available.
func (b *bucket) tryTake(n float64) bool {
	b.fill(time.Now())
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}

// join and leave call the Handler's Connected and Disconnected.
func (r *remote) join(c *Client, p Peer) {
	r.session.Lock()
	defer r.session.Unlock()
	if r.online.Load() && r.peer == p {
		return
	}
	if r.online.Load() {
		c.cfg.Handler.Disconnected(r.peer)
	}
	r.peer = p
	c.cfg.Handler.Connected(p)
	r.online.Store(true)
}

func (r *remote) leave(c *Client) {
	r.session.Lock()
	defer r.session.Unlock()
	if r.online.CompareAndSwap(true, false) {
		c.cfg.Handler.Disconnected(r.peer)
	}
}

// enqueue adds a message to its node's queue, or drops it if there is no space. A dropped message
// was not acknowledged, or the next lease shows that it is missing.
func (c *Client) enqueue(r *remote, a arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) >= maxQueued || r.bytes+len(a.payload) > maxQueuedBytes || c.queued.Load() > maxAllQueued {
		c.b.stats.unremembered.Add(1)
		c.b.warn("queue", "drop messages of devices: the hub is too slow; they will be sent again", "node", r.node)
		return
	}
	r.queue = append(r.queue, a)
	r.bytes += len(a.payload)
	c.queued.Add(int64(len(a.payload)))
	if !r.busy {
		r.busy = true
		go c.deliverAll(r)
	}
}

// deliverAll handles a node's queue in order.
func (c *Client) deliverAll(r *remote) {
	defer panics.CatchThen("mqtt", func(error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.busy = false
	})
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.queue, r.busy = nil, false
			r.mu.Unlock()
			return
		}
		a := r.queue[0]
		r.queue = r.queue[1:]
		r.bytes -= len(a.payload)
		r.mu.Unlock()
		c.deliverOne(r, a)
		c.queued.Add(-int64(len(a.payload)))
	}
}

func (c *Client) deliverOne(r *remote, a arrival) {
	c.slots <- struct{}{}
	defer func() { <-c.slots }()
	defer panics.Catch("mqtt") // the device repeats the message
	c.mu.RLock()
	run := c.run
	c.mu.RUnlock()
	ctx, cancel := context.WithTimeout(run, storeTimeout)
	defer cancel()
	switch err := c.deliver(ctx, r, a); {
	case err == nil:
	case errors.Is(err, errIgnored):
		return
	default:
		s := &session{peer: Peer{Node: r.node}}
		if !c.b.acknowledges(s, publication{topic: []byte(wire.Topic(c.cfg.Prefix, r.node, a.channel))}, err) {
			return
		}
	}
	switch a.channel {
	case wire.ChannelStatus, wire.ChannelPods, wire.ChannelEvent:
		if err := c.Request(r.node, "ack", wire.Request{Type: wire.RequestAck, Of: wire.AckOf(a.payload)}); err != nil {
			c.cfg.Log.Debug("acknowledge; the device will send again", "node", r.node, "err", err)
		}
	}
}

// errIgnored: the message is not acknowledged, and the error is not logged.
var errIgnored = errors.New("not from this node's device")

// deliver passes a message to the Handler if its boot is the node's.
func (c *Client) deliver(ctx context.Context, r *remote, a arrival) error {
	owner, ok := c.cfg.Owner(r.node)
	if !ok {
		return errIgnored
	}
	handler, p := c.cfg.Handler, c.peer(r.node, owner)
	own := func(boot string) bool {
		if boot != owner.Boot {
			return false
		}
		r.join(c, p)
		return true
	}
	switch a.channel {
	case wire.ChannelStatus:
		return parseAndHandle(c.b, statuses, a.payload, wire.ParseStatus, func(s wire.Status) error {
			return c.status(ctx, r, owner, s)
		})
	case wire.ChannelPods:
		return parseAndHandle(c.b, podLists, a.payload, wire.ParsePods, func(v wire.Pods) error {
			if !own(v.Boot) {
				return errIgnored
			}
			return handler.Pods(ctx, p, v)
		})
	case wire.ChannelEvent:
		return parseAndHandle(c.b, events, a.payload, wire.ParseEvent, func(v wire.Event) error {
			if !own(v.Boot) {
				return errIgnored
			}
			return handler.Event(ctx, p, v)
		})
	case wire.ChannelPresence:
		return parseAndHandle(c.b, presences, a.payload, wire.ParsePresence, func(v wire.Presence) error {
			if v.Boot != owner.Boot || v.State == wire.PresenceLost && r.connectedSince(v) {
				return nil
			}
			handler.Presence(p, v) // the will of an older agent can be late; the next lease then corrects it
			r.leave(c)
			return nil
		})
	case wire.ChannelReply:
		return parseAndHandle(c.b, replies, a.payload, wire.ParseReply, func(v wire.Reply) error {
			if v.Boot == "" {
				c.b.warn("reply "+r.node, "drop a response without a sender: the agent is too old for a broker "+
					"between it and the hub, or it is another device", "node", r.node)
			}
			if !own(v.Boot) {
				return errIgnored
			}
			handler.Reply(p, a.id, v)
			return nil
		})
	}
	return nil
}

// behindBrokerEvery is the interval of telling a device that it is behind a broker. An agent
// without support for proofs never sends one, so it is told again and again.
const behindBrokerEvery = time.Hour

// requestProof requests a renewal, whose response tells the device that it is behind a broker. A
// device that sends no proof takes the broker for the hub, because the broker has taken over the
// hub's address.
func (c *Client) requestProof(r *remote) {
	if !r.requested.IsZero() && time.Since(r.requested) < behindBrokerEvery {
		return
	}
	r.requested = time.Now()
	if err := c.Request(r.node, "renew", wire.Request{Type: wire.RequestRenew}); err != nil {
		c.cfg.Log.Debug("tell a device that it is behind a broker", "node", r.node, "err", err)
	}
}

// status handles a status. A status of another boot comes from a device that the hub has not seen.
// It must prove the node's key, and is then checked like a new connection. The device repeats its
// earlier messages.
func (c *Client) status(ctx context.Context, r *remote, owner Owner, s wire.Status) error {
	p := c.peer(r.node, owner)
	if s.Proof == nil {
		c.requestProof(r)
	}
	if s.Boot != owner.Boot {
		p.Machine, p.Boot = s.MachineID, s.Boot
		key, err := c.cfg.Proof(r.node, s.Boot, s.Proof)
		if err == nil && key != owner.Key {
			err = errors.New("another device has joined as this node, or the node was removed; the device must " +
				"join again with a new token")
		}
		if err != nil {
			c.b.stats.refused[badIdentity].Add(1)
			c.b.warn("identity "+r.node, "refuse a device", "node", r.node, "machine", s.MachineID, "boot", s.Boot, "err", err)
			return errIgnored
		}
		if err := c.cfg.Handler.Connect(p); err != nil {
			c.b.stats.refused[refusedByHub].Add(1)
			c.b.warn("refused "+r.node, "refuse a device", "node", r.node, "machine", s.MachineID, "boot", s.Boot, "err", err)
			return errIgnored
		}
	}
	if err := c.cfg.Handler.Status(ctx, p, s); err != nil {
		return err
	}
	if now, _ := c.cfg.Owner(r.node); now.Boot != s.Boot || now.Key != owner.Key {
		return errIgnored // the Handler refuses the device
	}
	if r.boot != s.Boot {
		r.boot, r.connection = s.Boot, 0
	}
	r.connection = max(r.connection, s.Connection)
	r.join(c, p)
	return nil
}

// connectedSince reports whether the device has connected again after the connection that a will is
// about.
func (r *remote) connectedSince(will wire.Presence) bool {
	return r.boot == will.Boot && will.Connection > 0 && will.Connection < r.connection
}
