package control

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/wire"
)

// A pulse is a node's sign of life and the counters of its lease. Leases touch
// nothing else: no pass, no lock of the fleet, no write.
type pulse struct {
	boot   atomic.Pointer[string] // the current boot; nil before its first status
	seen   atomic.Int64           // since the loop's start; 0: not yet
	seq    atomic.Uint64          // of the newest lease
	status atomic.Uint64          // seq of the newest status that the hub has
	pods   atomic.Uint64          // seq of the newest pods that the hub has
	wanted atomic.Int64           // generation that the device should have
	stored atomic.Int64           // generation that it has stored
	skew   atomic.Int64           // the device's clock less ours, in nanoseconds
	unmet  atomic.Bool            // what it has stored is not known yet
	silent atomic.Bool            // the node is Ready=Unknown: it must report before it is ready
	link   atomic.Bool            // connected

	hardware atomic.Pointer[json.RawMessage] // the newest report, with what changes by itself

	mu     sync.Mutex
	asked  backoff // refresh
	resent backoff // desired
}

// A backoff spaces repetitions: 2 s at first, doubling to 60 s, until it is reset.
type backoff struct {
	last time.Duration // since the loop's start
	gap  time.Duration // after that; 0: it may be said at once
}

const (
	firstGap   = 2 * time.Second
	longestGap = 60 * time.Second
)

// turn tells whether it is time to repeat at t, since the loop's start.
func (b *backoff) turn(t time.Duration) bool {
	if t < b.last+b.gap {
		return false
	}
	b.last, b.gap = t, min(max(2*b.gap, firstGap), longestGap)
	return true
}

// reset notes at t that the device is as it should be: what goes wrong from now on has
// nothing to do with what did before. Only the first gap is kept.
func (b *backoff) reset(t time.Duration) {
	if b.gap = min(b.gap, firstGap); t >= b.last+b.gap {
		b.gap = 0
	}
}

// pulses are the pulses of all nodes.
type pulses struct{ m sync.Map }

func (p *pulses) get(node string) *pulse {
	if v, ok := p.m.Load(node); ok {
		return v.(*pulse)
	}
	v, _ := p.m.LoadOrStore(node, new(pulse))
	return v.(*pulse)
}

func (p *pulses) find(node string) *pulse {
	if v, ok := p.m.Load(node); ok {
		return v.(*pulse)
	}
	return nil
}

// Lease hears a lease. It renews the node if its boot is the current one and its
// seq grew; whatever it shows to be behind is asked for or sent again.
func (l *Loop) Lease(node string, lease wire.Lease) {
	p := l.pulses.find(node)
	at := l.age()
	if p == nil {
		p = l.pulses.get(node)
	}
	boot := p.boot.Load()
	if boot == nil || *boot != lease.Boot {
		l.askAgain(node, p, at)
		return
	}
	if lease.Seq <= p.seq.Load() {
		return
	}
	p.seq.Store(lease.Seq)
	p.seen.Store(int64(at))
	p.stored.Store(lease.Desired)
	if !lease.Time.IsZero() {
		p.skew.Store(int64(lease.Time.Sub(l.started.Add(at))))
	}
	if lease.Status > p.status.Load() || lease.Pods > p.pods.Load() || p.silent.Load() {
		l.askAgain(node, p, at)
	} else {
		p.mu.Lock()
		p.asked.reset(at)
		p.mu.Unlock()
	}
	wanted := p.wanted.Load()
	switch {
	case p.unmet.Load():
		if p.unmet.CompareAndSwap(true, false) {
			l.meet(node, p, lease.Desired)
		}
	case lease.Desired < wanted:
		p.mu.Lock()
		again := p.resent.turn(at)
		p.mu.Unlock()
		if again {
			l.resend(node)
		}
	case lease.Desired > wanted:
		l.ahead(node, lease.Desired)
	default: // it has caught up
		p.mu.Lock()
		p.resent.reset(at)
		p.mu.Unlock()
	}
}

func (l *Loop) askAgain(node string, p *pulse, at time.Duration) {
	p.mu.Lock()
	ask := p.asked.turn(at)
	p.mu.Unlock()
	if ask && l.Broker != nil {
		if err := l.Broker.Request(node, l.requestID(), wire.Request{Type: wire.RequestRefresh}); err != nil {
			l.Log.Debug("ask for a refresh", "node", node, "err", err)
		}
	}
}

// lastSeen returns when a node was last heard of, if this process has heard of it.
func (l *Loop) lastSeen(node string) (time.Time, bool) {
	p := l.pulses.find(node)
	if p == nil {
		return time.Time{}, false
	}
	at := p.seen.Load()
	return l.started.Add(time.Duration(at)), at > 0
}

// A Liveness is what is known of a node's link, for people to read.
type Liveness struct {
	Seen      time.Time // zero: not since the hub started
	Connected bool
	Boot      string
	Lease     uint64        // seq of the newest
	Skew      time.Duration // the device's clock less ours
	Wanted    int64         // generation that the device should have
	Stored    int64         // generation that it has
	Hardware  json.RawMessage
}

// Liveness returns what is known of a node's link.
func (l *Loop) Liveness(node string) Liveness {
	p := l.pulses.find(node)
	if p == nil {
		return Liveness{}
	}
	v := Liveness{Connected: p.link.Load(), Lease: p.seq.Load(), Skew: time.Duration(p.skew.Load()), Wanted: p.wanted.Load(), Stored: p.stored.Load()}
	if boot := p.boot.Load(); boot != nil {
		v.Boot = *boot
	}
	if hw := p.hardware.Load(); hw != nil {
		v.Hardware = *hw
	}
	v.Seen, _ = l.lastSeen(node)
	if p.seen.Load() == 0 {
		v.Seen = time.Time{}
	}
	return v
}
