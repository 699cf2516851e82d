package broker

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/wire"
)

// ObserverOrganization is the O in the subject of an observer's certificate.
const ObserverOrganization = "flotilla:observers"

// ObserverPrefix precedes an observer's name in the certificate. Certificates of older hubs lack
// it.
const ObserverPrefix = "observer:"

// Limits of observers. An observer costs the sender of a message one comparison per filter.
const (
	maxObservers    = 8       // observers connected at the same time
	maxFilters      = 16      // filters of each observer
	maxFilter       = 256     // bytes of a filter
	maxObserved     = 1 << 20 // bytes that wait for an observer's network; more are dropped
	askObserver     = time.Second
	observerSilence = 24 * time.Hour // without keep-alive, only a failed write shows that an observer is gone
)

// An Observer is an operator's MQTT tool that may read the messages between devices and hub, with
// the rights of a viewer. It gets them at QoS 0, and delays no sender. Messages that may contain
// secrets (desired states, requests and responses) come without their content.
type Observer struct {
	Name  string // name in its certificate
	Addr  string
	Chain []*x509.Certificate // the verified certificate chain
}

// Observers authorizes observers. Its methods run on the goroutine of the connection, or
// concurrently.
type Observers interface {
	// May is called at CONNECT and each second afterwards. An error ends the connection.
	May(o Observer) error
	// Observing is called after an observer has connected.
	Observing(o Observer)
}

// observers are the connected observers.
type observers struct {
	filters       atomic.Int64 // total number of filters; 0: messages are not prepared for observers
	sent, dropped atomic.Uint64

	mu  sync.RWMutex
	all []*observerState
}

type observerState struct {
	Observer
	conn    *conn
	filters []string
}

// checkObserverConnect accepts or refuses an observer's CONNECT by its certificate. The client ID
// does not matter.
func (b *Broker) checkObserverConnect(pk *packets.ConnectPacket, o Observer) (*session, *refusal) {
	s := &session{observer: &observerState{Observer: o}}
	refused := func(why reason, code byte, err error) (*session, *refusal) {
		return s, &refusal{why: why, code: code, err: fmt.Errorf("observer %s: %w", o.Name, err)}
	}
	if pk.ProtocolVersion != 4 {
		return refused(version, badVersion,
			fmt.Errorf("MQTT protocol level is %d, but this broker speaks 3.1.1 (level 4)", pk.ProtocolVersion))
	}
	if err := validate(pk); err != nil {
		return refused(noConnect, 0, fmt.Errorf("CONNECT: %w", err))
	}
	if pk.WillFlag {
		return refused(badWill, notAuthorized, errors.New("it has a will, but observers must not publish"))
	}
	if err := b.cfg.Observers.May(o); err != nil {
		return refused(refusedByHub, notAuthorized, err)
	}
	s.keepAlive = pk.Keepalive
	s.rate = newBucket(b.cfg.Limits.NodeRate)
	return s, nil
}

func (o *observers) enter(w *observerState) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) >= maxObservers {
		return false
	}
	o.all = append(o.all, w)
	return true
}

func (o *observers) leave(w *observerState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = slices.DeleteFunc(o.all, func(other *observerState) bool { return other == w })
	o.filters.Add(-int64(len(w.filters)))
	w.filters = nil
}

// observe serves an observer's connection from its accepted CONNECT to its end.
func (b *Broker) observe(s *session) error {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	w := s.observer
	w.conn = s.conn
	if !b.observers.enter(w) {
		refuse(s.conn, 4, unavailable)
		err := fmt.Errorf("observer %s: %d observers are connected, which is the limit", w.Name, maxObservers)
		b.refused(s.conn, &refusal{why: capacity, err: err})
		return err
	}
	defer b.observers.leave(w)
	if _, err := s.conn.Write(connack); err != nil {
		return err
	}
	b.stats.accepted.Add(1)
	b.cfg.Observers.Observing(w.Observer)
	go b.checkObserver(ctx, s)
	r := &packetReader{from: s.conn, expect: s.conn.setPacketDeadline}
	for {
		head, body, err := r.next()
		if err == nil {
			err = b.handleObserver(s, head, body)
		}
		if err != nil {
			_ = s.conn.Close()
			return err
		}
	}
}

// checkObserver ends an observer's connection when its authorization ends.
func (b *Broker) checkObserver(ctx context.Context, s *session) {
	defer panics.CatchThen("mqtt", func(error) { _ = s.conn.Close() })
	again := time.NewTicker(askObserver)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		if err := b.cfg.Observers.May(s.observer.Observer); err != nil {
			b.log.Info("observer disconnected", "name", s.observer.Name, "addr", s.observer.Addr, "err", err)
			_ = s.conn.Close()
			return
		}
	}
}

// handleObserver handles an observer's packet.
func (b *Broker) handleObserver(s *session, head byte, body []byte) error {
	flags := head & 0x0f
	switch kind := head >> 4; {
	case kind == packets.Publish:
		s.chargeRate(len(body), 0)
		p, err := parsePublish(head, body)
		if err != nil {
			return err
		}
		b.stats.offences[forbiddenTopic].Add(1)
		b.warn("observer "+s.observer.Name, "drop a message of an observer: it may only subscribe", "name",
			s.observer.Name, "addr", s.observer.Addr, "topic", fmt.Sprintf("%.100q", p.topic))
		if p.qos == 1 { // otherwise the client would repeat the message forever
			_, err = s.conn.Write(ack(packets.Puback, p.id))
		}
		return err
	case kind == packets.Subscribe && flags == 2:
		return b.subscribeObserver(s, head, body)
	case kind == packets.Unsubscribe && flags == 2:
		return b.unwatch(s, head, body)
	case kind == packets.Pingreq && flags == 0 && len(body) == 0:
		s.chargeRate(0, 0)
		_, err := s.conn.Write(pingresp)
		return err
	case kind == packets.Disconnect && flags == 0 && len(body) == 0:
		return errOrderly
	}
	return fmt.Errorf("%w: type and flags 0x%02x with %d bytes", errMalformed, head, len(body))
}

// subscribeObserver grants filters below the fleet's prefix, at QoS 0.
func (b *Broker) subscribeObserver(s *session, head byte, body []byte) error {
	p, err := parseSubscribe(head, body)
	if err != nil {
		return err
	}
	s.chargeRate(len(body), len(p.Topics))
	codes := make([]byte, len(p.Topics))
	w := s.observer
	b.observers.mu.Lock()
	for i, f := range p.Topics {
		switch {
		case slices.Contains(w.filters, f):
		case len(w.filters) < maxFilters && validFilter(b.cfg.Prefix, f):
			w.filters = append(w.filters, f)
			b.observers.filters.Add(1)
		default:
			codes[i] = 0x80
			b.stats.offences[forbiddenFilter].Add(1)
		}
	}
	b.observers.mu.Unlock()
	_, err = s.conn.Write(ack(packets.Suback, p.MessageID, codes...))
	return err
}

func (b *Broker) unwatch(s *session, head byte, body []byte) error {
	p, err := parseUnsubscribe(head, body)
	if err != nil {
		return err
	}
	s.chargeRate(len(body), len(p.Topics))
	w := s.observer
	b.observers.mu.Lock()
	before := len(w.filters)
	w.filters = slices.DeleteFunc(w.filters, func(f string) bool { return slices.Contains(p.Topics, f) })
	b.observers.filters.Add(int64(len(w.filters) - before))
	b.observers.mu.Unlock()
	_, err = s.conn.Write(ack(packets.Unsuback, p.MessageID))
	return err
}

// validFilter reports whether a filter is valid and stays below the fleet's prefix.
func validFilter(prefix, filter string) bool {
	rest, below := strings.CutPrefix(filter, prefix+"/")
	if !below || len(filter) > maxFilter || !utf8.ValidString(filter) || strings.ContainsRune(filter, 0) {
		return false
	}
	levels := strings.Split(rest, "/")
	for i, l := range levels {
		if strings.ContainsAny(l, "+#") && l != "+" && (l != "#" || i < len(levels)-1) {
			return false
		}
	}
	return true
}

// matches reports whether a topic matches a filter that validFilter has allowed.
func matches(filter, topic string) bool {
	for {
		f, filterRest, moreFilter := strings.Cut(filter, "/")
		t, topicRest, moreTopic := strings.Cut(topic, "/")
		switch {
		case f == "#":
			return true
		case f != "+" && f != t:
			return false
		case !moreTopic:
			return !moreFilter || filterRest == "#"
		case !moreFilter:
			return false
		}
		filter, topic = filterRest, topicRest
	}
}

// active reports whether there is a subscribed observer.
func (o *observers) active() bool { return o != nil && o.filters.Load() > 0 }

// show sends a message to subscribed observers without waiting.
func (o *observers) show(topic string, payload []byte) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for _, w := range o.all {
		if !slices.ContainsFunc(w.filters, func(f string) bool { return matches(f, topic) }) {
			continue
		}
		if w.conn.send(message{channel: observed, topic: topic, payload: payload}) {
			o.sent.Add(1)
		} else {
			o.dropped.Add(1)
		}
	}
}

// withhold shows observers that a message was sent, without its content.
func (o *observers) withhold(topic, kind string, bytes int) {
	payload, err := json.Marshal(struct {
		Withheld bool   `json:"withheld"`
		Type     string `json:"type,omitempty"`
		Bytes    int    `json:"bytes"`
	}{true, kind, bytes})
	if err == nil {
		o.show(topic, payload)
	}
}

// showReceived shows observers what a device has published, except responses, which may contain any
// part of a log, file or shell.
func (b *Broker) showReceived(topic string, c wire.Channel, payload []byte) {
	switch {
	case !b.observers.active():
	case c == wire.ChannelReply:
		b.observers.withhold(topic, "", len(payload))
	default:
		b.observers.show(topic, payload)
	}
}
