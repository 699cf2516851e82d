package lifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// nodeChanges are the changes of a node for its history. They are stored in the same transaction as
// the decisions that caused them.
type nodeChanges struct {
	node    string
	changed []metav1.MicroTime // changes of Ready
	health  []state.HealthChange
	evicted []state.Evicted
}

// addTo adds the changes to the record of the node.
func (p *nodeChanges) addTo(rec *state.Record) {
	for _, t := range p.health {
		rec.AddHealthChange(t)
	}
	for _, e := range p.evicted {
		rec.Evict(e)
	}
}

// A transition is a change of a node's Ready or of its NoExecute taint.
type transition struct{ old, next *corev1.Node }

func transitionOf(old, next *corev1.Node) (t transition, ok bool) {
	if old == nil || next == nil || state.ReadyOf(old) == "" || state.NeverReported(old) {
		return t, false
	}
	return transition{old, next}, state.ReadyOf(old) != state.ReadyOf(next) ||
		(state.NoExecuteOf(old) == nil) != (state.NoExecuteOf(next) == nil)
}

// nodeChangesOf collects the changes of the subjects, in the order of each node's first change.
func nodeChangesOf(s state.Snapshot, subjects []state.Subject, now time.Time) (all []*nodeChanges) {
	byNode := map[string]*nodeChanges{}
	of := func(node string) *nodeChanges {
		p := byNode[node]
		if p == nil {
			p = &nodeChanges{node: node}
			byNode[node], all = p, append(all, p)
		}
		return p
	}
	for _, q := range subjects {
		switch was := q.Was.(type) {
		case transition:
			if is := state.ReadyOf(was.next); is != state.ReadyOf(was.old) {
				p := of(q.Name)
				p.changed = append(p.changed, metav1.NewMicroTime(now))
				p.health = append(p.health, healthChangesOf(was.old, is, now)...)
			} else if s.Record(q.Name) != nil {
				p := of(q.Name)
				// The time is rounded like TimeAdded.
				p.health = append(p.health, state.HealthChange{At: metav1.NewMicroTime(state.Ceil(now).Time), Ready: is,
					Out: state.NoExecuteOf(was.next) != nil})
			}
		case state.Evicted:
			if s.Record(q.Name) != nil {
				was.At = metav1.NewMicroTime(now)
				p := of(q.Name)
				p.evicted = append(p.evicted, was)
			}
		}
	}
	return all
}

// evictionOf returns the eviction in a change of a pod; ok is false if the change is not an
// eviction.
func evictionOf(old, next *corev1.Pod) (e state.Evicted, ok bool) {
	if old == nil || next == nil || old.Spec.NodeName == "" || disruption(old) != nil {
		return e, false
	}
	c := disruption(next)
	if c == nil {
		return e, false
	}
	return state.Evicted{Pod: next.Namespace + "/" + next.Name, Reason: c.Reason, Text: c.Message}, true
}

func disruption(p *corev1.Pod) *corev1.PodCondition {
	if c := state.PodCondition(p, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		return c
	}
	return nil
}

// healthChangesOf returns the entries for a change of Ready: the previous state, the NoExecute
// taint if there was one, and the new state.
func healthChangesOf(old *corev1.Node, is corev1.ConditionStatus, now time.Time) []state.HealthChange {
	was := state.NodeCondition(old, corev1.NodeReady)
	turns := []state.HealthChange{{At: metav1.NewMicroTime(was.LastTransitionTime.Time), Ready: was.Status}}
	if t := state.NoExecuteOf(old); t != nil && t.TimeAdded != nil {
		turns = append(turns, state.HealthChange{At: metav1.NewMicroTime(t.TimeAdded.Time), Ready: was.Status, Out: true})
	}
	// The time has whole seconds, like the times of conditions and taints.
	return append(turns, state.HealthChange{At: metav1.NewMicroTime(now.Truncate(time.Second)), Ready: is})
}
