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

// A node flaps that went through so many changes of Ready in so much time.
const (
	flapCount  = 4
	flapWindow = 10 * time.Minute
)

// flapping remembers the changes of Ready that have been made since the last
// look, and the node's history with them, and settles the condition Flapping of the nodes concerned.
func (d Decider) flapping(s state.Snapshot, now time.Time, plan *state.Plan) {
	changed := map[string][]metav1.MicroTime{}
	turns := map[string][]state.Turn{}
	var names []string
	for _, a := range s.Look.Recent {
		old, _ := a.Old.(*corev1.Node)
		new, _ := a.New.(*corev1.Node)
		if a.Key.Kind != state.Nodes || old == nil || new == nil {
			continue
		}
		was, is := state.ReadyOf(old), state.ReadyOf(new)
		if was == is || was == "" || state.NeverReported(old) {
			continue
		}
		if changed[new.Name] == nil {
			names = append(names, new.Name)
		}
		changed[new.Name] = append(changed[new.Name], metav1.NewMicroTime(now))
		turns[new.Name] = append(turns[new.Name], turnsOf(old, is, now)...)
	}
	for _, name := range names {
		rec := s.Record(name)
		if rec == nil {
			rec = &state.Record{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)}}
		}
		rec = rec.DeepCopy()
		rec.Transitions = slices.DeleteFunc(append(rec.Transitions, changed[name]...), func(t metav1.MicroTime) bool {
			return now.Sub(t.Time) >= flapWindow
		})
		for _, t := range turns[name] {
			rec.Turn(t)
		}
		if extra := len(rec.Transitions) - 2*flapCount; extra > 0 {
			rec.Transitions = rec.Transitions[extra:]
		}
		plan.Do(state.Put(rec, ""))
	}
	// Whoever changed, and whoever was due, may have begun or ceased to flap.
	for _, a := range s.Look.Recent {
		if a.Key.Kind == state.Records {
			names = append(names, a.Key.Name)
		}
	}
	for _, k := range s.Look.Due {
		if k.Kind == state.Nodes {
			names = append(names, k.Name)
		}
	}
	if s.Look.All {
		for n := range s.Nodes() {
			if c := state.NodeCondition(n, fleet.ConditionFlapping); c != nil && c.Status == corev1.ConditionTrue {
				names = append(names, n.Name)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	after, _ := state.Apply(s, plan.Changes)
	for _, name := range slices.Compact(names) {
		if n := after.Node(name); n != nil {
			d.judge(after, n, now, plan)
		}
	}
}

// turnsOf is what the history of a node learns when its Ready changes: how it was
// before, when it was given up if it was, and how it is now.
func turnsOf(old *corev1.Node, is corev1.ConditionStatus, now time.Time) []state.Turn {
	was := state.NodeCondition(old, corev1.NodeReady)
	turns := []state.Turn{{At: metav1.NewMicroTime(was.LastTransitionTime.Time), Ready: was.Status}}
	if t := state.NoExecuteOf(old); t != nil && t.TimeAdded != nil {
		turns = append(turns, state.Turn{At: metav1.NewMicroTime(t.TimeAdded.Time), Ready: was.Status, Out: true})
	}
	return append(turns, state.Turn{At: metav1.NewMicroTime(now.Truncate(time.Second)), Ready: is}) // as conditions and taints
}

// judge settles the condition Flapping and its taint.
func (d Decider) judge(s state.Snapshot, n *corev1.Node, now time.Time, plan *state.Plan) {
	flaps := !d.flapEnd(s, n, now).IsZero()
	have := state.NodeCondition(n, fleet.ConditionFlapping)
	if flaps == (have != nil && have.Status == corev1.ConditionTrue) {
		return
	}
	c := corev1.NodeCondition{
		Type: fleet.ConditionFlapping, Status: corev1.ConditionFalse, Reason: "Steady",
		Message:           fmt.Sprintf("fewer than %d changes of Ready in %s", flapCount, flapWindow),
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if flaps {
		c.Status, c.Reason = corev1.ConditionTrue, "ReadyChangedOften"
		c.Message = fmt.Sprintf("%d or more changes of Ready in %s", flapCount, flapWindow)
	}
	n = state.Fork(n)
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == fleet.ConditionFlapping })
	n.Status.Conditions = append(n.Status.Conditions, c)
	n.Spec.Taints = taintsFor(n, now)
	plan.Do(state.Put(n, fmt.Sprintf("node %s Flapping=%s: %s", n.Name, c.Status, c.Message)).Event("NodeFlapping"))
	plan.Wake(state.KeyOf(n), earliest(d.nodeWake(s, n, now), d.flapEnd(s, n, now)))
}

func (d Decider) nodeWake(s state.Snapshot, n *corev1.Node, now time.Time) time.Time {
	if deadline := d.Deadline(s, n); !now.After(deadline) {
		return deadline.Add(1)
	}
	return time.Time{}
}

// flapEnd returns when a flapping node will count as steady if nothing more
// happens; the zero time for one that does not flap.
func (d Decider) flapEnd(s state.Snapshot, n *corev1.Node, now time.Time) time.Time {
	rec := s.Record(n.Name)
	if rec == nil || len(rec.Transitions) < flapCount {
		return time.Time{}
	}
	end := rec.Transitions[len(rec.Transitions)-flapCount].Add(flapWindow)
	if !now.Before(end) {
		return time.Time{}
	}
	return end
}
