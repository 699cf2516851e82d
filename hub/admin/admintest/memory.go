package admintest

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/control"
	drains "flotilla.dev/hub/drain"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
)

func (m *Memory) Form(kind state.Kind, namespace, name string) string {
	return frame.ItemOf(m.Snapshot().Get(state.Key{Kind: kind, Namespace: namespace, Name: name})).Form()
}

// End removes an object, as when its device has confirmed its end.
func (m *Memory) End(t testing.TB, o state.Object) {
	t.Helper()
	if _, err := m.Do(t.Context(), Gone(o)); err != nil {
		t.Fatal(err)
	}
}

func (m *Memory) Order(node string) string {
	return m.Snapshot().Node(node).Annotations[state.DrainAnnotation]
}

func (m *Memory) Leave(t testing.TB, pod string) {
	t.Helper()
	if _, err := m.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(s.Pod("default", pod), "")}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A Memory is a fleet in memory. Of the deciders it has those of drains and incidents.
type Memory struct {
	mu   sync.Mutex
	s    state.Snapshot
	log  []state.Applied
	more chan struct{}

	at, counted time.Time // when incidents were counted
}

func New(objects ...state.Object) *Memory {
	s := state.Empty("test", time.Now())
	for _, o := range objects {
		s, _ = state.Apply(s, []state.Change{state.Put(o, "")})
	}
	m := &Memory{s: s, more: make(chan struct{})}
	m.incidents(incident.Decider{}.Subjects(s))
	m.log = nil
	return m
}

// incidents updates the incidents, as the hub does.
func (m *Memory) incidents(subjects []state.Subject) {
	decider := incident.Decider{LeaveBy: func(n *corev1.Node, p *corev1.Pod) (time.Time, bool) {
		leave := eviction.LeaveBy(n, p)
		return leave.At, leave.Must
	}}
	if m.at = time.Now(); m.at.Before(m.counted.Add(2 * time.Second)) {
		m.at = m.counted.Add(2 * time.Second) // counts are written once a second
	}
	var made []state.Applied
	m.s, made = state.Apply(m.s, decider.Decide(m.s, subjects, m.at).Changes)
	if m.log = append(m.log, made...); len(made) > 0 {
		m.counted = m.at
	}
}

// FindIncidents updates all incidents.
func (m *Memory) FindIncidents() { m.incidents(incident.Decider{}.Subjects(m.s)) }

func (m *Memory) Snapshot() state.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.s
}

func (m *Memory) Do(_ context.Context, news control.News) ([]state.Applied, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changes, err := news(m.s, time.Now())
	if err != nil {
		return nil, err
	}
	var done []state.Applied
	m.s, done = state.Apply(m.s, changes)
	m.log = append(m.log, done...)
	for range 5 { // the decider whose progress the page shows
		plan := drains.Decider{}.Decide(m.s, drains.Decider{}.Subjects(m.s), time.Now())
		var made []state.Applied
		m.s, made = state.Apply(m.s, plan.Changes)
		m.log = append(m.log, made...)
	}
	m.incidents(state.Touched(incident.Decider{}.Touches, done))
	close(m.more)
	m.more = make(chan struct{})
	return done, nil
}

// Apply makes changes without running a decider.
func (m *Memory) Apply(changes []state.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.s, _ = state.Apply(m.s, changes)
}

// Become replaces the fleet by another one.
func (m *Memory) Become(other *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.s = other.Snapshot()
}

func (m *Memory) Put(t testing.TB, objects ...state.Object) {
	t.Helper()
	_, err := m.Do(t.Context(), func(state.Snapshot, time.Time) (c []state.Change, err error) {
		for _, o := range objects {
			c = append(c, state.Put(o, ""))
		}
		return c, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (m *Memory) Since(rev uint64) ([]state.Applied, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := len(m.log)
	for i > 0 && m.log[i-1].Rev > rev {
		i--
	}
	return m.log[i:], m.more, nil
}

// Gone deletes an object.
func Gone(o state.Object) control.News {
	return func(state.Snapshot, time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(o, "")}, nil
	}
}

func (m *Memory) Pick(kind state.Kind, namespace, name string) string {
	return string(kind) + "/" + m.Form(kind, namespace, name)
}
