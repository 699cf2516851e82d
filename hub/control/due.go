package control

import (
	"time"

	"github.com/tidwall/btree"

	"flotilla.dev/hub/state"
)

// alarms are the moments at which a decider wants to be asked again, one per subject.
type alarms struct {
	at    map[ref]time.Time
	queue btree.BTreeG[alarm]
	ready bool
}

// A ref is a subject as an alarm names it: it hands nothing over.
type ref struct {
	key  state.Key
	part string
}

type alarm struct {
	ref
	at time.Time
}

func (r ref) subject() state.Subject { return state.Subject{Key: r.key, Part: r.part} }

func sooner(a, b alarm) bool {
	switch {
	case !a.at.Equal(b.at):
		return a.at.Before(b.at)
	case a.key.Kind != b.key.Kind:
		return a.key.Kind < b.key.Kind
	case a.key.Namespace != b.key.Namespace:
		return a.key.Namespace < b.key.Namespace
	case a.key.Name != b.key.Name:
		return a.key.Name < b.key.Name
	}
	return a.part < b.part
}

// setAll is set for many.
func (q *alarms) setAll(all []state.Alarm) {
	q.begin(len(all))
	for _, a := range all {
		q.set(a)
	}
}

// begin makes room for some where there are none.
func (q *alarms) begin(some int) {
	if !q.ready && some > 0 {
		q.at, q.ready = make(map[ref]time.Time, some), true
		q.queue = *btree.NewBTreeGOptions(sooner, btree.Options{NoLocks: true})
	}
}

func (q *alarms) set(a state.Alarm) {
	q.begin(1)
	r := ref{a.Subject.Key, a.Subject.Part}
	if old, ok := q.at[r]; ok {
		if old.Equal(a.At) {
			return
		}
		q.queue.Delete(alarm{r, old})
		delete(q.at, r)
	}
	if !a.At.IsZero() {
		q.at[r] = a.At
		q.queue.Set(alarm{r, a.At})
	}
}

func (q *alarms) first() (time.Time, bool) {
	if !q.ready {
		return time.Time{}, false
	}
	a, ok := q.queue.Min()
	return a.at, ok
}

// peek calls each with the subjects whose alarms have rung.
func (q *alarms) peek(now time.Time, each func(ref)) {
	if !q.ready {
		return
	}
	q.queue.Scan(func(a alarm) bool {
		if a.at.After(now) {
			return false
		}
		each(a.ref)
		return true
	})
}

// due takes the alarms that have rung.
func (q *alarms) due(now time.Time) (rung []state.Subject) {
	for q.ready {
		a, ok := q.queue.Min()
		if !ok || a.at.After(now) {
			break
		}
		q.queue.PopMin()
		delete(q.at, a.ref)
		rung = append(rung, a.subject())
	}
	return rung
}
