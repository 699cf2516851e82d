package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"flotilla.dev/hub/broker/idle"
	"flotilla.dev/shared/wire"
)

// Constant packets. connack reports that no session was present.
var (
	connack  = []byte{packets.Connack << 4, 2, 0, packets.Accepted}
	pingresp = []byte{packets.Pingresp << 4, 0}
)

// errOrderly ends a session after DISCONNECT, which discards its will.
var errOrderly = errors.New("the device has disconnected")

// serveUntilIdle answers an accepted CONNECT, and reads packets until the connection becomes idle
// or ends.
func (b *Broker) serveUntilIdle(s *session) (isIdle bool) {
	if _, err := s.conn.Write(connack); err != nil {
		return b.endSession(s, err)
	}
	if s.dismissal == nil {
		onGoroutine(func() { b.cfg.Handler.Connected(s.peer) })
		s.established.Store(true)
	}
	return b.read(s)
}

// read reads packets until all are handled and the connection becomes idle, or until it ends.
func (b *Broker) read(s *session) (isIdle bool) {
	r := &packetReader{from: s.conn, expect: s.conn.setPacketDeadline}
	for {
		s.conn.impatient = r.have == 0 && s.dismissal == nil
		head, body, err := r.next()
		if err == nil {
			err = b.handle(s, head, body)
		}
		switch {
		case err == nil:
		case errors.Is(err, idle.ErrNothing):
			if s.setIdle() {
				return true
			}
		default:
			return b.endSession(s, err)
		}
	}
}

// endSession ends the session. It publishes the will, unless the device has disconnected or the hub
// stops.
func (b *Broker) endSession(s *session, err error) (isIdle bool) {
	_ = s.conn.Close()
	switch {
	case errors.Is(err, errTooLarge):
		b.offence(s.peer.Node, packetTooLarge,
			fmt.Sprintf("sent a packet of more than %d bytes; the connection was closed", maxPacket))
	case errors.Is(err, errMalformed):
		b.offence(s.peer.Node, badPayload, fmt.Sprintf("sent a packet that is %v; the connection was closed", err))
	}
	if !errors.Is(err, errOrderly) && s.established.Load() && s.will != nil && s.dismissal == nil && !b.closing.Load() {
		if b.observers.active() {
			if payload, err := json.Marshal(s.will); err == nil {
				b.observers.show(s.base()+string(wire.ChannelPresence), payload)
			}
		}
		b.cfg.Handler.Presence(s.peer, *s.will)
	}
	what := "device disconnected"
	if s.dismissal != nil {
		what = "dismissed"
	}
	b.log.Debug(what, "node", s.peer.Node, "addr", s.peer.Addr, "err", err)
	return false
}

// handle handles a packet. An error ends the connection.
func (b *Broker) handle(s *session, head byte, body []byte) error {
	if head == publish0 && b.lease(s, body) {
		return nil
	}
	flags := head & 0x0f
	switch kind := head >> 4; {
	case kind == packets.Publish:
		s.chargeRate(len(body), 0)
		return b.handlePublication(s, head, bytes.Clone(body))
	case kind == packets.Subscribe && flags == 2:
		return b.subscribe(s, head, body)
	case kind == packets.Unsubscribe && flags == 2:
		return b.unsubscribe(s, head, body)
	case kind == packets.Pingreq && flags == 0 && len(body) == 0:
		s.chargeRate(0, 0)
		_, err := s.conn.Write(pingresp)
		return err
	case kind == packets.Disconnect && flags == 0 && len(body) == 0:
		return errOrderly
	case kind == packets.Puback && flags == 0, kind == packets.Pubrec && flags == 0,
		kind == packets.Pubrel && flags == 2, kind == packets.Pubcomp && flags == 0:
		s.chargeRate(len(body), 0) // acknowledges nothing that the broker has sent
		return nil
	}
	return fmt.Errorf("%w: type and flags 0x%02x with %d bytes", errMalformed, head, len(body))
}

// chargeRate charges a packet to the node's rate limit.
func (s *session) chargeRate(bytes, filters int) {
	s.rate.take(1 + min(float64(bytes)/(16<<10)+float64(filters)/8, s.rate.perSecond))
}

// publish0 is the first byte of a PUBLISH at QoS 0 without DUP and RETAIN.
const publish0 = packets.Publish << 4

// lease handles a PUBLISH at QoS 0 of the session's own lease. Nearly all packets are leases, so
// lease copies nothing and uses little stack.
func (b *Broker) lease(s *session, body []byte) bool {
	if s.dismissal != nil {
		return false
	}
	n := 2 + len(s.lease)
	if len(body) < n || int(body[0])<<8|int(body[1]) != len(s.lease) || string(body[2:n]) != s.lease {
		return false
	}
	l, err := wire.ParseLease(body[n:])
	if err != nil {
		return false // handlePublish reports the offence
	}
	s.rate.take(1)
	b.stats.received[leases].Add(1)
	if b.observers.active() {
		b.observers.show(s.lease, bytes.Clone(body[n:]))
	}
	b.cfg.Handler.Lease(s.peer, l)
	return true
}

// subscribe grants the node's own two filters, and refuses all others.
func (b *Broker) subscribe(s *session, head byte, body []byte) error {
	p, err := parseSubscribe(head, body)
	if err != nil {
		return err
	}
	s.chargeRate(len(body), len(p.Topics))
	codes, refused, first := make([]byte, len(p.Topics)), 0, ""
	own := s.filters()
	for i, f := range p.Topics {
		switch {
		case f == own[0], f == own[1]:
			codes[i] = min(p.Qoss[i], 1)
			if s.dismissal == nil {
				s.listen(f, true) // before the SUBACK, because a message may follow at once
			}
		default:
			codes[i] = 0x80
			if refused++; refused == 1 {
				first = f
			}
		}
	}
	if refused > 0 {
		b.offence(s.peer.Node, forbiddenFilter, fmt.Sprintf("subscribed to %.80q, which is not its topic", first))
	}
	if _, err := s.conn.Write(ack(packets.Suback, p.MessageID, codes...)); err != nil {
		return err
	}
	for i, f := range p.Topics {
		if codes[i] <= 1 && s.dismissal != nil {
			b.publishDismissal(s, f)
		}
	}
	return nil
}

func (b *Broker) unsubscribe(s *session, head byte, body []byte) error {
	p, err := parseUnsubscribe(head, body)
	if err != nil {
		return err
	}
	s.chargeRate(len(body), len(p.Topics))
	for _, f := range p.Topics {
		s.listen(f, false)
	}
	_, err = s.conn.Write(ack(packets.Unsuback, p.MessageID))
	return err
}

// handlePublication handles a message and acknowledges it.
func (b *Broker) handlePublication(s *session, head byte, body []byte) error {
	p, err := parsePublish(head, body)
	if err != nil {
		return err
	}
	var heard error
	onGoroutine(func() { heard = b.handlePublish(s, p) })
	if b.acknowledges(s, p, heard) && p.qos == 1 {
		_, err = s.conn.Write(ack(packets.Puback, p.id))
	}
	return err
}

// onGoroutine runs do on another goroutine and waits, because the connection's goroutine would keep
// the deep stack of do. It passes a panic on.
func onGoroutine(do func()) {
	var accident any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { accident = recover() }()
		do()
	}()
	if <-done; accident != nil {
		panic(accident)
	}
}

// acknowledges reports whether to acknowledge a message: if it was stored, or if it is forbidden,
// because the device would repeat it forever.
func (b *Broker) acknowledges(s *session, p publication, err error) bool {
	var o offence
	switch {
	case err == nil:
		return true
	case errors.As(err, &o):
		b.offence(s.peer.Node, o.kind, o.text)
		return true
	case errors.Is(err, ErrStopping):
		b.log.Debug("not stored; the device will send again", "node", s.peer.Node, "topic", string(p.topic), "err", err)
	case errors.Is(err, ErrLater):
		b.stats.unremembered.Add(1)
		b.log.Debug("not stored; the device will send again", "node", s.peer.Node, "topic", string(p.topic), "err", err)
	default:
		b.stats.unremembered.Add(1)
		b.log.Error("cannot store a message of a device; it will send "+
			"again", "node", s.peer.Node, "topic", string(p.topic), "err",
			err)
	}
	return false
}

// handlePublish checks a message and passes it to the Handler.
func (b *Broker) handlePublish(s *session, p publication) error {
	tail, own := strings.CutPrefix(string(p.topic), s.base())
	if !own {
		return offence{forbiddenTopic, fmt.Sprintf("published on %.100q, which is not its topic", p.topic)}
	}
	if p.retain {
		return offence{retained, fmt.Sprintf("published %.40q with the RETAIN flag, which is not supported", tail)}
	}
	c, id, err := wire.ParseChannel(tail)
	if err != nil || !c.FromDevice() {
		return offence{forbiddenTopic, fmt.Sprintf("published on %.80q, which is not a device's channel", tail)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	handler, peer, payload := b.cfg.Handler, s.peer, p.payload
	if wire.Packed(payload) { // charge for the unpacked size
		s.rate.take(min(float64(wire.TextSize(payload))/(16<<10), s.rate.perSecond))
	}
	if s.dismissal != nil {
		switch c {
		case wire.ChannelPods:
			return parseAndHandle(b, podLists, payload, wire.ParsePods, func(v wire.Pods) error {
				return handler.Left(ctx, peer, v)
			})
		case wire.ChannelLease:
			_, err := orOffence(wire.ParseLease(payload))
			return err
		}
		return nil // other messages of a dismissed device are ignored
	}
	b.showReceived(string(p.topic), c, payload)
	switch c {
	case wire.ChannelLease:
		return parseAndHandle(b, leases, payload, wire.ParseLease, func(v wire.Lease) error {
			handler.Lease(peer, v)
			return nil
		})
	case wire.ChannelStatus:
		return parseAndHandle(b, statuses, payload, wire.ParseStatus, func(v wire.Status) error {
			return handler.Status(ctx, peer, v)
		})
	case wire.ChannelPods:
		return parseAndHandle(b, podLists, payload, wire.ParsePods, func(v wire.Pods) error {
			return handler.Pods(ctx, peer, v)
		})
	case wire.ChannelEvent:
		return parseAndHandle(b, events, payload, wire.ParseEvent, func(v wire.Event) error {
			return handler.Event(ctx, peer, v)
		})
	case wire.ChannelPresence:
		return parseAndHandle(b, presences, payload, wire.ParsePresence, func(v wire.Presence) error {
			handler.Presence(peer, v)
			return nil
		})
	case wire.ChannelReply:
		return parseAndHandle(b, replies, payload, wire.ParseReply, func(v wire.Reply) error {
			handler.Reply(peer, id, v)
			return nil
		})
	}
	return nil
}

// parseAndHandle parses a payload, counts it and passes it on. The number of concurrent parsers is
// limited, so that a fleet that reconnects at once does not fill the memory.
func parseAndHandle[T any](b *Broker, k kind, payload []byte, parse func([]byte) (T, error),
	handle func(T) error,
) error {
	v, err := func() (T, error) {
		b.parsers <- struct{}{}
		defer func() { <-b.parsers }()
		return orOffence(parse(payload))
	}()
	if err != nil {
		return err
	}
	b.stats.received[k].Add(1)
	return handle(v)
}

// orOffence turns a parse error into an offence.
func orOffence[T any](v T, err error) (T, error) {
	if err != nil {
		return v, offence{badPayload, err.Error()}
	}
	return v, nil
}
