package broker

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// offenceInterval is the shortest time between two tellings about one offender. It doubles
// with each telling, up to offenceSlowest, until the offender was quiet for as long again: who
// tries all night is a few hundred lines.
const (
	offenceInterval = 10 * time.Second
	offenceSlowest  = 5 * time.Minute
)

// An offence is what a device did that it may not do. It is dropped and counted,
// never answered by cutting the connection: the device would do it again.
type offence struct {
	kind offenceKind
	text string
}

func (o offence) Error() string { return o.text }

// offences holds back what was told a moment ago.
type offences struct {
	mu    sync.Mutex
	by    map[string]*lastTold
	swept time.Time // when those that may be told again were looked for
}

type lastTold struct {
	at    time.Time
	every time.Duration // until the next may be told
	held  int           // since then
}

// due says whether to tell now, and how many times was held back before.
func (o *offences) due(who string) (held int, now bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.by[who]
	switch {
	case t != nil && time.Since(t.at) < t.every:
		t.held++
		return 0, false
	case t == nil && len(o.by) >= 4096 && time.Since(o.swept) >= time.Second:
		o.swept = time.Now()
		for k, t := range o.by {
			if time.Since(t.at) >= t.every {
				delete(o.by, k)
			}
		}
	}
	if o.by == nil {
		o.by = map[string]*lastTold{}
	}
	every := offenceInterval
	if t != nil {
		held = t.held
		if time.Since(t.at) < 2*t.every {
			every = min(2*t.every, offenceSlowest)
		}
	}
	o.by[who] = &lastTold{at: time.Now(), every: every}
	return held, true
}

// andMore is the end of a text about something that happened more often.
func andMore(held int) string {
	if held == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more since the last message)", held)
}

// offence counts, and tells the Handler if it is time.
func (b *Broker) offence(node string, kind offenceKind, text string) {
	b.stats.offences[kind].Add(1)
	if held, now := b.offences.due("node " + node); now {
		b.cfg.Handler.Offence(node, text+andMore(held))
	}
}

// refused counts a connection that was not let in, and logs it. An identified
// node whose CONNECT is wrong is an offender as well; one that the hub itself
// refused is not, the hub knows.
func (b *Broker) refused(c net.Conn, r *refusal) {
	b.stats.refused[r.why].Add(1)
	if b.closing.Load() {
		return
	}
	b.warn("refused "+r.node+string(reasonNames[r.why]), "refuse MQTT connection", "node", r.node, "addr",
		c.RemoteAddr().String(), "reason", reasonNames[r.why], "err", r.err)
	if r.node != "" && (r.why == clientID || r.why == badWill || r.why == connectTooLarge || r.why == noConnect) {
		b.offence(r.node, badConnect, "tried to connect: "+r.err.Error())
	}
}

// warn logs, at most once per interval and key.
func (b *Broker) warn(key, msg string, args ...any) {
	if held, now := b.offences.due("log " + key); now {
		b.log.Warn(msg+andMore(held), args...)
	}
}
