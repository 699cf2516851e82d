package lifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A nodeChanges is what has happened to a node: it becomes its history, in the very
// transaction of the decisions that it tells of.
type nodeChanges struct {
	node    string
	changed []metav1.MicroTime // of Ready
	health  []state.HealthChange
	evicted []state.Evicted
}

// addTo adds the past to what is remembered of its node.
func (p *nodeChanges) addTo(rec *state.Record) {
	for _, t := range p.health {
		rec.AddHealthChange(t)
	}
	for _, e := range p.evicted {
		rec.Evict(e)
	}
}

// A transition is a change of a node's Ready, or of whether it has the lifecycle's
// NoExecute taint.
type transition struct{ old, next *corev1.Node }

func transitionOf(old, next *corev1.Node) (t transition, ok bool) {
	if old == nil || next == nil || state.ReadyOf(old) == "" || state.NeverReported(old) {
		return t, false
	}
	return transition{old, next}, state.ReadyOf(old) != state.ReadyOf(next) ||
		(state.NoExecuteOf(old) == nil) != (state.NoExecuteOf(next) == nil)
}

// nodeChangesOf returns what has happened to the subjects, in the order of the nodes' first change.
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
				p.changed, p.health = append(p.changed, metav1.NewMicroTime(now)), append(p.health, healthChangesOf(was.old, is, now)...)
			} else if s.Record(q.Name) != nil {
				p := of(q.Name)
				// as TimeAdded
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

// evictionOf tells whether a change of a pod is the decision that it leaves its node.
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

// healthChangesOf is what the history of a node learns when its Ready changes: how it was
// before, when it was given up if it was, and how it is now.
func healthChangesOf(old *corev1.Node, is corev1.ConditionStatus, now time.Time) []state.HealthChange {
	was := state.NodeCondition(old, corev1.NodeReady)
	turns := []state.HealthChange{{At: metav1.NewMicroTime(was.LastTransitionTime.Time), Ready: was.Status}}
	if t := state.NoExecuteOf(old); t != nil && t.TimeAdded != nil {
		turns = append(turns, state.HealthChange{At: metav1.NewMicroTime(t.TimeAdded.Time), Ready: was.Status, Out: true})
	}
	// as conditions and taints
	return append(turns, state.HealthChange{At: metav1.NewMicroTime(now.Truncate(time.Second)), Ready: is})
}
