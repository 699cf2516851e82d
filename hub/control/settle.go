// Package control runs the deciders and carries out what they decide.
//
// Its loop is the only writer of the fleet: it hears news (devices' reports,
// people's edits), settles the fleet by asking every decider until none wants
// anything more, remembers the plan in one transaction, and shows the new snapshot to
// whoever reads and to the devices. It knows no rule and no protocol: the deciders have
// the rules, package node the devices' protocol, and a lease renewal does not pass
// through it.
package control

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

// A Decider says what should change.
type Decider interface {
	// Touches returns what of a change concerns the decider.
	Touches(c state.Applied) []state.Subject
	// Subjects returns everything that the decider can be asked about.
	Subjects(s state.Snapshot) []state.Subject
	// Decide says what is to change of the subjects, and when to ask about which again.
	// Asked about everything, it decides all that it ever decides.
	Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan
}

// Sharded is a Decider that may be asked about parts of many subjects, at once.
type Sharded interface {
	// Sharded returns what decides on parts of the subjects: its plans one after the other are the
	// plan for all. Nil: of these nothing does, one object's plan depends on another's.
	Sharded(s state.Snapshot, subjects []state.Subject) state.Decide
}

// A Settler asks deciders in order, round after round, each seeing what the ones
// before it decided, until none has a subject left. It alone keeps what is due, what has
// changed and what everything is, so that a pass costs what changed and what is due.
type Settler struct {
	follows          Consequences
	deciders         []Decider
	alarms           []alarms
	all              bool
	unseen           [][]state.Subject // by decider: what a pass that found no end has left
	unseenBefore     [][]state.Subject // what unheard was before the newest pass
	askAllAt         time.Time         // when to ask about everything after such a pass; zero: there was none
	askAllDelay      time.Duration     // from that pass
	skipAdditions    bool              // plans that add an object are left out
	retryAdditionsAt time.Time         // until then
}

// SkipAdditions makes the passes that follow leave out plans that add an object, for which the store has no
// room. What is left out is asked for again at that moment.
func (t *Settler) SkipAdditions(spare bool, until time.Time) {
	t.skipAdditions, t.retryAdditionsAt = spare, until
}

// Consequences says what else is changed, in the same transaction, because of what was done:
// right after every news and every plan. Nil: nothing.
type Consequences func(s state.Snapshot, done []state.Applied, now time.Time) []state.Change

// apply makes changes, and what follows from them.
func (f Consequences) apply(s state.Snapshot, changes []state.Change,
	now time.Time) (next state.Snapshot, done, more []state.Applied) {
	next, done = state.Apply(s, changes)
	if f != nil && len(done) > 0 {
		next, more = state.Apply(next, f(next, done, now))
	}
	return next, done, more
}

// NewSettler returns a settler that asks about everything once.
func NewSettler(follows Consequences, deciders ...Decider) *Settler {
	t := &Settler{follows: follows, deciders: deciders, alarms: make([]alarms, len(deciders)),
		unseenBefore: make([][]state.Subject, len(deciders))}
	t.AskAll()
	return t
}

// NewSettled returns a settler of a fleet that is at rest: it asks only about what changes
// from then on. What is due later in such a fleet it does not know.
func NewSettled(follows Consequences, deciders ...Decider) *Settler {
	t := NewSettler(follows, deciders...)
	t.all = false
	return t
}

// AskAll makes the next pass ask about everything, as after a plan that could not be
// remembered: what that pass has heard first is to be heard again.
func (t *Settler) AskAll() {
	t.all, t.unseen = true, t.unseenBefore
	for i := range t.alarms {
		t.alarms[i] = alarms{}
	}
}

// AsksAll tells whether the next pass asks about everything.
func (t *Settler) AsksAll(now time.Time) bool {
	return t.all || !t.askAllAt.IsZero() && !now.Before(t.askAllAt)
}

// rounds bounds a pass. Deciders that want something for ever are a bug, which
// must not become a busy loop.
const rounds = 50

// Settle brings the fleet to rest at one moment. recent is what has changed since
// the last pass. settled is false when the deciders found no end, or one of them panicked:
// what they have done until then counts, and after a while they are asked about everything
// again, with what they have not heard. The others are not held up so long.
func (t *Settler) Settle(s state.Snapshot, recent []state.Applied,
	now time.Time) (next state.Snapshot, made []state.Applied, settled bool) {
	log := slices.Clip(recent)
	heard := make([]int, len(t.deciders)) // how much of the log each decider has been asked about
	all := t.AsksAll(now)
	wasAll := all
	var left [][]state.Subject // to be heard first
	failed := false
	t.unseenBefore = slices.Clone(t.unseen)
	if all {
		t.all, t.askAllAt = false, time.Time{}
		left, t.unseen = t.unseen, make([][]state.Subject, len(t.deciders))
	}
	for range rounds {
		quiet := true
		for i, d := range t.deciders {
			var every, unheard []state.Subject
			if all {
				every, unheard = d.Subjects(s), left[i]
			}
			subjects := join(every, unheard, state.Touched(d.Touches, log[heard[i]:]), t.alarms[i].due(now))
			heard[i] = len(log)
			if len(subjects) == 0 {
				continue
			}
			quiet = false
			var made []state.Applied
			var ok bool
			s, made, ok = t.ask(i, s, subjects, now)
			failed = failed || !ok
			log = append(log, made...)
		}
		if quiet && failed {
			break
		}
		if quiet {
			if wasAll {
				t.askAllDelay = 0
			}
			return s, log[len(recent):], true
		}
		all = false
	}
	t.askAllDelay = min(max(2*t.askAllDelay, leastPatience), mostPatience)
	t.askAllAt = now.Add(t.askAllDelay)
	for i, d := range t.deciders {
		if rest := state.Touched(d.Touches, log[heard[i]:]); len(t.unseen[i])+len(rest) <= maxUnseen {
			t.unseen[i] = append(t.unseen[i], rest...)
		}
		for _, q := range t.alarms[i].due(now) { // one that asks for this moment again and again
			t.alarms[i].set(state.Alarm{Subject: q, At: t.askAllAt})
		}
	}
	return s, log[len(recent):], false
}

// ask asks a decider, and makes the changes of its plan. Where nothing may be added, it is asked
// again about halves of the subjects until only those are left out whose own plan adds an object.
func (t *Settler) ask(i int, s state.Snapshot, subjects []state.Subject,
	now time.Time) (next state.Snapshot, made []state.Applied, ok bool) {
	d := t.deciders[i]
	var apart state.Decide
	if d, ok := d.(Sharded); ok && len(subjects) > shardSize {
		apart = d.Sharded(s, subjects)
	}
	var plan state.Plan
	if apart != nil {
		plan, ok = decideSharded(apart, s, subjects, now)
	} else {
		plan, ok = decide(d.Decide, s, subjects, now)
	}
	next, made, more := t.follows.apply(s, plan.Changes, now)
	made = append(made, more...)
	if t.skipAdditions && slices.ContainsFunc(made, needsSpace) {
		if len(subjects) == 1 {
			t.askAllAt = t.retryAdditionsAt
			if len(t.unseen[i]) < maxUnseen {
				t.unseen[i] = append(t.unseen[i], subjects...)
			}
			return s, nil, ok
		}
		half := len(subjects) / 2
		s, first, ok1 := t.ask(i, s, subjects[:half], now)
		s, rest, ok2 := t.ask(i, s, subjects[half:], now)
		return s, append(first, rest...), ok1 && ok2
	}
	t.alarms[i].setAll(plan.Alarms)
	if plan.ResetSeen {
		next = next.ResetSeen(now)
	}
	return next, made, ok
}

// decide asks one decider. One that panics decides nothing: the others go on, and the
// pass counts as one without an end.
func decide(d state.Decide, s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan, ok bool) {
	defer panics.Catch("decider")
	return d(s, subjects, now), true
}

// shardSize is how many subjects take much longer to decide on than it takes to start a goroutine.
const shardSize = 500

// decideSharded asks one decider about parts of many subjects, on all processors. A start is waited for,
// and to decide on each node of a large fleet is most of what it decides; so is what half a fleet
// means that falls silent at once.
func decideSharded(d state.Decide, s state.Snapshot, many []state.Subject, now time.Time) (plan state.Plan, ok bool) {
	if !slices.IsSortedFunc(many, byName) { // as they rang
		many = slices.SortedFunc(slices.Values(many), byName)
	}
	parts := slices.Collect(slices.Chunk(many, shardSize))
	plans, done := make([]state.Plan, len(parts)), make([]bool, len(parts))
	var all sync.WaitGroup
	for i, some := range parts {
		all.Go(func() { plans[i], done[i] = decide(d, s, some, now) })
	}
	all.Wait()
	changes, alarms := 0, 0
	for _, p := range plans {
		changes, alarms = changes+len(p.Changes), alarms+len(p.Alarms)
	}
	plan.Changes, plan.Alarms = make([]state.Change, 0, changes), make([]state.Alarm, 0, alarms)
	for _, p := range plans {
		plan.Changes, plan.Alarms = append(plan.Changes, p.Changes...), append(plan.Alarms, p.Alarms...)
		plan.ResetSeen = plan.ResetSeen || p.ResetSeen
	}
	return plan, !slices.Contains(done, false)
}

func byName(a, b state.Subject) int { return cmp.Compare(a.Name, b.Name) }

// join joins everything, if that is asked about, with lists of subjects; each comes once.
// Only what comes with everything is compared with it, and nothing is where only one list
// has any: at a start everything is much.
func join(every []state.Subject, lists ...[]state.Subject) []state.Subject {
	var more []state.Subject
	for _, list := range lists {
		switch {
		case len(list) == 0:
		case more == nil:
			more = list
		default:
			more = state.Distinct(more, list)
		}
	}
	switch {
	case len(every) == 0:
		return more
	case len(more) == 0:
		return every
	}
	also := make(map[ref]bool, len(more))
	for _, q := range more {
		also[ref{q.Key, q.Part}] = true
	}
	for _, q := range every {
		if at := (ref{q.Key, q.Part}); also[at] {
			also[at] = false
		}
	}
	every = slices.Clip(every) // lists are their makers' own
	for _, q := range more {
		if q.Was != nil || also[ref{q.Key, q.Part}] {
			every = append(every, q)
		}
	}
	return every
}

const (
	leastPatience, mostPatience = time.Second, 5 * time.Minute
	// subjects: they are asked about everything anyway, these only tell what was before
	maxUnseen = 100_000
)

// Wake returns the moment of the earliest alarm, the zero time if there is none.
func (t *Settler) Wake() (first time.Time) {
	for i := range t.alarms {
		if at, ok := t.alarms[i].first(); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !t.askAllAt.IsZero() && (first.IsZero() || t.askAllAt.Before(first)) {
		first = t.askAllAt
	}
	return first
}

// DueNodes returns the nodes that a decider will be asked about because their time has
// come, whichever decider: when they were last heard of must be known by then.
func (t *Settler) DueNodes(now time.Time) (names []string) {
	for i := range t.alarms {
		t.alarms[i].peek(now, func(r ref) {
			if r.key.Kind == state.Nodes && r.key.Name != "" {
				names = append(names, r.key.Name)
			}
		})
	}
	return names
}
