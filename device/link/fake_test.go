package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/wire"
)

// A hub is a minimal peer of one device: it receives the device's messages, requests missing ones,
// and can lose messages.
type hub struct {
	t *testing.T

	mu       sync.Mutex
	conn     net.Conn
	received []received
	connects int
	wills    []wire.Presence
	refuse   byte                      // return code of the CONNACK
	brief    int                       // number of connections that end after their CONNACK
	lose     func(message string) bool // called for every message in both directions; true: the message is lost
	mute     func(message string) bool // true: the hub sends no PUBACK for this message
	external bool                      // behind a broker
	silent   atomic.Bool               // the hub acknowledges nothing
	desired  wire.Desired              // the desired state
	resent   time.Time
	boot     string
	lease    wire.Lease
	status   wire.Status
	pods     wire.Pods
	part     wire.Pods // parts so far of an incomplete list
	events   []wire.Event
	replies  []wire.Reply
	presence []wire.Presence
	frozen   atomic.Bool  // packets vanish in both directions
	deaf     atomic.Bool  // the hub does not read: writes block
	rate     int          // bytes per second from the device; 0: unlimited
	buffer   int          // buffered bytes before a write blocks
	fail     func() error // error of every dial; nil: dials succeed
	log      logBuffer    // the link's log
}

// A logBuffer collects log lines.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (p *logBuffer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *logBuffer) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// A received is the name of a received message and its time.
type received struct {
	at   time.Time
	what string
}

func (h *hub) note(what string) { h.received = append(h.received, received{time.Now(), what}) }

func (h *hub) losing(what string) bool { return h.lose != nil && h.lose(what) }

// dial is the Config.Dial of the link.
func (h *hub) dial(context.Context) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.losing("dial") {
		return nil, errors.New("no route to host")
	}
	if h.fail != nil {
		return nil, h.fail()
	}
	a, b := net.Pipe()
	h.conn = b
	h.frozen.Store(false)
	go h.serve(b)
	c := &freezing{Conn: a, frozen: &h.frozen}
	if h.rate == 0 {
		return c, nil
	}
	return narrow(c, h.rate, max(h.buffer, 4<<10)), nil
}

// A narrowed connection has a limited rate behind a send buffer, like a TCP connection.
type narrowed struct {
	net.Conn
	rate, buffer int

	mu    sync.Mutex
	until time.Time // write deadline
	free  time.Time // when the buffer is empty
	queue chan dated
	ended chan struct{}
	once  sync.Once
}

type dated struct {
	at   time.Time
	data []byte
}

func narrow(c net.Conn, rate, buffer int) net.Conn {
	n := &narrowed{Conn: c, rate: rate, buffer: buffer, queue: make(chan dated, 10_000), ended: make(chan struct{})}
	go func() {
		for {
			select {
			case d := <-n.queue:
				time.Sleep(time.Until(d.at))
				_, _ = n.Conn.Write(d.data)
			case <-n.ended:
				return
			}
		}
	}()
	return n
}

func (n *narrowed) takes(bytes int) time.Duration {
	return time.Duration(bytes) * time.Second / time.Duration(n.rate)
}

func (n *narrowed) Write(p []byte) (done int, err error) {
	for {
		n.mu.Lock()
		now := time.Now()
		if n.free.Before(now) {
			n.free = now
		}
		waits := int(n.free.Sub(now).Seconds() * float64(n.rate))
		if some := min(len(p)-done, n.buffer-waits); some > 0 {
			n.free = n.free.Add(n.takes(some))
			n.queue <- dated{n.free, append([]byte(nil), p[done:done+some]...)}
			done += some
		}
		left := len(p) - done
		until := now.Add(n.takes(min(left, max(n.buffer/4, 1))) + time.Microsecond) // by then the buffer has room
		late := !n.until.IsZero() && n.until.Before(until)
		if late {
			until = n.until
		}
		n.mu.Unlock()
		if left == 0 {
			return done, nil
		}
		if time.Sleep(time.Until(until)); late {
			return done, os.ErrDeadlineExceeded
		}
	}
}

func (n *narrowed) SetWriteDeadline(t time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.until = t
	return nil
}

func (n *narrowed) Close() error {
	n.once.Do(func() { close(n.ended) })
	return n.Conn.Close()
}

// A freezing connection can lose all packets in both directions.
type freezing struct {
	net.Conn
	frozen *atomic.Bool
}

func (f *freezing) Write(p []byte) (int, error) {
	if f.frozen.Load() {
		return len(p), nil
	}
	return f.Conn.Write(p)
}

// Read fails with a socket's error, which paho recognizes.
func (f *freezing) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = net.ErrClosed
	}
	return n, err
}

func (h *hub) serve(c net.Conn) {
	defer c.Close()
	var will *wire.Presence
	for {
		for h.deaf.Load() {
			time.Sleep(time.Second)
		}
		pk, err := packets.ReadPacket(c)
		if err != nil {
			if will != nil && !h.frozen.Load() {
				h.mu.Lock()
				h.wills = append(h.wills, *will)
				h.mu.Unlock()
			}
			return
		}
		h.mu.Lock()
		var answer packets.ControlPacket
		switch p := pk.(type) {
		case *packets.ConnectPacket:
			h.connects++
			h.note("connect")
			if !p.CleanSession || p.WillRetain || p.Keepalive != 10 || p.ProtocolVersion != 4 ||
				p.WillTopic != "fleet/v1/nodes/pi-1/presence" || p.ClientIdentifier != "pi-1:3f2a9c0d1e4b5a67" && !h.external {
				h.t.Errorf("CONNECT has wrong fields: %v", p)
			}
			w, err := wire.ParsePresence(p.WillMessage)
			if err != nil {
				h.t.Errorf("will: %v", err)
			}
			will = &w
			ack := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
			ack.ReturnCode = h.refuse
			if !h.losing("connack") {
				answer = ack
			}
		case *packets.SubscribePacket:
			h.note("subscribe")
			ack := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
			ack.MessageID, ack.ReturnCodes = p.MessageID, make([]byte, len(p.Topics))
			if !h.losing("suback") {
				answer = ack
			}
		case *packets.PublishPacket:
			answer = h.published(p)
		case *packets.PingreqPacket:
			if !h.losing("pingresp") {
				answer = packets.NewControlPacket(packets.Pingresp)
			}
		case *packets.DisconnectPacket:
			h.note("disconnect")
			will = nil
		}
		_, greets := answer.(*packets.ConnackPacket)
		ends := greets && h.brief > 0
		if ends {
			h.brief--
		}
		h.mu.Unlock()
		if answer != nil && !h.frozen.Load() {
			_ = answer.Write(c)
		}
		if ends {
			return
		}
	}
}

// published stores a message and returns its PUBACK.
func (h *hub) published(p *packets.PublishPacket) packets.ControlPacket {
	a, err := wire.ParseTopic(wire.DefaultPrefix, p.TopicName)
	if err != nil || p.Retain {
		h.t.Errorf("the device published %s, retained %v: %v; want a valid topic, not retained", p.TopicName, p.Retain, err)
		return nil
	}
	if h.losing(string(a.Channel)) {
		return nil
	}
	h.note(string(a.Channel))
	switch a.Channel {
	case wire.ChannelLease:
		l, err := wire.ParseLease(p.Payload)
		h.check(err)
		if l.Boot == h.lease.Boot && l.Seq <= h.lease.Seq {
			h.t.Errorf("lease %d came after %d", l.Seq, h.lease.Seq)
		}
		h.lease = l
		if l.Boot != h.boot || l.Status > h.status.Seq || l.Pods > h.pods.Seq {
			h.send(wire.RequestTopic(wire.DefaultPrefix, "pi-1", "r1"), "request", wire.Request{Type: wire.RequestRefresh})
		}
		if l.Desired < h.desired.Generation && time.Since(h.resent) >= 2*time.Second {
			h.resent = time.Now()
			h.send(wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired), "desired", h.desired)
		}
	case wire.ChannelStatus:
		s, err := wire.ParseStatus(p.Payload)
		h.check(err)
		if s.Boot == h.boot && s.Seq <= h.status.Seq {
			h.t.Errorf("status %d came after %d", s.Seq, h.status.Seq)
		}
		h.boot, h.status = s.Boot, s
	case wire.ChannelPods:
		v, err := wire.ParsePods(p.Payload)
		h.check(err)
		h.list(v)
	case wire.ChannelEvent:
		v, err := wire.ParseEvent(p.Payload)
		h.check(err)
		h.events = append(h.events, v)
	case wire.ChannelPresence:
		v, err := wire.ParsePresence(p.Payload)
		h.check(err)
		h.presence = append(h.presence, v)
	case wire.ChannelReply:
		v, err := wire.ParseReply(p.Payload)
		h.check(err)
		h.replies = append(h.replies, v)
	}
	if h.external && !h.silent.Load() &&
		(a.Channel == wire.ChannelStatus || a.Channel == wire.ChannelPods || a.Channel == wire.ChannelEvent) &&
		!h.losing("ack "+string(a.Channel)) {
		h.send(wire.RequestTopic(wire.DefaultPrefix, "pi-1", "ack"), "ack",
			wire.Request{Type: wire.RequestAck, Of: wire.AckOf(p.Payload)})
	}
	if p.Qos == 0 || h.losing("puback") || h.mute != nil && h.mute(string(a.Channel)) {
		return nil
	}
	ack := packets.NewControlPacket(packets.Puback).(*packets.PubackPacket)
	ack.MessageID = p.MessageID
	return ack
}

// list stores a list of pods. It fills in the pods that the list only marks as unchanged, and
// collects parts until the list is complete.
func (h *hub) list(v wire.Pods) {
	if v.Base > 0 && v.Base != h.pods.Seq {
		h.note("baseless")
		return // the next lease shows that this list is missing
	}
	for i, p := range v.Pods {
		if at := slices.IndexFunc(h.pods.Pods, func(q wire.PodStatus) bool { return q.UID == p.UID }); p.AsBefore() {
			v.Pods[i] = h.pods.Pods[at]
		}
	}
	if v.Parts <= 1 {
		h.pods, h.part = v, wire.Pods{}
		return
	}
	h.note("part")
	if v.Part == 1 {
		h.part = wire.Pods{Seq: v.Seq}
	}
	if h.part.Seq != v.Seq || h.part.Part != v.Part-1 {
		h.t.Errorf("part %d of list %d after part %d of list %d", v.Part, v.Seq, h.part.Part, h.part.Seq)
	}
	v.Pods = append(h.part.Pods, v.Pods...)
	if h.part = v; v.Part == v.Parts {
		h.pods = v
	}
}

func (h *hub) check(err error) {
	if err != nil {
		h.t.Error(err)
	}
}

// send publishes to the device at QoS 0 from another goroutine.
func (h *hub) send(topic, what string, v any) {
	if h.losing(what) {
		return
	}
	p := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
	p.TopicName = topic
	if raw, is := v.([]byte); is {
		p.Payload = raw
	} else {
		p.Payload, _ = json.Marshal(v)
	}
	c := h.conn
	if !h.frozen.Load() {
		go func() { _ = p.Write(c) }()
	}
}

// want sets the generation of the desired state and publishes it.
func (h *hub) want(generation int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.desired = wire.Desired{Generation: generation, Hub: "h1"}
	h.resent = time.Now()
	h.send(wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired), "desired", h.desired)
}

// request sends a request to the device.
func (h *hub) request(id string, r wire.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.send(wire.RequestTopic(wire.DefaultPrefix, "pi-1", id), "request", r)
}

// with calls f under the hub's lock.
func with[T any](h *hub, f func(h *hub) T) T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f(h)
}

// times returns when messages of a kind arrived, as durations after since.
func (h *hub) times(what string, since time.Time) (at []time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.received {
		if m.what == what && !m.at.Before(since) {
			at = append(at, m.at.Sub(since))
		}
	}
	return at
}

// An agent is a Source and a Sink with a few facts.
type agent struct {
	mu       sync.Mutex
	link     *Link
	load     string // a text in the status
	pod      string // name of the first pod
	others   []wire.PodStatus
	stored   int64
	stopping bool
	requests []string
	vitals   *wire.Vitals
}

func (a *agent) Status() wire.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	reason := "KubeletReady"
	if a.stopping {
		reason = "NodeShutdown"
	}
	return wire.Status{
		Vitals: a.vitals,
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Reason: reason, Message: a.load}},
		},
	}
}

func (a *agent) Pods() wire.Pods {
	a.mu.Lock()
	defer a.mu.Unlock()
	return wire.Pods{
		Generation: a.stored,
		Pods:       append([]wire.PodStatus{{UID: "u1", Namespace: "default", Name: a.pod}}, a.others...),
	}
}

func (a *agent) StoredGeneration() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stored
}

func (a *agent) Desired(d wire.Desired) {
	a.mu.Lock()
	a.stored = d.Generation
	a.mu.Unlock()
	a.link.DesiredStored()
}

func (a *agent) Request(id string, r wire.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, id+" "+r.Type)
}

// change sets all facts to a text and notifies the link.
func (a *agent) change(to string) {
	a.mu.Lock()
	a.load, a.pod = to, to
	a.mu.Unlock()
	a.link.StatusChanged()
	a.link.PodsChanged()
}

// bubble runs a link with a hub in fake time.
func bubble(t *testing.T, h *hub, test func(t *testing.T, l *Link, a *agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h.t = t
		a := &agent{load: "first", pod: "first"}
		l, err := New(Config{
			Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1", Server: "mqtt://hub:1883", Dial: h.dial,
			Source: a, Sink: a, Log: slog.New(slog.NewTextHandler(&h.log, nil)),
			External: h.external, Prove: func(boot string) *wire.Proof { return &wire.Proof{Key: []byte(boot)} },
		})
		if err != nil {
			t.Fatal(err)
		}
		a.link = l
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		test(t, l, a)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		h.mu.Lock()
		if h.conn != nil {
			h.conn.Close()
		}
		h.mu.Unlock()
		time.Sleep(time.Minute) // paho's goroutines end meanwhile
	})
}

// agree fails the test unless the hub has the agent's facts.
func agree(t *testing.T, h *hub, a *agent, when string) {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	var status, pod string
	if len(h.status.Status.Conditions) > 0 {
		status = h.status.Status.Conditions[0].Message
	}
	if len(h.pods.Pods) > 0 {
		pod = h.pods.Pods[0].Name
	}
	got := fmt.Sprintf("status %q, pods %q, stored generation %d", status, pod, h.lease.Desired)
	want := fmt.Sprintf("status %q, pods %q, stored generation %d", a.load, a.pod, h.desired.Generation)
	if got != want || a.stored != h.desired.Generation {
		t.Errorf("%s: the hub has %s; the agent has %s (stored %d)", when, got, want, a.stored)
	}
}
