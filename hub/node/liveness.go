package node

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/wire"
)

// A liveness has a node's last heartbeat and the counters of its leases. A lease changes nothing
// else: no pass, no global lock, no write.
type liveness struct {
	boot                 atomic.Pointer[string] // current boot; nil before the first status
	key                  atomic.Pointer[string] // key that may act for the node; nil: no device has joined
	seen                 atomic.Int64           // last heartbeat, since the loop's start; 0: never
	seq                  atomic.Uint64          // seq of the newest lease
	earlierSeq           atomic.Uint64          // seq of the last lease that was not newer than seq
	earlierCount         atomic.Uint32          // number of such leases in a row
	status               atomic.Uint64          // seq of the newest accepted status
	pods                 atomic.Uint64          // seq of the newest accepted list of pods
	wantedGeneration     atomic.Int64           // generation that the device should have
	storedGeneration     atomic.Int64           // generation that the device has stored
	oversizedGeneration  atomic.Int64           // generation that is too large for a message
	leaseIntervalPending atomic.Bool            // the device may still use a longer lease interval than wanted
	skew                 atomic.Int64           // the device's clock minus ours, in nanoseconds
	storedUnknown        atomic.Bool            // the generation that the device has stored is not known yet
	silent               atomic.Bool            // the node is Ready=Unknown, so the device must report to become ready
	// The device must list its pods again, because they counted as not ready, or another writer has
	// overwritten a status.
	podsStale         atomic.Bool
	statusOverwritten atomic.Bool              // another writer overwrote the status, so the device must report it again
	link              atomic.Bool              // the device is connected
	refusedClaimant   atomic.Pointer[claimant] // the last claimant that was refused

	hardware atomic.Pointer[json.RawMessage] // newest report, with values that change by themselves

	// Since the last call of TakeVitals:
	longestSilence atomic.Int64                // longest time between two heartbeats, in nanoseconds; 0: not known
	lost           atomic.Uint64               // number of leases that were sent but did not arrive
	vitals         atomic.Pointer[wire.Vitals] // newest measurements; nil: none yet
	vitalsAreNew   atomic.Bool                 // vitals is new since the last call

	rejectedFields   atomic.Pointer[string] // implausible parts of the device's newest status
	deferredMessages atomic.Uint64          // messages beyond the limits, see budget.go
	lastEventHash    atomic.Uint64          // hash of the last accepted event

	mu             sync.Mutex
	list           *partialList // list of pods whose parts have not all arrived
	refreshBackoff backoff      // back-off of requests for a refresh
	resendBackoff  backoff      // back-off of repeated desired states
	bytes          allowance
	turns          allowance
	events         allowance
	lines          allowance
	conflicts      allowance

	reports         allowance
	suppressedLines int // number since the last logged line
}

// A backoff spaces repetitions: 2 s at first, doubled each time up to 60 s, until it is reset.
type backoff struct {
	last time.Duration // last repetition, since the loop's start
	gap  time.Duration // time to the next repetition; 0: at once
}

const (
	firstGap   = 2 * time.Second
	longestGap = 60 * time.Second
)

// due tells whether to repeat at t, since the loop's start.
func (b *backoff) due(t time.Duration) bool {
	if t < b.last+b.gap {
		return false
	}
	b.last, b.gap = t, min(max(2*b.gap, firstGap), longestGap)
	return true
}

// reset records that the device was in order at t, so that a later problem starts with short gaps
// again. Within the first gap after a repetition, the next one still waits for that gap to end.
func (b *backoff) reset(t time.Duration) {
	if b.gap = min(b.gap, firstGap); t >= b.last+b.gap {
		b.gap = 0
	}
}

// livenesses has the livenesses of all nodes.
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

// Lease handles a lease. It renews the node if the lease has the current boot and a larger seq. It
// requests or resends what the lease shows to be outdated.
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
		p.refreshBackoff.reset(at)
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
		again := p.resendBackoff.due(at)
		p.mu.Unlock()
		if again {
			d.resend(node)
		}
	case lease.Desired > wanted:
		d.storedIsNewer(node, lease.Desired)
	default: // the device is up to date
		if p.leaseIntervalPending.CompareAndSwap(true, false) {
			d.leaseIntervalStored(node, p, lease.Desired)
		}
		p.mu.Lock()
		p.resendBackoff.reset(at)
		p.mu.Unlock()
	}
}

// earlierLease handles a lease with an old seq. A late or repeated lease is ignored. Several in
// ascending order mean that the device was reset, for example a virtual machine to a snapshot. The
// hub then requests a new boot.
func (d *Devices) earlierLease(node string, p *liveness, seq uint64) {
	const inARow = 3 // so many leases come in less than a grace period
	if seq <= p.earlierSeq.Swap(seq) {
		p.earlierCount.Store(0)
	}
	if p.earlierCount.Add(1) >= inARow {
		d.renewBoot(node, p)
	}
}

// track counts lost leases and silence before a lease overwrites the old values.
func (p *liveness) track(at time.Duration, seq uint64) {
	if was := p.seen.Load(); was > 0 {
		p.longestSilence.Store(max(p.longestSilence.Load(), int64(at)-was))
	}
	if was := p.seq.Load(); was > 0 {
		p.lost.Add(min(seq-was-1, 1000))
	}
}

// speaks tells whether the device with a key may act for the node.
func (p *liveness) speaks(key string) bool {
	k := p.key.Load()
	return k == nil && key == "" || k != nil && *k == key
}

// askUnknownBoot requests a refresh from a device whose boot is not the current one.
func (d *Devices) askUnknownBoot(node string, p *liveness, boot string) {
	if rec := d.Snapshot().Record(node); rec != nil && slices.Contains(rec.PastBoots, boot) {
		d.renewBoot(node, p)
		return
	}
	d.askAgain(node, p)
}

// renewBoot requests a refresh under a new boot id. A past boot never becomes current again, so
// that old messages cannot return. But the device of a past boot may be the only one left, and
// should not have to restart.
func (d *Devices) renewBoot(node string, p *liveness) {
	d.refresh(node, p, wire.Request{Type: wire.RequestRefresh, NewBoot: true})
}

func (d *Devices) askAgain(node string, p *liveness) {
	d.refresh(node, p, wire.Request{Type: wire.RequestRefresh})
}

func (d *Devices) refresh(node string, p *liveness, r wire.Request) {
	p.mu.Lock()
	ask := p.refreshBackoff.due(d.Age())
	p.mu.Unlock()
	if ask && d.Broker != nil {
		if err := d.Broker.Request(node, d.requestID(), r); err != nil {
			d.Log.Debug("ask for a refresh", "node", node, "err", err)
		}
	}
}

// Seen returns when this process last received a heartbeat of a node.
func (d *Devices) Seen(node string) (time.Time, bool) {
	p := d.nodes.find(node)
	if p == nil {
		return time.Time{}, false
	}
	at := p.seen.Load()
	return d.At(time.Duration(at)), at > 0
}

// A Liveness is the state of a node's link, for users.
type Liveness struct {
	Seen      time.Time // last heartbeat; zero: none since the hub's start
	Connected bool
	Boot      string
	Lease     uint64        // seq of the newest lease
	Skew      time.Duration // the device's clock minus ours
	Wanted    int64         // generation that the device should have
	Stored    int64         // generation that the device has stored
	Hardware  json.RawMessage
	Vitals    wire.Vitals // newest measurements
}

// Liveness returns the state of a node's link.
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
