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

// ObserverOrganization is what the subject of an observer's certificate says beside its name.
const ObserverOrganization = "flotilla:observers"

// ObserverPrefix is what stands before an observer's name in it; older ones are without.
const ObserverPrefix = "observer:"

// Limits of observers. What they cost the sender of a message is to compare its topic with
// their filters.
const (
	maxObservers = 8       // connected at once
	maxFilters   = 16      // of each
	maxFilter    = 256     // bytes of a filter
	maxObserved  = 1 << 20 // bytes that wait for an observer's network; what is more he does not get
	askObserver  = time.Second
	neverPings   = 24 * time.Hour // an observer without keep-alive is noticed by what is written to him
)

// An Observer is an operator's MQTT tool that may see what devices and the hub say to each
// other, as a viewer may: at QoS 0, never holding anybody up. What may hold secrets
// (desired states, questions and their answers) it sees without what is in it.
type Observer struct {
	Name  string // what its certificate says
	Addr  string
	Chain []*x509.Certificate // the certificate, and what it has shown with it
}

// Observers says who may observe. Its methods are called on the goroutine of the
// connection concerned, or beside it.
type Observers interface {
	// May is asked at CONNECT, and each second after it: an error ends the connection.
	May(o Observer) error
	// Observing is told once an observer is let in.
	Observing(o Observer)
}

// observers are those who are connected.
type observers struct {
	filters       atomic.Int64 // of all of them; 0: nobody looks, and nothing is made ready for them
	sent, dropped atomic.Uint64

	mu  sync.RWMutex
	all []*watching
}

type watching struct {
	Observer
	conn    *conn
	filters []string
}

// checkObserverConnect decides on an observer's CONNECT. His client id says nothing, the
// certificate all.
func (b *Broker) checkObserverConnect(pk *packets.ConnectPacket, o Observer) (*session, *refusal) {
	s := &session{watching: &watching{Observer: o}}
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
		return refused(badWill, notAuthorized, errors.New("it has a will, but an observer publishes nothing"))
	}
	if err := b.cfg.Observers.May(o); err != nil {
		return refused(refusedByHub, notAuthorized, err)
	}
	s.keepAlive = pk.Keepalive
	s.rate = newBucket(b.cfg.Limits.NodeRate)
	return s, nil
}

func (o *observers) enter(w *watching) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) >= maxObservers {
		return false
	}
	o.all = append(o.all, w)
	return true
}

func (o *observers) leave(w *watching) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = slices.DeleteFunc(o.all, func(other *watching) bool { return other == w })
	o.filters.Add(-int64(len(w.filters)))
	w.filters = nil
}

// observe is an observer's connection from its judged CONNECT to its end.
func (b *Broker) observe(s *session) error {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	w := s.watching
	w.conn = s.conn
	if !b.observers.enter(w) {
		refuse(s.conn, 4, unavailable)
		err := fmt.Errorf("observer %s: %d observers are connected, and more are not let in", w.Name, maxObservers)
		b.refused(s.conn, &refusal{why: capacity, err: err})
		return err
	}
	defer b.observers.leave(w)
	if _, err := s.conn.Write(connack); err != nil {
		return err
	}
	b.stats.accepted.Add(1)
	b.cfg.Observers.Observing(w.Observer)
	go b.ask(ctx, s)
	r := &packetReader{from: s.conn, expect: s.conn.expect}
	for {
		head, body, err := r.next()
		if err == nil {
			err = b.observed(s, head, body)
		}
		if err != nil {
			_ = s.conn.Close()
			return err
		}
	}
}

// ask ends an observer's connection when it may not go on.
func (b *Broker) ask(ctx context.Context, s *session) {
	defer panics.CatchThen("mqtt", func(error) { _ = s.conn.Close() })
	again := time.NewTicker(askObserver)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		if err := b.cfg.Observers.May(s.watching.Observer); err != nil {
			b.log.Info("observer disconnected", "name", s.watching.Name, "addr", s.watching.Addr, "err", err)
			_ = s.conn.Close()
			return
		}
	}
}

// observed does what an observer's packet asks for.
func (b *Broker) observed(s *session, head byte, body []byte) error {
	flags := head & 0x0f
	switch kind := head >> 4; {
	case kind == packets.Publish:
		s.chargeRate(len(body), 0)
		p, err := parsePublish(head, body)
		if err != nil {
			return err
		}
		b.stats.offences[forbiddenTopic].Add(1)
		b.warn("observer "+s.watching.Name, "drop what an observer has published: it may only subscribe", "name",
			s.watching.Name, "addr", s.watching.Addr, "topic", fmt.Sprintf("%.100q", p.topic))
		if p.qos == 1 { // or it would be sent for ever
			_, err = s.conn.Write(ack(packets.Puback, p.id))
		}
		return err
	case kind == packets.Subscribe && flags == 2:
		return b.watch(s, head, body)
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

// watch grants filters below the fleet's prefix, at QoS 0.
func (b *Broker) watch(s *session, head byte, body []byte) error {
	p, err := parseSubscribe(head, body)
	if err != nil {
		return err
	}
	s.chargeRate(len(body), len(p.Topics))
	codes := make([]byte, len(p.Topics))
	w := s.watching
	b.observers.mu.Lock()
	for i, f := range p.Topics {
		switch {
		case slices.Contains(w.filters, f):
		case len(w.filters) < maxFilters && mayWatch(b.cfg.Prefix, f):
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
	w := s.watching
	b.observers.mu.Lock()
	before := len(w.filters)
	w.filters = slices.DeleteFunc(w.filters, func(f string) bool { return slices.Contains(p.Topics, f) })
	b.observers.filters.Add(int64(len(w.filters) - before))
	b.observers.mu.Unlock()
	_, err = s.conn.Write(ack(packets.Unsuback, p.MessageID))
	return err
}

// mayWatch says whether a filter is one of MQTT and stays below the fleet's prefix.
func mayWatch(prefix, filter string) bool {
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

// matches compares a topic with a filter that mayWatch has let through.
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

// any says whether somebody looks.
func (o *observers) any() bool { return o != nil && o.filters.Load() > 0 }

// show gives a message to those who look. It waits for nobody.
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

// withhold shows that a message was sent, and not what is in it.
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

// showHeard shows what a device has published: not what it answers, for that can be
// anything that a log, a file or a shell holds.
func (b *Broker) showHeard(topic string, c wire.Channel, payload []byte) {
	switch {
	case !b.observers.any():
	case c == wire.ChannelReply:
		b.observers.withhold(topic, "", len(payload))
	default:
		b.observers.show(topic, payload)
	}
}
