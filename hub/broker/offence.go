package broker

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// offenceInterval is the shortest time between two reports about one offender. It doubles with each
// report, up to offenceSlowest, until the offender was quiet for as long. So a night of attempts is
// a few hundred lines.
const (
	offenceInterval = 10 * time.Second
	offenceSlowest  = 5 * time.Minute
)

// An offence is a forbidden message or subscription. The broker drops and counts it. The connection
// stays open, because the device would repeat the offence after a reconnect.
type offence struct {
	kind offenceKind
	text string
}

func (o offence) Error() string { return o.text }

// offences limits the rate of reports.
type offences struct {
	mu    sync.Mutex
	by    map[string]*lastTold
	swept time.Time // when expired entries were last removed
}

type lastTold struct {
	at    time.Time
	every time.Duration // interval to the next report
	held  int           // reports suppressed since the last one
}

// report reports whether to report now, and how many reports were suppressed before.
func (o *offences) report(who string) (held int, now bool) {
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

// suppressedText is the end of a report that follows suppressed reports.
func suppressedText(held int) string {
	if held == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more since the last message)", held)
}

// offence counts an offence, and reports it to the Handler if it is due.
func (b *Broker) offence(node string, kind offenceKind, text string) {
	b.stats.offences[kind].Add(1)
	if held, now := b.offences.report("node " + node); now {
		b.cfg.Handler.Offence(node, text+suppressedText(held))
	}
}

// refused counts and logs a refused connection. An invalid CONNECT of an identified node is an
// offence; a CONNECT that the hub refuses is not.
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

// warn logs at most once per interval and key.
func (b *Broker) warn(key, msg string, args ...any) {
	if held, now := b.offences.report("log " + key); now {
		b.log.Warn(msg+suppressedText(held), args...)
	}
}
