// Package control runs the deciders and carries out what they decide.
//
// Its loop is the only writer of the fleet: it hears news (devices' reports,
// people's edits), settles the fleet by asking every decider until none wants
// anything more, remembers the plan in one transaction, tells the devices concerned,
// and shows the new snapshot to whoever reads. It decides nothing itself, knows
// neither MQTT nor HTTP nor SQL, and a lease renewal does not pass through it.
package control

import (
	"time"

	"github.com/tidwall/btree"

	"flotilla.dev/hub/state"
)

// A Decider looks at the fleet and says what should change.
type Decider interface {
	Decide(s state.Snapshot, now time.Time) state.Plan
}

// A Settler asks deciders in order, round after round, each seeing what the ones
// before it decided, until none wants anything. It remembers their alarms and what
// each has seen already, so that a pass costs what changed and what is due.
type Settler struct {
	deciders []Decider
	alarms   []alarms
	all      bool
}

// NewSettler returns a settler that looks at everything once.
func NewSettler(deciders ...Decider) *Settler {
	t := &Settler{deciders: deciders, alarms: make([]alarms, len(deciders))}
	t.LookAtAll()
	return t
}

// LookAtAll makes the next pass look at everything, as after a plan that could not
// be remembered.
func (t *Settler) LookAtAll() {
	t.all = true
	for i := range t.alarms {
		t.alarms[i] = alarms{}
	}
}

// rounds bounds a pass. Deciders that want something for ever are a bug, which
// must not become a busy loop.
const rounds = 50

// Settle brings the fleet to rest at one moment. recent is what has changed since
// the last pass. settled is false when the deciders found no end.
func (t *Settler) Settle(s state.Snapshot, recent []state.Applied, now time.Time) (next state.Snapshot, made []state.Applied, settled bool) {
	log := recent
	heard := make([]int, len(t.deciders)) // how much of the log each decider has seen
	all := t.all
	t.all = false
	for range rounds {
		quiet := true
		for i, d := range t.deciders {
			s.Look = state.Look{All: all, Recent: log[heard[i]:], Due: t.alarms[i].due(now)}
			heard[i] = len(log)
			if !all && len(s.Look.Recent) == 0 && len(s.Look.Due) == 0 {
				continue
			}
			quiet = false
			plan := d.Decide(s, now)
			var done []state.Applied
			s, done = state.Apply(s, plan.Changes)
			log = append(log, done...)
			made = append(made, done...)
			for _, a := range plan.Alarms {
				t.alarms[i].set(a)
			}
			if plan.Forgive {
				s = s.Forgive(now)
			}
		}
		all = false
		if quiet {
			s.Look = state.Look{}
			return s, made, true
		}
	}
	s.Look = state.Look{}
	return s, made, false
}

// Wake returns the moment of the earliest alarm, the zero time if there is none.
func (t *Settler) Wake() (first time.Time) {
	for i := range t.alarms {
		if at, ok := t.alarms[i].first(); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// Due returns the subjects of the i-th decider whose alarms have rung, without
// silencing them.
func (t *Settler) Due(i int, now time.Time) []state.Key { return t.alarms[i].peek(now) }

// alarms are the moments at which a decider wants to look again, one per subject.
type alarms struct {
	at    map[state.Key]time.Time
	queue btree.BTreeG[state.Alarm]
	ready bool
}

func sooner(a, b state.Alarm) bool {
	if !a.At.Equal(b.At) {
		return a.At.Before(b.At)
	}
	if a.Subject.Kind != b.Subject.Kind {
		return a.Subject.Kind < b.Subject.Kind
	}
	if a.Subject.Namespace != b.Subject.Namespace {
		return a.Subject.Namespace < b.Subject.Namespace
	}
	return a.Subject.Name < b.Subject.Name
}

func (q *alarms) set(a state.Alarm) {
	if !q.ready {
		q.at, q.ready = map[state.Key]time.Time{}, true
		q.queue = *btree.NewBTreeGOptions(sooner, btree.Options{NoLocks: true})
	}
	if old, ok := q.at[a.Subject]; ok {
		if old.Equal(a.At) {
			return
		}
		q.queue.Delete(state.Alarm{Subject: a.Subject, At: old})
		delete(q.at, a.Subject)
	}
	if !a.At.IsZero() {
		q.at[a.Subject] = a.At
		q.queue.Set(a)
	}
}

func (q *alarms) first() (time.Time, bool) {
	if !q.ready {
		return time.Time{}, false
	}
	a, ok := q.queue.Min()
	return a.At, ok
}

func (q *alarms) peek(now time.Time) (keys []state.Key) {
	if !q.ready {
		return nil
	}
	q.queue.Scan(func(a state.Alarm) bool {
		if a.At.After(now) {
			return false
		}
		keys = append(keys, a.Subject)
		return true
	})
	return keys
}

// due takes the alarms that have rung.
func (q *alarms) due(now time.Time) (keys []state.Key) {
	for q.ready {
		a, ok := q.queue.Min()
		if !ok || a.At.After(now) {
			break
		}
		q.queue.PopMin()
		delete(q.at, a.Subject)
		keys = append(keys, a.Subject)
	}
	return keys
}
