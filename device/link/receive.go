package link

import (
	"slices"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/wire"
)

// arrived dispatches a message from the hub. It runs on paho's reader and must not block.
func (l *Link) arrived(m paho.Message) {
	a, err := wire.ParseTopic(l.cfg.Prefix, m.Topic())
	switch {
	case err != nil || a.Node != l.cfg.Node || !a.Channel.FromHub():
		l.log.Warn("ignore a message that is not for this device", "node", l.cfg.Node, "topic", m.Topic())
	case m.Retained():
		l.log.Warn("ignore a retained message, which may be outdated; clear it on the broker", "node", l.cfg.Node,
			"topic", m.Topic())
	case a.Channel == wire.ChannelDesired:
		head, known := wire.DesiredHead(m.Payload())
		l.mu.Lock()
		switch {
		case known: // a part replaces parts of other desired states, and an earlier copy of itself
			l.desired = slices.DeleteFunc(l.desired, func(waits []byte) bool {
				had, known := wire.DesiredHead(waits)
				return !known || had.Hub != head.Hub || had.Generation != head.Generation || had.Parts != head.Parts ||
					had.Part == head.Part
			})
		case !wire.Packed(m.Payload()):
			l.desired = nil
		case len(l.desired) >= wire.MaxParts:
			l.desired = l.desired[1:]
		}
		l.desired = append(l.desired, m.Payload())
		l.mu.Unlock()
		signal(l.deliver)
	default:
		l.arrivedRequest(a.ID, m.Payload())
	}
}

func (l *Link) arrivedRequest(id string, payload []byte) {
	r, err := wire.ParseRequest(payload)
	if err != nil {
		l.log.Warn("ignore a request that cannot be read", "node", l.cfg.Node, "request", id, "err", err)
		return
	}
	if r.Input() {
		l.mu.Lock()
		s := l.streams[id]
		l.mu.Unlock()
		if s != nil { // without a stream, the hub already knows that the reply ended
			s.arrivedInput(r)
		}
		return
	}
	if r.AcksPayload() {
		l.ackedByHub(r.Of)
		return
	}
	switch r.Type {
	case wire.RequestRefresh:
		l.ask(func(a *asked) { a.refresh, a.boot = true, r.NewBoot })
	case wire.RequestAck:
		l.mu.Lock()
		s := l.streams[r.Of]
		l.mu.Unlock()
		if s != nil {
			s.acked(r.Seq)
		}
	default:
		if !l.isForUs() {
			l.log.Warn("drop a request: the hub has not acknowledged a status of this connection yet", "node", l.cfg.Node,
				"request", id, "type", r.Type)
			return
		}
		l.mu.Lock()
		full := len(l.requests) >= maxRequests || len(l.requests) > 0 && l.waiting+len(payload) > maxWaiting
		if !full {
			l.waiting += len(payload)
			l.requests = append(l.requests, addressedRequest{id, r})
		}
		l.mu.Unlock()
		if full {
			l.log.Warn("drop a request: too many wait", "node", l.cfg.Node, "request", id)
		}
		signal(l.deliver)
	}
}
