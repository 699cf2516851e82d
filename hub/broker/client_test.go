package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/shared/wire"
)

type allow struct{ mqtt.HookBase }

func (*allow) Provides(b byte) bool {
	return b == mqtt.OnConnectAuthenticate ||
		b == mqtt.OnACLCheck
}
func (*allow) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }
func (*allow) OnACLCheck(*mqtt.Client, string, bool) bool              { return true }

// elsewhere starts an external broker that allows everything.
func elsewhere(t *testing.T) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), serveElsewhere(t, l)
}

func serveElsewhere(t *testing.T, l net.Listener) (stop func()) {
	t.Helper()
	s := mqtt.New(&mqtt.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := errors.Join(s.AddHook(new(allow), nil), s.AddListener(listeners.NewNet("tcp", l)), s.Serve()); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _ = s.Close() })
	t.Cleanup(stop)
	return stop
}

// owners has the devices of a hub's nodes.
type owners struct {
	mu sync.Mutex
	by map[string]Owner
}

func (o *owners) get(node string) (Owner, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w, ok := o.by[node]
	return w, ok
}

func (o *owners) set(node string, w Owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by[node] = w
}

// A hubBehind is a Client with a recording Handler, and a device that the test controls.
type hubBehind struct {
	*Client
	heard   *recorder
	owners  *owners
	device  paho.Client
	address string // address of the broker

	mu       sync.Mutex
	messages []string // messages to the device: the channel, and for an acknowledgement its message
}

func (h *hubBehind) got(part string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.messages {
		if strings.Contains(m, part) {
			n++
		}
	}
	return n
}

func (h *hubBehind) say(channel string, v any) []byte {
	body, ok := v.([]byte)
	if !ok {
		body, _ = json.Marshal(v)
	}
	h.device.Publish("fleet/v1/nodes/pi-1/"+channel, 1, false, body).WaitTimeout(patience)
	return body
}

func behindBroker(t *testing.T, change func(*ClientConfig)) *hubBehind {
	t.Helper()
	address, _ := elsewhere(t)
	h := &hubBehind{address: address, heard: &recorder{},
		owners: &owners{by: map[string]Owner{"pi-1": {Key: "key-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1"}}}}
	cfg := ClientConfig{
		Handler: h.heard, Log: quiet, Servers: []string{address}, Owner: h.owners.get,
		Proof: func(node, boot string, p *wire.Proof) (string, error) {
			if p == nil {
				return "", errors.New("no proof")
			}
			return string(p.Key), nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.Client = c
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	h.device = paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + address).SetClientID("device").SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
		var r wire.Request
		_ = json.Unmarshal(m.Payload(), &r)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.messages = append(h.messages, m.Topic()+" "+r.Type+" "+r.Of)
	}))
	if tok := h.device.Connect(); !tok.WaitTimeout(patience) || tok.Error() != nil {
		t.Fatal(tok.Error())
	}
	h.device.SubscribeMultiple(map[string]byte{"fleet/v1/nodes/pi-1/desired": 0, "fleet/v1/nodes/pi-1/request/+": 0},
		nil).WaitTimeout(patience)
	t.Cleanup(func() { h.device.Disconnect(0) })
	await(t, "the connection", c.Connected)
	return h
}

func lease(boot string, seq int) wire.Lease { return wire.Lease{Boot: boot, Seq: uint64(seq)} }

// The hub acknowledges a message if it has stored it, or if it can never store it.
func TestBehindABrokerTheHubAcknowledges(t *testing.T) {
	var fails atomic.Bool
	h := behindBroker(t, nil)
	h.heard.status = func(context.Context) error {
		if fails.Load() {
			return errors.New("the disk is full")
		}
		return nil
	}
	for channel, v := range map[string]any{
		"status": wire.Status{Boot: "b1", Seq: 1}, "pods": wire.Pods{Boot: "b1", Seq: 1},
		"event": wire.Event{Boot: "b1", Type: "Normal", Reason: "R"},
	} {
		body := h.say(channel, v)
		await(t, "the acknowledgement of "+channel, func() bool { return h.got("ack "+wire.AckOf(body)) == 1 })
	}
	fails.Store(true)
	lost := h.say("status", wire.Status{Boot: "b1", Seq: 2})
	marker := h.say("event", wire.Event{Boot: "b1", Type: "Normal", Reason: "Marker"})
	await(t, "the message after it", func() bool { return h.got("ack "+wire.AckOf(marker)) == 1 })
	if h.got(wire.AckOf(lost)) != 0 {
		t.Error("a status that could not be stored was acknowledged")
	}
	bad := h.say("event", []byte(`{"boot":"b1"}`))
	await(t, "the acknowledgement of an invalid message, which would be repeated for ever",
		func() bool { return h.got("ack "+wire.AckOf(bad)) == 1 })
	if h.heard.count("offence pi-1 event") != 1 {
		t.Errorf("no offence: %q", h.heard.all())
	}
}

// Only a device that proves the enrolled key becomes the node. The hub ignores messages of another
// boot.
func TestBehindABrokerABootNeedsAProof(t *testing.T) {
	h := behindBroker(t, nil)
	refused := func(name string, s wire.Status) {
		t.Helper()
		before := len(h.heard.all())
		body := h.say("status", s)
		h.say("pods", wire.Pods{Boot: s.Boot, Seq: 9})
		h.say("presence", wire.Presence{Boot: s.Boot, State: wire.PresenceShutdown})
		h.say("event", wire.Event{Boot: s.Boot, Type: "Normal", Reason: "X"})
		// The event is the last message in the queue. The lease overtakes the queue.
		h.say("event", wire.Event{Boot: "b1", Type: "Normal", Reason: fmt.Sprintf("Marker%dX", before)})
		h.say("lease", lease("b1", before+1))
		await(t, "the message after it", func() bool {
			return h.heard.count(fmt.Sprintf("event pi-1 Marker%dX", before)) == 1 &&
				h.heard.count(fmt.Sprintf("lease pi-1 %d", before+1)) == 1
		})
		for _, what := range h.heard.all()[before:] {
			if !strings.HasPrefix(what, "lease") && !strings.HasPrefix(what, "event pi-1 Marker") &&
				!strings.HasPrefix(what, "connected pi-1 3f2a9c0d1e4b5a67") {
				t.Errorf("%s: received %q", name, what)
			}
		}
		if h.got(wire.AckOf(body)) != 0 {
			t.Errorf("%s: the message is acknowledged", name)
		}
	}
	refused("no proof", wire.Status{Boot: "b2", Seq: 1})
	refused("another key", wire.Status{Boot: "b3", Seq: 1, Proof: &wire.Proof{Key: []byte("key-2")}})
	h.heard.refuse = func(p Peer) error {
		if p.Key != "key-1" || p.Boot != "b4" || p.Machine != "00112233445566aa" {
			t.Errorf("Connect was called with %+v", p)
		}
		return errors.New("a clone is connected")
	}
	refused("a device that the hub refuses", wire.Status{Boot: "b4", Seq: 1, MachineID: "00112233445566aa",
		Proof: &wire.Proof{Key: []byte("key-1")}})
	h.heard.refuse = nil

	h.heard.status = func(context.Context) error {
		h.owners.set("pi-1", Owner{Key: "key-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b5"})
		return nil
	}
	body := h.say("status", wire.Status{Boot: "b5", Seq: 1, MachineID: "3f2a9c0d1e4b5a67",
		Proof: &wire.Proof{Key: []byte("key-1")}})
	await(t, "the device with the key", func() bool { return h.got("ack "+wire.AckOf(body)) == 1 })
	if !h.Online("pi-1") || h.heard.count("status pi-1 1") != 1 {
		t.Errorf("%q", h.heard.all())
	}
	h.say("lease", lease("b1", 98)) // a clone's lease while the node's device is connected causes no request
	h.say("lease", lease("b5", 7))
	await(t, "the lease after it", func() bool { return h.heard.count("lease pi-1 7") == 1 })
	if h.heard.count("lease pi-1 98") != 0 {
		t.Error("the lease of another boot was handled while the node's device is connected")
	}
	h.say("presence", wire.Presence{Boot: "b5", State: wire.PresenceLost})
	await(t, "the will", func() bool { return !h.Online("pi-1") })
	h.say("lease", lease("b1", 99)) // the hub must notice another boot
	await(t, "the lease of another boot", func() bool { return h.heard.count("lease pi-1 99") == 1 })
}

// A broker detects a dead connection after its keep-alive. By then the device may have reconnected
// to another broker, so the hub ignores the late will.
func TestBehindABrokerALateWillIsIgnored(t *testing.T) {
	h := behindBroker(t, nil)
	status := func(boot string, seq, connection uint64) {
		body := h.say("status", wire.Status{Boot: boot, Seq: seq, Connection: connection})
		await(t, "the acknowledgement", func() bool { return h.got("ack "+wire.AckOf(body)) == 1 })
	}
	will := func(connection uint64) {
		h.say("presence", wire.Presence{Boot: "b1", State: wire.PresenceLost, Connection: connection})
	}
	marker := uint64(100)
	after := func() {
		marker++
		h.say("event", wire.Event{Boot: "b1", Type: "Normal", Reason: "Marker", Message: fmt.Sprint(marker)})
		body, _ := json.Marshal(wire.Event{Boot: "b1", Type: "Normal", Reason: "Marker", Message: fmt.Sprint(marker)})
		await(t, "the message after it", func() bool { return h.got("ack "+wire.AckOf(body)) == 1 })
	}
	status("b1", 1, 1)
	status("b1", 2, 2)
	status("b1", 3, 1) // a status of connection 1 is delivered late
	will(1)
	after()
	if n := h.heard.count("disconnected"); n != 0 || !h.Online("pi-1") {
		t.Errorf("a late will has ended the session of a later connection: %q", h.heard.all())
	}
	will(2)
	await(t, "the will of the newest connection",
		func() bool { return !h.Online("pi-1") && h.heard.count("disconnected") == 1 })
	status("b1", 4, 3)
	will(0) // will of an agent that does not number its connections
	await(t, "the will without a number", func() bool { return !h.Online("pi-1") && h.heard.count("disconnected") == 2 })
}

// A reply must name a boot that only the hub knows. Another client with a certificate of the node's
// name also receives the requests, and could answer them.
func TestBehindABrokerAReplyNamesItsBoot(t *testing.T) {
	h := behindBroker(t, nil)
	for name, r := range map[string]wire.Reply{"no boot": {Seq: 1}, "another": {Boot: "b0", Seq: 2},
		"a request that has ended": {Boot: "b2", Seq: 3, EOF: true}} {
		h.say("reply/q", r)
		marker := h.say("event", wire.Event{Boot: "b1", Type: "Normal", Reason: "Marker", Message: name})
		await(t, "the message after it", func() bool { return h.got("ack "+wire.AckOf(marker)) == 1 })
		if n := h.heard.count("reply"); n != 0 {
			t.Errorf("%s: received %q", name, h.heard.all())
		}
	}
	h.say("reply/q", wire.Reply{Boot: "b1", Seq: 4})
	await(t, "the answer of the node's boot", func() bool { return h.heard.count("reply pi-1 q 4") == 1 })
}

func TestBehindABrokerASlowStoreDelaysNoLease(t *testing.T) {
	h := behindBroker(t, nil)
	release := make(chan struct{})
	h.heard.status = func(context.Context) error { <-release; return nil }
	for i := range 2 * maxQueued {
		h.say("status", wire.Status{Boot: "b1", Seq: uint64(i + 1)})
	}
	for i := range 100 {
		h.say("lease", wire.Lease{Boot: "b1", Seq: uint64(i + 1), Status: 2 * maxQueued, Pods: 1})
	}
	h.say("lease", lease("b2", 101)) // the first status of that boot may be in the queue
	await(t, "the leases", func() bool { return h.heard.count("lease pi-1") >= 100 })
	if ahead := h.heard.ahead.Load(); ahead != 0 {
		t.Errorf("%d leases report queued statuses as missing", ahead)
	}
	time.Sleep(20 * time.Millisecond)
	if h.heard.count("lease pi-1 101") != 0 {
		t.Error("the lease of another boot was handled before the queued statuses")
	}
	if n := h.heard.count("status"); n != 0 {
		t.Errorf("%d statuses were received", n)
	}
	if n := h.Stats().NotStored; n == 0 {
		t.Error("no message was dropped although the queue is full")
	}
	close(release)
	await(t, "the queued statuses", func() bool { return h.heard.count("status pi-1") >= maxQueued })
	if n := h.queued.Load(); n > int64(maxQueuedBytes) {
		t.Errorf("%d bytes wait", n)
	}
}

func TestBehindABrokerRetainedMessagesAreIgnored(t *testing.T) {
	h := behindBroker(t, func(c *ClientConfig) { c.NodeRate = 10 })
	keep := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + h.cfg.Servers[0]).SetClientID("keeper"))
	keep.Connect().WaitTimeout(patience)
	defer keep.Disconnect(0)
	for _, channel := range []string{"lease", "status", "pods", "event", "presence", "reply/x"} {
		keep.Publish("fleet/v1/nodes/pi-1/"+channel, 1, true, `{"boot":"b1","seq":1,"type":"Normal","reason":"R","state":"shutdown"}`).WaitTimeout(patience)
	}
	// A broker may acknowledge a message before it delivers it, but keeps the order.
	keep.Publish("elsewhere", 1, false, "").WaitTimeout(patience)
	// The broker sets the flag of a retained message only for later subscriptions.
	again, err := NewClient(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	heard := &recorder{}
	again.cfg.Handler, again.b.cfg.Handler = heard, heard
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- again.Run(ctx) }()
	// further ones are counted, but not reported
	await(t, "the offence", func() bool { return heard.count("offence pi-1 has a retained message on") == 1 })
	await(t, "all of them", func() bool { return again.Stats().Offences["retain"] == 6 })
	time.Sleep(20 * time.Millisecond)
	if all := heard.all(); len(all) != 1 || again.Online("pi-1") {
		t.Errorf("%q", all)
	}
	cancel()
	<-done

	// Retained messages are counted but not reported here: the broker may deliver them again to a
	// new subscription, shortly after the last report about this node.
	began, before := time.Now(), h.heard.count("lease")
	for i := range 500 {
		h.say("lease", lease("b1", i+1))
	}
	heardOf := func() int { return h.heard.count("lease") - before }
	await(t, "the end of a flood", func() bool { return heardOf()+int(h.Stats().Offences["payload"]) == 500 })
	if n, most := heardOf(), 10*(4+time.Since(began).Seconds())+1; float64(n) > most {
		t.Errorf("%d leases of a flood were received, want at most %.0f", n, most)
	}
	stranger := h.Stats().Refused["hub"]
	h.device.Publish("fleet/v1/nodes/nobody/lease", 1, false, `{"boot":"b1","seq":1}`).WaitTimeout(patience)
	await(t, "the refusal of an unknown node", func() bool { return h.Stats().Refused["hub"] > stranger })
	if h.remote("nobody") != nil {
		t.Error("an unknown node takes memory")
	}
}

// The messages of the node's own device arrive, even if the broker allows other clients to publish
// as the node.
func TestBehindABrokerAFloodDoesNotBlockTheNode(t *testing.T) {
	h := behindBroker(t, func(c *ClientConfig) { c.NodeRate = 10 })
	for i := range 300 {
		h.say([]string{"lease", "event", "reply/x"}[i%3], []byte(`{"boot":"b0","seq":1,"type":"Normal","reason":"Noise"}`))
	}
	await(t, "the offence of the flood", func() bool { return h.heard.count("offence pi-1 publishes more than 10") > 0 })
	for i := range 10 {
		h.say("lease", lease("b1", 1000+i))
	}
	await(t, "the leases of the node's own boot",
		func() bool { return h.heard.count("lease pi-1 10") == 10 && h.Online("pi-1") })
}

func TestBehindABrokerANodeConnectsAndDisconnects(t *testing.T) {
	h := behindBroker(t, func(c *ClientConfig) { c.Silence = 400 * time.Millisecond })
	if err := h.Request("pi-1", "x", wire.Request{Type: wire.RequestRefresh}); !errors.Is(err, ErrOffline) {
		t.Errorf("publish to a node that was never online: %v", err)
	}
	h.say("lease", lease("b1", 1))
	await(t, "the first lease", func() bool { return h.Online("pi-1") })
	if err := h.Publish("pi-1", wire.ChannelDesired, []byte(`{"generation":1}`)); err != nil {
		t.Error(err)
	}
	if err := h.Publish("pi-1", wire.ChannelDesired, make([]byte, wire.MaxToDevice+1)); err == nil {
		t.Error("a desired state that is too large was sent")
	}
	await(t, "the desired state", func() bool { return h.got("/desired") == 1 })
	h.say("presence", wire.Presence{Boot: "b0", State: wire.PresenceLost})
	h.say("presence", wire.Presence{Boot: "b1", State: wire.PresenceLost})
	await(t, "the will", func() bool { return !h.Online("pi-1") })
	h.say("lease", lease("b1", 2))
	await(t, "the lease after a late will", func() bool { return h.Online("pi-1") })
	await(t, "the end of a silent session", func() bool { return !h.Online("pi-1") })
	if err := h.Publish("pi-1", wire.ChannelDesired, []byte(`{}`)); !errors.Is(err, ErrOffline) {
		t.Errorf("publish to a silent node: %v", err)
	}
	h.say("lease", lease("b1", 3))
	await(t, "it again", func() bool { return h.Online("pi-1") })
	h.Disconnect("pi-1")
	await(t, "the end of a session that the hub disconnects", func() bool { return !h.Online("pi-1") })
	if c, d := h.heard.count("connected"), h.heard.count("disconnected"); c != 3 || d != 3 {
		t.Errorf("%d sessions began and %d ended, want 3: %q", c, d, h.heard.all())
	}
	if h.heard.count("presence pi-1 b1 lost") != 1 || h.heard.count("presence") != 1 {
		t.Errorf("%q", h.heard.all())
	}
}

// A site may have a lease interval of five minutes. Its nodes stay online between two leases.
func TestBehindABrokerALongLeaseIntervalIsAllowed(t *testing.T) {
	h := behindBroker(t, func(c *ClientConfig) { c.Silence = 400 * time.Millisecond })
	h.owners.mu.Lock()
	h.owners.by["pi-1"] = Owner{Key: "key-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1", Silence: time.Hour}
	h.owners.by["pi-2"] = Owner{Key: "key-2", Machine: "4f2a9c0d1e4b5a67", Boot: "b2"}
	h.owners.mu.Unlock()
	h.say("lease", lease("b1", 1))
	await(t, "its lease", func() bool { return h.Online("pi-1") })
	h.device.Publish("fleet/v1/nodes/pi-2/lease", 0, false, `{"boot":"b2","seq":1}`).WaitTimeout(patience)
	await(t, "the lease of pi-2", func() bool { return h.Online("pi-2") })
	await(t, "the silence of pi-2", func() bool { return !h.Online("pi-2") })
	if err := h.Publish("pi-1", wire.ChannelDesired, []byte(`{"generation":1}`)); err != nil || !h.Online("pi-1") || h.heard.count("disconnected pi-1") > 0 {
		t.Errorf("pi-1 counts as disconnected: %v, %q", err, h.heard.all())
	}
}

// mistaken is a Handler that panics once for each kind of message.
type mistaken struct {
	*recorder
	lease, disconnected atomic.Bool
}

func (c *mistaken) Lease(p Peer, l wire.Lease) {
	if !c.lease.Swap(true) {
		panic("a panic for a lease")
	}
	c.recorder.Lease(p, l)
}

func (c *mistaken) Disconnected(p Peer) {
	if !c.disconnected.Swap(true) {
		panic("a panic for a disconnect")
	}
	c.recorder.Disconnected(p)
}

// A panic for one message or node does not affect other messages or nodes.
func TestBehindABrokerAPanicAffectsOneMessageOnly(t *testing.T) {
	var hub mistaken
	h := behindBroker(t, func(c *ClientConfig) {
		c.Silence = 400 * time.Millisecond
		hub.recorder = c.Handler.(*recorder)
		c.Handler = &hub
	})
	for seq := 1; h.heard.count("lease") == 0; seq++ {
		h.say("lease", lease("b1", seq))
	}
	await(t, "the panic at the end of the session", hub.disconnected.Load)
	h.say("lease", lease("b1", 1000))
	await(t, "the next lease", func() bool { return h.Online("pi-1") })
	await(t, "pi-1 to be silent again", func() bool { return !h.Online("pi-1") })
	await(t, "the report of its silence", func() bool { return h.heard.count("disconnected") == 1 })
}

func TestTheHubConnectsToTheNextMemberOfACluster(t *testing.T) {
	first, stop := elsewhere(t)
	second, _ := elsewhere(t)
	h := behindBroker(t, func(c *ClientConfig) { c.Servers = []string{first, second} })
	stop()
	device := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + second).SetClientID("device"))
	device.Connect().WaitTimeout(patience)
	defer device.Disconnect(0)
	seq := 0
	await(t, "a lease through the second server", func() bool {
		seq++
		device.Publish("fleet/v1/nodes/pi-1/lease", 0, false, fmt.Sprintf(`{"boot":"b1","seq":%d}`, seq)).WaitTimeout(patience)
		return h.heard.count("lease") > 0
	})
	if err := func() error { _, err := NewClient(ClientConfig{}); return err }(); err == nil {
		t.Error("NewClient accepts an empty configuration")
	}
}
