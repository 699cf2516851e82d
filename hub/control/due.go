package control

import (
	"container/heap"
	"time"

	"flotilla.dev/hub/state"
)

// alarms are the moments at which a decider must be asked again, one per subject.
type alarms struct {
	of    map[ref]*alarm
	queue queue
}

// A ref is the subject of an alarm. It has no previous version of the object (Subject.Was).
type ref struct {
	key  state.Key
	part string
}

func (r ref) subject() state.Subject { return state.Subject{Key: r.key, Part: r.part} }

// An alarm is the moment at which to ask about a subject, with its place in the queue.
type alarm struct {
	ref
	at    time.Time
	place int
}

// A queue is a heap with the earliest alarm first.
type queue []*alarm

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
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

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *queue) Push(a any) { *q = append(*q, a.(*alarm)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	a := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return a
}

// setAll sets many alarms. It rebuilds the queue if the alarms are more than the queue holds.
func (q *alarms) setAll(all []state.Alarm) {
	if len(all) <= len(q.queue) {
		for _, a := range all {
			q.set(a)
		}
		return
	}
	if q.of == nil {
		q.of, q.queue = make(map[ref]*alarm, len(all)), make(queue, 0, len(all))
	}
	room := make([]alarm, 0, len(all))
	for _, a := range all {
		r := ref{a.Subject.Key, a.Subject.Part}
		known := q.of[r]
		switch {
		case known != nil && a.At.IsZero():
			q.queue.Swap(known.place, len(q.queue)-1)
			q.queue.Pop()
			delete(q.of, r)
		case known != nil:
			known.at = a.At
		case !a.At.IsZero():
			room = append(room, alarm{r, a.At, len(q.queue)})
			q.of[r] = &room[len(room)-1]
			q.queue.Push(q.of[r])
		}
	}
	heap.Init(&q.queue)
}

func (q *alarms) set(a state.Alarm) {
	r := ref{a.Subject.Key, a.Subject.Part}
	known := q.of[r]
	switch {
	case known != nil && a.At.IsZero():
		heap.Remove(&q.queue, known.place)
		delete(q.of, r)
	case known != nil:
		known.at = a.At
		heap.Fix(&q.queue, known.place)
	case !a.At.IsZero():
		if q.of == nil {
			q.of = map[ref]*alarm{}
		}
		q.of[r] = &alarm{r, a.At, len(q.queue)}
		heap.Push(&q.queue, q.of[r])
	}
}

func (q *alarms) first() (time.Time, bool) {
	if len(q.queue) == 0 {
		return time.Time{}, false
	}
	return q.queue[0].at, true
}

// peek calls each with the subjects whose alarms are due, in any order.
func (q *alarms) peek(now time.Time, each func(ref)) { q.queue.peek(0, now, each) }

func (q queue) peek(from int, now time.Time, each func(ref)) {
	if from >= len(q) || q[from].at.After(now) {
		return
	}
	each(q[from].ref)
	q.peek(2*from+1, now, each)
	q.peek(2*from+2, now, each)
}

// due removes the alarms that are due and returns their subjects, the earliest first.
func (q *alarms) due(now time.Time) (rung []state.Subject) {
	for len(q.queue) > 0 && !q.queue[0].at.After(now) {
		a := heap.Pop(&q.queue).(*alarm)
		delete(q.of, a.ref)
		rung = append(rung, a.subject())
	}
	return rung
}
