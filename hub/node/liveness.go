package node

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/wire"
)

// A liveness is when a node was last heard of, and the counters of its lease. Leases
// touch nothing else: no pass, no lock of the fleet, no write.
type liveness struct {
	boot                 atomic.Pointer[string] // the current boot; nil before its first status
	key                  atomic.Pointer[string] // the key that speaks for the node; nil: nobody has joined
	seen                 atomic.Int64           // since the loop's start; 0: not yet
	seq                  atomic.Uint64          // of the newest lease
	earlierSeq           atomic.Uint64          // of the last lease, where that was an earlier one
	earlierCount         atomic.Uint32          // how many earlier ones there were in a row
	status               atomic.Uint64          // seq of the newest status that the hub has
	pods                 atomic.Uint64          // seq of the newest pods that the hub has
	wantedGeneration     atomic.Int64           // generation that the device should have
	storedGeneration     atomic.Int64           // generation that it has stored
	oversizedGeneration  atomic.Int64           // generation that no message holds
	leaseIntervalPending atomic.Bool            // it may live by a longer lease interval than is wanted
	skew                 atomic.Int64           // the device's clock less ours, in nanoseconds
	storedUnknown        atomic.Bool            // what it has stored is not known yet
	silent               atomic.Bool            // the node is Ready=Unknown: it must report before it is ready
	// it was, and its pods counted as not ready, or somebody has written over one: it must list them again
	podsStale         atomic.Bool
	statusOverwritten atomic.Bool              // its status is what somebody else has written: it must report again
	link              atomic.Bool              // connected
	refusedClaimant   atomic.Pointer[claimant] // the last that was refused in its favour

	hardware atomic.Pointer[json.RawMessage] // the newest report, with what changes by itself

	// Since TakeVitals was called last:
	longestSilence atomic.Int64                // the longest between two signs of life, in nanoseconds; 0: there were none
	lost           atomic.Uint64               // leases that were sent and did not arrive
	vitals         atomic.Pointer[wire.Vitals] // the newest; nil: none yet
	vitalsAreNew   atomic.Bool                 // they have come since

	rejectedFields   atomic.Pointer[string] // what of its newest status was not believed
	deferredMessages atomic.Uint64          // messages that were not remembered, see budget.go
	lastEventHash    atomic.Uint64          // hash of the event that was heard last

	mu        sync.Mutex
	list      *partialList // of pods, while parts of it are missing
	asked     backoff      // refresh
	resent    backoff      // desired
	bytes     allowance
	turns     allowance
	events    allowance
	lines     allowance
	conflicts allowance

	reports         allowance
	suppressedLines int // lines since the last one
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

// due tells whether it is time to repeat at t, since the loop's start.
func (b *backoff) due(t time.Duration) bool {
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

// livenesses are those of all nodes.
type livenesses struct{ m sync.Map }

func (p *livenesses) get(node string) *liveness {
	if v, ok := p.m.Load(node); ok {
		return v.(*liveness)
	}
	v, _ := p.m.LoadOrStore(node, new(liveness))
	return v.(*liveness)
}

func (p *livenesses) find(node string) *liveness {
	if v, ok := p.m.Load(node); ok {
		return v.(*liveness)
	}
	return nil
}

// Lease hears a lease. It renews the node if its boot is the current one and its
// seq grew; whatever it shows to be behind is asked for or sent again.
func (d *Devices) Lease(c Caller, lease wire.Lease) {
	node := c.Node
	p := d.nodes.find(node)
	at := d.Age()
	if p == nil && c.Key == "" {
		p = d.nodes.get(node)
	}
	if p == nil || !p.speaks(c.Key) {
		return
	}
	boot := p.boot.Load()
	if boot == nil || *boot != lease.Boot {
		d.askUnknownBoot(node, p, lease.Boot)
		return
	}
	if lease.Seq <= p.seq.Load() {
		d.earlierLease(node, p, lease.Seq)
		return
	}
	if p.earlierCount.Load() > 0 {
		p.earlierCount.Store(0)
	}
	p.track(at, lease.Seq)
	p.seq.Store(lease.Seq)
	p.seen.Store(int64(at))
	p.storedGeneration.Store(lease.Desired)
	if !lease.Time.IsZero() {
		p.skew.Store(int64(lease.Time.Sub(d.At(at))))
	}
	if lease.Status > p.status.Load() || lease.Pods > p.pods.Load() || p.silent.Load() || p.podsStale.Load() ||
		p.statusOverwritten.Load() {
		d.askAgain(node, p)
	} else {
		p.mu.Lock()
		p.asked.reset(at)
		p.mu.Unlock()
	}
	wanted := p.wantedGeneration.Load()
	switch {
	case p.storedUnknown.Load():
		if p.storedUnknown.CompareAndSwap(true, false) {
			d.learnStored(node, p, lease.Desired)
		}
	case lease.Desired < wanted:
		p.mu.Lock()
		again := p.resent.due(at)
		p.mu.Unlock()
		if again {
			d.resend(node)
		}
	case lease.Desired > wanted:
		d.storedIsNewer(node, lease.Desired)
	default: // it has caught up
		if p.leaseIntervalPending.CompareAndSwap(true, false) {
			d.leaseIntervalStored(node, p, lease.Desired)
		}
		p.mu.Lock()
		p.resent.reset(at)
		p.mu.Unlock()
	}
}

// earlierLease hears a lease that is not news. One that comes late or twice is nothing. But
// where they go on, each later than the one before, a device has been put back in its life,
// as a virtual machine is to a snapshot, and counts on from there: in a new boot it is heard.
func (d *Devices) earlierLease(node string, p *liveness, seq uint64) {
	const inARow = 3 // in less than a grace
	if seq <= p.earlierSeq.Swap(seq) {
		p.earlierCount.Store(0)
	}
	if p.earlierCount.Add(1) >= inARow {
		d.renewBoot(node, p)
	}
}

// track notes how the link fares: before what it knows is overwritten by a lease.
func (p *liveness) track(at time.Duration, seq uint64) {
	if was := p.seen.Load(); was > 0 {
		p.longestSilence.Store(max(p.longestSilence.Load(), int64(at)-was))
	}
	if was := p.seq.Load(); was > 0 {
		p.lost.Add(min(seq-was-1, 1000))
	}
}

// speaks tells whether a key is the one that speaks for the node.
func (p *liveness) speaks(key string) bool {
	k := p.key.Load()
	return k == nil && key == "" || k != nil && *k == key
}

// askUnknownBoot asks a device for a refresh whose boot is not the current one.
func (d *Devices) askUnknownBoot(node string, p *liveness, boot string) {
	if rec := d.Snapshot().Record(node); rec != nil && slices.Contains(rec.PastBoots, boot) {
		d.renewBoot(node, p)
		return
	}
	d.askAgain(node, p)
}

// renewBoot asks a device for a refresh under a new boot id. A boot that was followed
// by another never becomes current again, so that nothing old can be said once more;
// but its device may be the only one left, and must not have to be restarted.
func (d *Devices) renewBoot(node string, p *liveness) {
	d.refresh(node, p, wire.Request{Type: wire.RequestRefresh, NewBoot: true})
}

func (d *Devices) askAgain(node string, p *liveness) {
	d.refresh(node, p, wire.Request{Type: wire.RequestRefresh})
}

func (d *Devices) refresh(node string, p *liveness, r wire.Request) {
	p.mu.Lock()
	ask := p.asked.due(d.Age())
	p.mu.Unlock()
	if ask && d.Broker != nil {
		if err := d.Broker.Request(node, d.requestID(), r); err != nil {
			d.Log.Debug("ask for a refresh", "node", node, "err", err)
		}
	}
}

// Seen returns when a node was last heard of, if this process has heard of it.
func (d *Devices) Seen(node string) (time.Time, bool) {
	p := d.nodes.find(node)
	if p == nil {
		return time.Time{}, false
	}
	at := p.seen.Load()
	return d.At(time.Duration(at)), at > 0
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
	Vitals    wire.Vitals // the newest that were heard
}

// Liveness returns what is known of a node's link.
func (d *Devices) Liveness(node string) Liveness {
	p := d.nodes.find(node)
	if p == nil {
		return Liveness{}
	}
	v := Liveness{Connected: p.link.Load(), Lease: p.seq.Load(), Skew: time.Duration(p.skew.Load()),
		Wanted: p.wantedGeneration.Load(), Stored: p.storedGeneration.Load()}
	if boot := p.boot.Load(); boot != nil {
		v.Boot = *boot
	}
	if hw := p.hardware.Load(); hw != nil {
		v.Hardware = *hw
	}
	if vitals := p.vitals.Load(); vitals != nil {
		v.Vitals = *vitals
	}
	v.Seen, _ = d.Seen(node)
	if p.seen.Load() == 0 {
		v.Seen = time.Time{}
	}
	return v
}
