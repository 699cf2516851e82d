// Package control runs the deciders and carries out their plans.
//
// Its loop is the only writer of the fleet. A pass evaluates news (devices' reports and users'
// edits), asks every decider until no decider wants a change, commits the plan in one transaction,
// and shows the new snapshot to readers and devices. The package contains no rule and no protocol:
// the deciders have the rules, and package node has the protocol. A lease renewal does not pass
// through the loop.
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
	// Touches returns the subjects that a change concerns.
	Touches(c state.Applied) []state.Subject
	// Subjects returns everything that the decider can be asked about.
	Subjects(s state.Snapshot) []state.Subject
	// Decide returns what to change for the subjects, and when to ask again. If the subjects are
	// all that Subjects returns, the plan is complete.
	Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan
}

// A Sharded decider can decide parts of many subjects in parallel.
type Sharded interface {
	// Sharded returns the function that decides parts of the subjects; its plans joined in order
	// are the plan for all. It returns nil if the plan for one subject depends on other subjects.
	Sharded(s state.Snapshot, subjects []state.Subject) state.Decide
}

// A Settler asks the deciders in order, in rounds, until no decider has a subject left. Each
// decider sees the changes of those before it. The settler keeps track of what is due or has
// changed, so that a pass costs only that.
type Settler struct {
	follows          Consequences
	deciders         []Decider
	alarms           []alarms
	all              bool
	unseen           [][]state.Subject // by decider: subjects left over from a pass that did not settle
	unseenBefore     [][]state.Subject // unseen before the newest pass
	askAllAt         time.Time         // when to ask about everything after a pass that did not settle; zero: not needed
	askAllDelay      time.Duration     // delay of askAllAt
	skipAdditions    bool              // leave out plans that add an object
	retryAdditionsAt time.Time         // when plans that add an object are tried again
}

// SkipAdditions makes the next passes leave out plans that add an object, because the store has no
// space. Their subjects are asked about again at until.
func (t *Settler) SkipAdditions(skip bool, until time.Time) {
	t.skipAdditions, t.retryAdditionsAt = skip, until
}

// Consequences returns further changes that follow from the changes done, for the same transaction.
// It is called after each piece of news and each plan.
type Consequences func(s state.Snapshot, done []state.Applied, now time.Time) []state.Change

// apply makes changes and their consequences.
func (f Consequences) apply(s state.Snapshot, changes []state.Change,
	now time.Time) (next state.Snapshot, done, more []state.Applied) {
	next, done = state.Apply(s, changes)
	if f != nil && len(done) > 0 {
		next, more = state.Apply(next, f(next, done, now))
	}
	return next, done, more
}

// NewSettler returns a settler whose first pass asks about everything.
func NewSettler(follows Consequences, deciders ...Decider) *Settler {
	t := &Settler{follows: follows, deciders: deciders, alarms: make([]alarms, len(deciders)),
		unseenBefore: make([][]state.Subject, len(deciders))}
	t.AskAll()
	return t
}

// NewSettled returns a settler for a fleet that is already settled: it asks only about later
// changes, and has no alarms from before.
func NewSettled(follows Consequences, deciders ...Decider) *Settler {
	t := NewSettler(follows, deciders...)
	t.all = false
	return t
}

// AskAll makes the next pass ask about everything, for example after a failed commit. It includes
// deleted objects, which only the failed pass has seen.
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

// rounds limits a pass. Deciders that never settle are a bug that must not become a busy loop.
const rounds = 50

// Settle settles the fleet at one moment. recent is what has changed since the last pass. settled
// is false if the deciders did not settle or one panicked. The changes made until then are valid,
// and a later pass asks about everything again, with the subjects left over. Other deciders do not
// wait for that pass.
func (t *Settler) Settle(s state.Snapshot, recent []state.Applied,
	now time.Time) (next state.Snapshot, made []state.Applied, settled bool) {
	log := slices.Clip(recent)
	seenUpTo := make([]int, len(t.deciders)) // how much of the log each decider has seen
	all := t.AsksAll(now)
	wasAll := all
	var left [][]state.Subject // subjects left over from the last pass
	failed := false
	t.unseenBefore = slices.Clone(t.unseen)
	if all {
		t.all, t.askAllAt = false, time.Time{}
		left, t.unseen = t.unseen, make([][]state.Subject, len(t.deciders))
	}
	for range rounds {
		quiet := true
		for i, d := range t.deciders {
			var every, unseen []state.Subject
			if all {
				every, unseen = d.Subjects(s), left[i]
			}
			subjects := join(every, unseen, state.Touched(d.Touches, log[seenUpTo[i]:]), t.alarms[i].due(now))
			seenUpTo[i] = len(log)
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
		if rest := state.Touched(d.Touches, log[seenUpTo[i]:]); len(t.unseen[i])+len(rest) <= maxUnseen {
			t.unseen[i] = append(t.unseen[i], rest...)
		}
		for _, q := range t.alarms[i].due(now) { // a decider may set an alarm for this moment
			t.alarms[i].set(state.Alarm{Subject: q, At: t.askAllAt})
		}
	}
	return s, log[len(recent):], false
}

// ask asks a decider and applies its plan. While additions are left out, it halves the subjects
// again and again, so that only the subjects with additions are left out.
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

// decide asks one decider. If it panics, it decides nothing, the others go on, and the pass counts
// as not settled.
func decide(d state.Decide, s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan, ok bool) {
	defer panics.Catch("decider")
	return d(s, subjects, now), true
}

// shardSize is a number of subjects whose decision takes much longer than the start of a goroutine.
const shardSize = 500

// decideSharded asks one decider about parts of many subjects on all processors. This matters at
// the start of a large fleet and when half of the fleet falls silent, because each node then needs
// a decision.
func decideSharded(d state.Decide, s state.Snapshot, many []state.Subject, now time.Time) (plan state.Plan, ok bool) {
	if !slices.IsSortedFunc(many, byName) { // alarms come in the order of their times
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

// join joins lists of subjects without duplicates. every, the list of everything, may be nil. A
// single list is returned without a copy, because the first list of a start is long.
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
	every = slices.Clip(every) // the lists belong to the deciders
	for _, q := range more {
		if q.Was != nil || also[ref{q.Key, q.Part}] {
			every = append(every, q)
		}
	}
	return every
}

const (
	leastPatience, mostPatience = time.Second, 5 * time.Minute
	// maxUnseen limits Settler.unseen. Subjects beyond it are dropped; the deciders are asked about
	// everything anyway, and then lack only previous versions.
	maxUnseen = 100_000
)

// Wake returns the moment of the earliest alarm, zero if there is none.
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

// DueNodes returns the nodes with a due alarm of any decider. Their last heartbeats must be updated
// before the decision.
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
