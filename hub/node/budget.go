package node

import (
	"context"
	"log/slog"
	"time"

	"flotilla.dev/hub/state"
)

// The limits of what one device may make the hub store: a burst, as at a device's start, and a
// rate. Bytes are counted in their form in the database.
const (
	budgetBytes  = 8 << 20
	bytesPerSec  = 16 << 10
	budgetHealth = 10 // changes of boot or Ready, which are accepted even after the bytes are used up
	turnsPerSec  = 0.2
	budgetEvents = 500
	eventsPerSec = 0.5
	budgetLines  = 20       // lines of the hub's log about offences and refused claimants
	linesPerSec  = 1. / 300 // a night with a thousand flapping devices logs 10 MB
	changeBytes  = 1 << 10  // the least cost of a change
)

// An allowance refills with time, up to a burst. It may become negative, because the cost is known
// only afterwards.
type allowance struct {
	used float64
	at   time.Duration // time of the last update, since the loop's start
}

// left returns the allowance at a moment.
func (a *allowance) left(at time.Duration, burst, perSecond float64) float64 {
	a.used = max(0, a.used-(at-a.at).Seconds()*perSecond)
	a.at = at
	return burst - a.used
}

// allows tells whether the node may change stored data. A refused message is not lost: leases show
// that the hub is behind, and the hub requests it again.
func (p *liveness) allows(at time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes.left(at, budgetBytes, bytesPerSec) > 0
}

// historyAllowed uses up one change of boot or Ready; false: the allowance is used up.
func (p *liveness) historyAllowed(at time.Duration) bool {
	return p.allowOne(&p.turns, at, budgetHealth, turnsPerSec)
}

// eventAllowed uses up one event; false: the allowance is used up.
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

// reportAllowed uses up one write of the node's DeviceReport; false: the allowance is used up.
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

// conflictAllowed uses up one change of the refused claimant; false: the allowance is used up.
func (p *liveness) conflictAllowed(at time.Duration) bool {
	return p.allow(&p.conflicts, at, budgetLines, linesPerSec)
}

// lineAllowed uses up one log line, and returns the number of suppressed lines before it; false:
// the allowance is used up.
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

// LogDevice logs an action of a device, within the device's limit of lines. Beyond it ok is false,
// and the next line has the number of suppressed ones.
func (d *Devices) LogDevice(level slog.Level, node, what string, args ...any) (ok bool) {
	unsaid, ok := 0, true
	if p := d.nodes.find(node); p != nil { // nil: the node does not exist
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

// charge subtracts the cost of stored changes. The debt is at most one burst.
func (p *liveness) charge(done []state.Applied) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range done {
		p.bytes.used = min(p.bytes.used+float64(max(a.Bytes, changeBytes)), 2*budgetBytes)
	}
}

// DeferredMessages returns the number of messages that devices sent beyond their limits.
func (d *Devices) DeferredMessages() (total uint64) {
	d.nodes.m.Range(func(_, v any) bool {
		total += v.(*liveness).deferredMessages.Load()
		return true
	})
	return total
}
