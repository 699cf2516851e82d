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

// A remote is a node as it is heard through somebody else's broker.
type remote struct {
	node   string
	heard  atomic.Int64 // when it last said something; age of the client
	online atomic.Bool

	// Of the goroutine that reads the connection. Leases of the node's own boot have a bucket of
	// their own: who has an older certificate of its name must not be able to silence it.
	rate, leases bucket

	mu    sync.Mutex
	queue []arrival
	bytes int
	busy  bool // somebody hears the queue

	session sync.Mutex // who changes online tells the Handler before the next does
	peer    Peer       // while online

	// Of whoever hears the queue: the newest connection that a status of a boot came through.
	boot       string
	connection uint64
	told       time.Time // when it was last asked to find out that it is behind a broker
}

// An arrival is a message that waits to be heard.
type arrival struct {
	channel wire.Channel
	id      string
	payload []byte
}

// arrived takes one message off the connection. It must not block.
func (c *Client) arrived(m paho.Message) {
	rest, ours := strings.CutPrefix(m.Topic(), c.cfg.Prefix+"/nodes/")
	node, tail, whole := strings.Cut(rest, "/")
	if !ours || !whole {
		return // nothing that the hub has subscribed to
	}
	owner, ok := c.cfg.Owner(node)
	if !ok {
		c.b.stats.refused[refusedByHub].Add(1)
		c.b.warn("stranger", "drop a message of a node that nobody is: a device joins first, or its node was removed",
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
	if wire.Packed(payload) && len(payload) <= wire.MaxFromDevice { // it is as much work as its text
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
			fmt.Sprintf("publishes more than %.0f messages a second; what is more is dropped", c.cfg.NodeRate))
		return
	}
	switch {
	case err != nil || !ch.FromDevice():
		c.b.offence(node, forbiddenTopic, fmt.Sprintf("published on its topic %.80q, which is not a device's", tail))
		return
	case m.Retained():
		c.b.offence(node, retained, fmt.Sprintf(
			"a message on %.40q is retained at the broker; it is ignored, and is to be cleared there", tail))
		return
	case len(payload) > wire.MaxFromDevice:
		c.b.offence(node, packetTooLarge,
			fmt.Sprintf("sent a %s of %d bytes, at most %d are read", ch, len(payload), wire.MaxFromDevice))
		return
	}
	r.heard.Store(c.age())
	if ch != wire.ChannelLease {
		c.enqueue(r, arrival{ch, id, payload})
		return
	}
	if bad != nil {
		c.b.offence(node, badPayload, bad.Error())
		return
	}
	c.b.stats.heard[leases].Add(1)
	p := c.peer(node, owner)
	// a clone, or one that was followed: its status decides, and the node's device is asked for nothing
	if l.Boot != owner.Boot && r.online.Load() {
		return
	}
	if r.waits() { // what the lease shows to be missing may be what waits: it is not asked for again
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

// waits tells whether messages of the node wait to be heard.
func (r *remote) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy
}

// peer is the device that a node is.
func (c *Client) peer(node string, o Owner) Peer {
	return Peer{Node: node, Machine: o.Machine, Key: o.Key, Boot: o.Boot, Addr: "broker"}
}

// tryTake takes n if it is there.
func (b *bucket) tryTake(n float64) bool {
	b.fill(time.Now())
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}

// join and leave frame a session for the Handler.
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

// enqueue puts a message behind those of its node. What has no room is dropped: it was not
// acknowledged, or the next lease shows that it is missing.
func (c *Client) enqueue(r *remote, a arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) >= maxQueued || r.bytes+len(a.payload) > maxQueuedBytes || c.queued.Load() > maxAllQueued {
		c.b.stats.unremembered.Add(1)
		c.b.warn("queue", "drop messages of devices: the hub hears them too slowly; they will be sent again", "node", r.node)
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

// deliverAll hears what waits of a node, in order.
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
	defer panics.Catch("mqtt") // what could not be heard is sent again
	c.mu.RLock()
	run := c.run
	c.mu.RUnlock()
	ctx, cancel := context.WithTimeout(run, rememberTimeout)
	defer cancel()
	switch err := c.deliver(ctx, r, a); {
	case err == nil:
	case errors.Is(err, errUnheard):
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

// errUnheard is of a message that is not acknowledged, and of which nobody else is told.
var errUnheard = errors.New("not of this node's device")

// deliver tells the Handler one message, if it is of the boot that is the node's.
func (c *Client) deliver(ctx context.Context, r *remote, a arrival) error {
	owner, ok := c.cfg.Owner(r.node)
	if !ok {
		return errUnheard
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
		return parseAndTell(c.b, statuses, a.payload, wire.ParseStatus, func(s wire.Status) error {
			return c.status(ctx, r, owner, s)
		})
	case wire.ChannelPods:
		return parseAndTell(c.b, podLists, a.payload, wire.ParsePods, func(v wire.Pods) error {
			if !own(v.Boot) {
				return errUnheard
			}
			return handler.Pods(ctx, p, v)
		})
	case wire.ChannelEvent:
		return parseAndTell(c.b, events, a.payload, wire.ParseEvent, func(v wire.Event) error {
			if !own(v.Boot) {
				return errUnheard
			}
			return handler.Event(ctx, p, v)
		})
	case wire.ChannelPresence:
		return parseAndTell(c.b, presences, a.payload, wire.ParsePresence, func(v wire.Presence) error {
			if v.Boot != owner.Boot || v.State == wire.PresenceLost && r.connectedSince(v) {
				return nil
			}
			handler.Presence(p, v) // a will of an older agent can be late, and is wrong until the next lease
			r.leave(c)
			return nil
		})
	case wire.ChannelReply:
		return parseAndTell(c.b, replies, a.payload, wire.ParseReply, func(v wire.Reply) error {
			if v.Boot == "" {
				c.b.warn("reply "+r.node, "drop an answer that does not say whose it is: the agent is too old for a broker "+
					"between it and the hub, or it is somebody else's", "node", r.node)
			}
			if !own(v.Boot) {
				return errUnheard
			}
			handler.Reply(p, a.id, v)
			return nil
		})
	}
	return nil
}

// againOfBroker is how long a device has to find out that it is behind a broker: one whose agent
// is too old to prove anything says so ever again.
const againOfBroker = time.Hour

// tellOfBroker asks a device for a renewal, whose answer says that it is behind a broker. One that
// proves nothing does not know: the broker has taken over the address of the hub's own one, and
// looks like that.
func (c *Client) tellOfBroker(r *remote) {
	if !r.told.IsZero() && time.Since(r.told) < againOfBroker {
		return
	}
	r.told = time.Now()
	if err := c.Request(r.node, "renew", wire.Request{Type: wire.RequestRenew}); err != nil {
		c.cfg.Log.Debug("tell a device that it is behind a broker", "node", r.node, "err", err)
	}
}

// status hears a status. One of another boot than the node's is of a device that the hub has
// not seen: it must prove that it has the node's key, and may be the node as one that connects
// to the hub itself may. What it says else it says again until then.
func (c *Client) status(ctx context.Context, r *remote, owner Owner, s wire.Status) error {
	p := c.peer(r.node, owner)
	if s.Proof == nil {
		c.tellOfBroker(r)
	}
	if s.Boot != owner.Boot {
		p.Machine, p.Boot = s.MachineID, s.Boot
		key, err := c.cfg.Proof(r.node, s.Boot, s.Proof)
		if err == nil && key != owner.Key {
			err = errors.New("it is another device than the one that joined last, or was removed from this hub; it must " +
				"join again with a new token")
		}
		if err != nil {
			c.b.stats.refused[badIdentity].Add(1)
			c.b.warn("identity "+r.node, "refuse a device", "node", r.node, "machine", s.MachineID, "boot", s.Boot, "err", err)
			return errUnheard
		}
		if err := c.cfg.Handler.Connect(p); err != nil {
			c.b.stats.refused[refusedByHub].Add(1)
			c.b.warn("refused "+r.node, "refuse a device", "node", r.node, "machine", s.MachineID, "boot", s.Boot, "err", err)
			return errUnheard
		}
	}
	if err := c.cfg.Handler.Status(ctx, p, s); err != nil {
		return err
	}
	if now, _ := c.cfg.Owner(r.node); now.Boot != s.Boot || now.Key != owner.Key {
		return errUnheard // it was refused
	}
	if r.boot != s.Boot {
		r.boot, r.connection = s.Boot, 0
	}
	r.connection = max(r.connection, s.Connection)
	r.join(c, p)
	return nil
}

// connectedSince tells whether the device has connected again since the connection that a will is
// of.
func (r *remote) connectedSince(will wire.Presence) bool {
	return r.boot == will.Boot && will.Connection > 0 && will.Connection < r.connection
}
