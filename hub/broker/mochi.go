package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/shared/wire"
)

// newMochi makes the server inside. It is never told to serve: that would start
// its listeners, its retained $SYS topics and, every second, two copies of the
// whole table of clients, to look for sessions and messages that cannot exist here.
func newMochi(b *Broker) *mqtt.Server {
	s := mqtt.New(&mqtt.Options{
		Capabilities: &mqtt.Capabilities{
			MaximumClients:             math.MaxInt64, // our own caps come earlier
			MaximumClientWritesPending: 1,             // the outbox does this
			MaximumPacketSize:          maxPacket,
			ReceiveMaximum:             16,
			MaximumInflight:            64,
			MinimumProtocolVersion:     4,
			MaximumQos:                 1,
			RetainAvailable:            0,
		},
		ClientNetReadBufferSize: 1 << 10,
		Logger:                  slog.New(redacting{b.log.Handler()}),
	})
	if err := s.AddHook(&hook{b: b}, nil); err != nil {
		panic(err) // Init of our own hook cannot fail
	}
	return s
}

// maxPacket leaves room for the header and the topic beside the payload.
const maxPacket = wire.MaxFromDevice + 1<<10

// hook is where mochi asks and tells. The connections that it hears of have
// passed greet: cl.Net.Conn is a *conn with a session.
type hook struct {
	mqtt.HookBase
	b *Broker
}

func (h *hook) ID() string { return "flotilla" }

func (h *hook) Provides(what byte) bool {
	switch what {
	case mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnSessionEstablished,
		mqtt.OnPacketRead, mqtt.OnSubscribe, mqtt.OnSubscribed, mqtt.OnUnsubscribed, mqtt.OnPublish, mqtt.OnWill:
		return true
	}
	return false
}

func sessionOf(cl *mqtt.Client) *session { return cl.Net.Conn.(*conn).session }

// OnConnect settles what the client does not decide: its identity is the node,
// the session is clean, the keep-alive is ours.
func (h *hook) OnConnect(cl *mqtt.Client, _ packets.Packet) error {
	s := sessionOf(cl)
	cl.ID = h.b.clientID(s)
	cl.Properties.Clean = true
	cl.State.Keepalive = s.keepAlive
	return nil
}

// OnConnectAuthenticate lets in whoever has passed greet.
func (h *hook) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

// OnACLCheck allows everything: forbidden filters are refused in OnSubscribe and
// forbidden publishes are dropped in OnPublish. To refuse a publish here would cut
// the connection, and the client would send the same again for ever.
func (h *hook) OnACLCheck(*mqtt.Client, string, bool) bool { return true }

// OnSessionEstablished comes after the CONNACK.
func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	s := sessionOf(cl)
	if s.farewell != nil {
		return
	}
	h.b.cfg.Handler.Connected(s.peer)
	s.established.Store(true)
}

// OnPacketRead has every packet but leases take its part of the node's rate, and moves
// publishes to topics on which mochi would hang or hang up ($SYS, wildcards, none) to
// one that OnPublish drops like every other forbidden one.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	s := sessionOf(cl)
	s.rate.take(1 + min(float64(pk.FixedHeader.Remaining)/(16<<10)+float64(len(pk.Filters))/8, s.rate.perSecond))
	if pk.FixedHeader.Type != packets.Publish {
		return pk, nil
	}
	if tail, own := strings.CutPrefix(pk.TopicName, s.base); !own || strings.ContainsAny(tail, "+#") {
		s.forbidden = pk.TopicName
		pk.TopicName = "forbidden"
	}
	return pk, nil
}

// OnSubscribe makes all filters but the node's own two invalid, so that they get
// 0x80 in the SUBACK.
func (h *hook) OnSubscribe(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	s := sessionOf(cl)
	refused, first := 0, ""
	for i, f := range pk.Filters {
		if f.Filter != s.filters[0] && f.Filter != s.filters[1] {
			if refused++; refused == 1 {
				first = f.Filter
			}
			pk.Filters[i].Filter = ""
		}
	}
	if refused > 0 {
		h.b.offence(s.peer.Node, forbiddenFilter, fmt.Sprintf("subscribed to %.80q, which is not its own", first))
	}
	return pk
}

// OnSubscribed and OnUnsubscribed keep what the node listens to.
func (h *hook) OnSubscribed(cl *mqtt.Client, pk packets.Packet, codes []byte) {
	s := sessionOf(cl)
	for i, f := range pk.Filters {
		switch {
		case codes[i] > 2:
		case s.farewell != nil:
			h.b.farewell(s, f.Filter)
		default:
			s.listen(f.Filter, true)
		}
	}
}

func (h *hook) OnUnsubscribed(cl *mqtt.Client, pk packets.Packet) {
	for _, f := range pk.Filters {
		sessionOf(cl).listen(f.Filter, false)
	}
}

// OnWill tells the will, which greet has checked. When the hub itself goes
// away it is not told.
func (h *hook) OnWill(cl *mqtt.Client, will mqtt.Will) (mqtt.Will, error) {
	if s := sessionOf(cl); s.will != nil && s.farewell == nil && !h.b.closing.Load() {
		h.b.cfg.Handler.Presence(s.peer, *s.will)
	}
	return will, nil
}

// OnPublish is every message of a device. CodeSuccessIgnore lets mochi
// acknowledge it and pass it on to nobody; ErrRejectPacket withholds the
// acknowledgement.
func (h *hook) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	s := sessionOf(cl)
	err := h.b.hear(s, &pk)
	switch {
	case err == nil:
		return pk, packets.CodeSuccessIgnore
	case errors.As(err, new(offence)):
		o := err.(offence)
		h.b.offence(s.peer.Node, o.kind, o.text)
		return pk, packets.CodeSuccessIgnore
	case errors.Is(err, ErrStopping), errors.Is(err, context.Canceled): // the hub or the connection has ended
		h.b.log.Debug("not remembered; the device will send again", "node", s.peer.Node, "topic", pk.TopicName, "err", err)
		return pk, packets.ErrRejectPacket
	default:
		h.b.stats.unremembered.Add(1)
		h.b.log.Error("remember message of a device; it will send again", "node", s.peer.Node, "topic", pk.TopicName, "err", err)
		return pk, packets.ErrRejectPacket
	}
}

// hear checks one message and tells the Handler.
func (b *Broker) hear(s *session, pk *packets.Packet) error {
	tail, own := strings.CutPrefix(pk.TopicName, s.base)
	if !own {
		return offence{forbiddenTopic, fmt.Sprintf("published on %.100q, which is not its own", s.forbidden)}
	}
	if pk.FixedHeader.Retain {
		return offence{retained, fmt.Sprintf("published %.40q with the RETAIN flag; nothing is retained here", tail)}
	}
	if tail == string(wire.ChannelLease) {
		l, err := wire.ParseLease(pk.Payload)
		if err != nil {
			return offence{badPayload, err.Error()}
		}
		if s.farewell == nil {
			b.stats.heard[leases].Add(1)
			b.cfg.Handler.Lease(s.peer, l)
		}
		return nil
	}
	return b.hearSlow(s, tail, pk.Payload)
}

// hearSlow is hear for all but leases.
func (b *Broker) hearSlow(s *session, tail string, payload []byte) error {
	c, id, err := wire.ParseChannel(tail)
	if err != nil || !c.FromDevice() {
		return offence{forbiddenTopic, fmt.Sprintf("published on its topic %.80q, which is not a device's", tail)}
	}
	ctx, cancel := context.WithTimeout(s.ctx, rememberTimeout)
	defer cancel()
	handler, peer := b.cfg.Handler, s.peer
	if wire.Packed(payload) { // it is as much work as its text
		s.rate.take(min(float64(wire.TextSize(payload))/(16<<10), s.rate.perSecond))
	}
	if s.farewell != nil {
		if c != wire.ChannelPods {
			return nil // what else it says is of no interest any more
		}
		return tell(b, podLists, payload, wire.ParsePods, func(v wire.Pods) error { return handler.Left(ctx, peer, v) })
	}
	switch c {
	case wire.ChannelStatus:
		return tell(b, statuses, payload, wire.ParseStatus, func(v wire.Status) error { return handler.Status(ctx, peer, v) })
	case wire.ChannelPods:
		return tell(b, podLists, payload, wire.ParsePods, func(v wire.Pods) error { return handler.Pods(ctx, peer, v) })
	case wire.ChannelEvent:
		return tell(b, events, payload, wire.ParseEvent, func(v wire.Event) error { return handler.Event(ctx, peer, v) })
	case wire.ChannelPresence:
		return tell(b, presences, payload, wire.ParsePresence, func(v wire.Presence) error { handler.Presence(peer, v); return nil })
	case wire.ChannelReply:
		return tell(b, replies, payload, wire.ParseReply, func(v wire.Reply) error { handler.Reply(peer, id, v); return nil })
	}
	return nil
}

// tell parses a payload, counts it and passes it on.
//
// It parses on a goroutine of its own: decoding calls deep, and the stack that it
// needs would stay with the connection for ever. There are few at a time, so that
// a fleet that comes back at once is not in memory twice.
func tell[T any](b *Broker, k kind, payload []byte, parse func([]byte) (T, error), handle func(T) error) error {
	var v T
	var err error
	done := make(chan struct{})
	b.parsers <- struct{}{}
	var accident any
	go func() {
		defer close(done)
		defer func() { <-b.parsers }()
		defer func() { accident = recover() }()
		v, err = parse(payload)
	}()
	<-done
	if accident != nil {
		panic(accident) // ends this connection, as one of the connection's own goroutine does
	}
	if err != nil {
		return offence{badPayload, err.Error()}
	}
	b.stats.heard[k].Add(1)
	return handle(v)
}
