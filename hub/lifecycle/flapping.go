package lifecycle

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A node flaps after flapCount changes of Ready within flapWindow.
const (
	flapCount  = 4
	flapWindow = 10 * time.Minute
)

// Flapping stores the history of nodes and decides which nodes flap.
type Flapping struct{}

// Touches returns the node whose history a change belongs to. The subject has the transition or
// eviction itself, because a snapshot does not show it. A change of a record concerns its node.
func (Flapping) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		if t, ok := transitionOf(old, next); ok {
			return []state.Subject{{Key: c.Key, Was: t}}
		}
	case state.Pods:
		old, _ := c.Old.(*corev1.Pod)
		next, _ := c.New.(*corev1.Pod)
		if e, ok := evictionOf(old, next); ok {
			return []state.Subject{{Key: state.Key{Kind: state.Nodes, Name: old.Spec.NodeName}, Was: e}}
		}
	case state.Records:
		return []state.Subject{state.About(state.Key{Kind: state.Nodes, Name: c.Key.Name})}
	}
	return nil
}

// Subjects returns the nodes that flap or may flap.
func (Flapping) Subjects(s state.Snapshot) (all []state.Subject) {
	for n := range s.Nodes() {
		rec := s.Record(n.Name)
		if rec != nil && len(rec.Transitions) >= flapCount || state.NodeCondition(n, fleet.ConditionFlapping) != nil {
			all = append(all, state.About(state.KeyOf(n)))
		}
	}
	return all
}

// Decide writes the nodes' histories and updates the condition Flapping.
func (d Flapping) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	written := map[string]*state.Record{}
	for _, p := range nodeChangesOf(s, subjects, now) {
		rec := s.Record(p.node)
		if rec == nil {
			rec = &state.Record{ObjectMeta: metav1.ObjectMeta{Name: p.node, CreationTimestamp: metav1.NewTime(now)}}
		}
		rec = rec.DeepCopy()
		if len(p.changed) > 0 {
			rec.Transitions = slices.DeleteFunc(append(rec.Transitions, p.changed...), func(t metav1.MicroTime) bool {
				return now.Sub(t.Time) >= flapWindow
			})
		}
		p.addTo(rec)
		if extra := len(rec.Transitions) - 2*flapCount; extra > 0 {
			rec.Transitions = rec.Transitions[extra:]
		}
		plan.Do(state.Put(rec, ""))
		written[p.node] = rec
	}
	var names []string
	for _, q := range subjects {
		names = append(names, q.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		n, rec := s.Node(name), written[name]
		if rec == nil {
			rec = s.Record(name)
		}
		if n != nil {
			d.judge(n, rec, now, &plan)
		}
	}
	return plan
}

// judge updates the condition Flapping. The taint follows from the condition, see taintsFor.
func (d Flapping) judge(n *corev1.Node, rec *state.Record, now time.Time, plan *state.Plan) {
	end := flapEnd(rec, now)
	flaps := !end.IsZero()
	if flaps {
		plan.Wake(state.KeyOf(n), end)
	}
	have := state.NodeCondition(n, fleet.ConditionFlapping)
	if flaps == (have != nil && have.Status == corev1.ConditionTrue) {
		return
	}
	c := corev1.NodeCondition{
		Type: fleet.ConditionFlapping, Status: corev1.ConditionFalse, Reason: "Steady",
		Message:           fmt.Sprintf("fewer than %d changes of Ready in %d min", flapCount, int(flapWindow.Minutes())),
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if flaps {
		c.Status, c.Reason = corev1.ConditionTrue, "ReadyChangedOften"
		c.Message = fmt.Sprintf("%d or more changes of Ready in %d min", flapCount, int(flapWindow.Minutes()))
	}
	n = state.Fork(n)
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == fleet.ConditionFlapping
	})
	n.Status.Conditions = append(n.Status.Conditions, c)
	plan.Do(state.Put(n, fmt.Sprintf("node %s Flapping=%s: %s", n.Name, c.Status, c.Message)).Event("NodeFlapping"))
}

// flapEnd returns when a flapping node counts as steady if Ready stays as it is; zero: the node
// does not flap. rec may be nil.
func flapEnd(rec *state.Record, now time.Time) time.Time {
	if rec == nil || len(rec.Transitions) < flapCount {
		return time.Time{}
	}
	end := rec.Transitions[len(rec.Transitions)-flapCount].Add(flapWindow)
	if !now.Before(end) {
		return time.Time{}
	}
	return end
}
