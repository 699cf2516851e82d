package diagnose

import (
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Restarting is how long a device that announced its stop, for example for an update, may be away
// without a problem.
const Restarting = time.Minute

// Ready tells whether a node is ready. Nil is not ready.
func Ready(n *corev1.Node) bool { return n != nil && state.ReadyOf(n) == corev1.ConditionTrue }

func aboutNode(name string) fleet.IncidentObject {
	return fleet.IncidentObject{Kind: state.Nodes.Row().Name, Name: name}
}

// Node walks the findings of a node. A node that is not ready has one finding, because its other
// conditions are outdated. A flapping node has only the finding Flapping, ready or not. A node in
// its startup grace period has none.
func Node(n *corev1.Node) iter.Seq[Finding] {
	return func(yield func(Finding) bool) {
		if state.NodeCondition(n, corev1.NodeReady) == nil {
			return
		}
		if c := state.NodeCondition(n, fleet.ConditionFlapping); c != nil && Fails(*c) {
			yield(ofCondition(n, c))
			return
		}
		if !Ready(n) {
			yield(NotReady(n))
			return
		}
		for i := range n.Status.Conditions {
			c := &n.Status.Conditions[i]
			if c.Type == corev1.NodeReady || !Fails(*c) {
				continue
			}
			f := ofCondition(n, c)
			if from := state.NodeCondition(n, RuleOf(f.Cause).follows); from != nil && Fails(*from) {
				continue // the condition follows from another bad condition
			}
			if !yield(f) {
				return
			}
		}
	}
}

// Failing returns the bad conditions of a node except Ready.
func Failing(n *corev1.Node) (all []corev1.NodeCondition) {
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady && Fails(c) {
			all = append(all, c)
		}
	}
	return all
}

// FirstOf returns the worst finding of a node, of equal ones the first. A node in its startup grace
// period counts as not ready here.
func FirstOf(n *corev1.Node) (worst Finding) {
	if !Ready(n) {
		return NotReady(n)
	}
	for f := range Node(n) {
		if f.Severity() == fleet.SeverityCritical {
			return f
		}
		if worst.Cause == "" {
			worst = f
		}
	}
	return worst
}

// NotReady returns why a node is not ready.
func NotReady(n *corev1.Node) Finding {
	f := Finding{Cause: NodeNotReady, About: aboutNode(n.Name), Args: Args{Node: n.Name}, Since: state.FailedAt(n).UTC()}
	switch ready := state.NodeCondition(n, corev1.NodeReady); {
	case state.NeverReported(n):
		f.Cause, f.Since = NodeNeverReported, n.CreationTimestamp.UTC()
	case ready.Status == corev1.ConditionUnknown:
		f.Cause = NodeDark
	default:
		if f.Reason, f.Message = ready.Reason, ready.Message; f.Reason == "NodeShutdown" {
			f.Due = f.Since.Add(Restarting)
		}
	}
	return f
}

func ofCondition(n *corev1.Node, c *corev1.NodeCondition) Finding {
	return Finding{Cause: causeOfCondition(c.Type), About: aboutNode(n.Name),
		Args: Args{Node: n.Name, Reason: c.Reason, Message: c.Message}, Since: c.LastTransitionTime.UTC()}
}

// Fails tells whether a condition of a node is bad.
func Fails(c corev1.NodeCondition) bool {
	switch fleet.MeaningOf(c.Type) {
	case fleet.Trouble:
		return c.Status == corev1.ConditionTrue
	case fleet.Health:
		return c.Status == corev1.ConditionFalse
	}
	return false
}
