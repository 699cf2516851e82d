package node

import (
	"context"
	"log/slog"
	"time"

	"flotilla.dev/hub/state"
)

// What one device may have the hub remember: a burst, as of a device that starts all
// its pods, and a rate. Bytes are those of the objects that it changes, as they stand in
// the database.
const (
	budgetBytes  = 8 << 20
	bytesPerSec  = 16 << 10
	budgetTurns  = 10 // changes of boot or Ready, which are heard even when the bytes are used up
	turnsPerSec  = 0.2
	budgetEvents = 500
	eventsPerSec = 0.5
	budgetLines  = 20       // of the hub's log, offences, and other machines that say they are the node
	linesPerSec  = 1. / 300 // a night of a thousand devices that all flap is 10 MB
	changeBytes  = 1 << 10  // what a change costs at least
)

// An allowance fills with time, up to a burst. It may fall below zero: what an answer
// costs is known afterwards.
type allowance struct {
	used float64
	at   time.Duration // since the loop's start
}

// left is how much there is at a moment.
func (a *allowance) left(at time.Duration, burst, perSecond float64) float64 {
	a.used = max(0, a.used-(at-a.at).Seconds()*perSecond)
	a.at = at
	return burst - a.used
}

// allows tells whether the node may change what is remembered of it. What it may not is
// not lost: its leases show that the hub is behind, and the hub asks again.
func (p *liveness) allows(at time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes.left(at, budgetBytes, bytesPerSec) > 0
}

// historyAllowed takes a turn of boot or Ready, if there is one.
func (p *liveness) historyAllowed(at time.Duration) bool {
	return p.allowOne(&p.turns, at, budgetTurns, turnsPerSec)
}

// eventAllowed takes an event, if there is one.
func (p *liveness) eventAllowed(at time.Duration) bool {
	return p.allowOne(&p.events, at, budgetEvents, eventsPerSec)
}

func (p *liveness) allowOne(a *allowance, at time.Duration, burst, perSecond float64) bool {
	ok := p.allow(a, at, burst, perSecond)
	if !ok {
		p.deferredMessages.Add(1)
	}
	return ok
}

// reportAllowed takes a rewriting of the node's DeviceReport, if there is one.
func (p *liveness) reportAllowed(at time.Duration) bool {
	return p.allow(&p.reports, at, budgetReports, reportsPerSec)
}

func (p *liveness) allow(a *allowance, at time.Duration, burst, perSecond float64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.left(at, burst, perSecond) < 1 {
		return false
	}
	a.used++
	return true
}

// conflictAllowed takes a change of who is refused as the node's second machine, if there is one.
func (p *liveness) conflictAllowed(at time.Duration) bool {
	return p.allow(&p.conflicts, at, budgetLines, linesPerSec)
}

// lineAllowed takes a line of the log, if there is one, and says how many there were not since.
func (p *liveness) lineAllowed(at time.Duration) (unsaid int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lines.left(at, budgetLines, linesPerSec) < 1 {
		p.suppressedLines++
		return 0, false
	}
	p.lines.used++
	unsaid, p.suppressedLines = p.suppressedLines, 0
	return unsaid, true
}

// Log writes to the log what a device has done, unless it does too much to be told: then
// it is not ok, and the next line says how many were left out.
func (d *Devices) LogDevice(level slog.Level, node, what string, args ...any) (ok bool) {
	unsaid, ok := 0, true
	if p := d.nodes.find(node); p != nil { // else it is no node (any more)
		unsaid, ok = p.lineAllowed(d.Age())
	}
	if ok && unsaid > 0 {
		args = append(args, "unsaid", unsaid)
	}
	if ok {
		d.Log.Log(context.Background(), level, what, append([]any{"node", node}, args...)...)
	}
	return ok
}

// charge counts what was remembered. A debt is never more than a burst.
func (p *liveness) charge(done []state.Applied) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range done {
		p.bytes.used = min(p.bytes.used+float64(max(a.Bytes, changeBytes)), 2*budgetBytes)
	}
}

// DeferredMessages counts the messages of a node that were not remembered because it had used up
// what one device may.
func (d *Devices) DeferredMessages() (total uint64) {
	d.nodes.m.Range(func(_, v any) bool {
		total += v.(*liveness).deferredMessages.Load()
		return true
	})
	return total
}
