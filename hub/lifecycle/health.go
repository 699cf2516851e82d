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

// Health decides the conditions and taints of nodes. Only Sites adds NoExecute taints.
type Health struct{ Settings Settings }

// Touches returns the node of a change, or all nodes whose grace period or lease interval the
// change alters.
func (Health) Touches(c state.Applied) []state.Subject {
	if c.Key.Kind == state.Nodes {
		return []state.Subject{{Key: c.Key}}
	}
	return state.GraceChanges(c)
}

// Subjects returns all nodes.
func (Health) Subjects(s state.Snapshot) []state.Subject { return state.AboutNodes(s) }

// Sharded: a node's health does not depend on other nodes.
func (h Health) Sharded(_ state.Snapshot, subjects []state.Subject) state.Decide {
	if !state.OnlyNodes(subjects) {
		return nil
	}
	return h.Decide
}

// deadlineOf returns the subject of a node's deadline. One nanosecond later the node is not alive,
// unless a heartbeat has arrived.
func deadlineOf(node string) state.Subject {
	return state.Subject{Key: state.Key{Kind: state.Nodes, Name: node}, Part: "Deadline"}
}

// Decide updates conditions and taints from the nodes' last heartbeats.
func (d Health) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	plan.Alarms = make([]state.Alarm, 0, len(subjects))
	var nodes []string
	for _, q := range subjects {
		switch {
		case q.Kind == state.Sites:
			for n := range s.NodesIn(q.Name) {
				nodes = append(nodes, n.Name)
			}
		case q.Part == "" || !d.renewDeadline(s, q, now, &plan):
			nodes = append(nodes, q.Name)
		}
	}
	slices.Sort(nodes)
	for _, name := range slices.Compact(nodes) {
		if n := s.Node(name); n != nil {
			d.node(s, n, now, &plan)
		} else {
			plan.WakeFor(deadlineOf(name), time.Time{})
		}
	}
	return plan
}

// renewDeadline tells whether a node that is due has sent a heartbeat since. It then only sets the
// node's next deadline. That is the case for almost all of ten thousand nodes that are due
// together, one grace period after the hub's start.
func (d Health) renewDeadline(s state.Snapshot, q state.Subject, now time.Time, plan *state.Plan) bool {
	n := s.Node(q.Name)
	if n == nil {
		return false
	}
	deadline := d.Deadline(s, n)
	if now.After(deadline) {
		return false
	}
	plan.WakeFor(q, deadline.Add(1))
	return true
}

// Deadline returns the moment after which a silent node is not alive.
func (d Health) Deadline(s state.Snapshot, n *corev1.Node) time.Time {
	return d.Settings.timeouts().Deadline(s, n, s.Seen(n.Name))
}

// watched are the conditions that become Unknown on a silent node. OutOfDisk, of older Kubernetes,
// is not added if it is missing.
var watched = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
	corev1.NodePIDPressure, fleet.ConditionOutOfDisk}

// node updates the conditions and taints of one node.
func (d Health) node(s state.Snapshot, n *corev1.Node, now time.Time, plan *state.Plan) {
	deadline := d.Deadline(s, n)
	alarm := deadlineOf(n.Name)
	next := n
	why, reason := "", ""
	if now.After(deadline) {
		if silent := markUnknown(n, state.HasReported(s, n), now); silent != nil {
			next = silent
			if state.ReadyOf(n) != corev1.ConditionUnknown {
				why = fmt.Sprintf("node %s Ready=Unknown: no heartbeat for %s", n.Name,
					now.Sub(s.Seen(n.Name)).Truncate(time.Second))
				reason = "NodeNotReady"
				if !state.HasReported(s, n) {
					why = fmt.Sprintf("node %s Ready=Unknown: it has never reported", n.Name)
				}
			}
		}
		plan.WakeFor(alarm, time.Time{})
	} else {
		plan.WakeFor(alarm, deadline.Add(1))
	}
	taints, outage := taintsFor(next, now)
	if !sameTaints(n.Spec.Taints, taints) || !state.HasOutage(n, outage) {
		if next == n {
			next = state.Fork(n)
		}
		next.Spec.Taints = taints
		state.SetOutage(next, outage)
	}
	if next == n {
		return
	}
	c := state.Put(next, why)
	if reason != "" {
		c = c.Warning(reason)
	}
	plan.Do(c)
	if why != "" {
		for p := range s.PodsOn(n.Name) {
			if ready := state.PodCondition(p, corev1.PodReady); ready != nil && ready.Status == corev1.ConditionTrue {
				p = state.ForkPod(p)
				state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}, now)
				plan.Do(state.Put(p, ""))
			}
		}
	}
}

// markUnknown returns the node with its watched conditions Unknown, or nil if they already are.
// reported tells whether the node has ever reported. If not, conditions that a user wrote count as
// never updated.
func markUnknown(n *corev1.Node, reported bool, now time.Time) *corev1.Node {
	var out *corev1.Node
	change := func() *corev1.Node {
		if out == nil {
			out = state.Fork(n)
		}
		return out
	}
	at := metav1.NewTime(now)
	for _, t := range watched {
		switch have := state.NodeCondition(n, t); {
		case have == nil && t == fleet.ConditionOutOfDisk:
		case have == nil:
			o := change()
			o.Status.Conditions = append(o.Status.Conditions, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
				Message:           "Kubelet never posted node status.",
				LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: at,
			})
		case have.Status != corev1.ConditionUnknown:
			c := state.NodeCondition(change(), t)
			c.Status, c.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
			c.Message = "Kubelet stopped posting node status."
			c.LastTransitionTime = at
			if !reported {
				c.Reason, c.Message, c.LastHeartbeatTime = "NodeStatusNeverUpdated", "Kubelet never posted node status.",
					n.CreationTimestamp
			}
		}
	}
	return out
}
