package state

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Plan is the result of a decider: the changes to make now, and when to call the decider again.
// The zero Plan changes nothing and sets no alarm.
type Plan struct {
	Changes []Change
	Alarms  []Alarm
	// ResetSeen makes every node count as seen now. It is set when the hub itself had no network,
	// so a node's silence proves nothing.
	ResetSeen bool
}

// A Decide returns what to change for the subjects, and when to decide about them again.
type Decide func(s Snapshot, subjects []Subject, now time.Time) Plan

// An Alarm makes the loop call a decider for a subject again at a moment. It replaces the subject's
// earlier alarm; the zero time cancels it. After a restart alarms are recomputed from the snapshot.
type Alarm struct {
	Subject Subject
	At      time.Time
}

// Do adds changes to the plan.
func (p *Plan) Do(c ...Change) { p.Changes = appendDoubling(p.Changes, c...) }

// Wake sets an alarm for an object; the zero time cancels it.
func (p *Plan) Wake(k Key, t time.Time) { p.WakeFor(Subject{Key: k}, t) }

// WakeFor is Wake for one part of an object.
func (p *Plan) WakeFor(q Subject, t time.Time) { p.Alarms = appendDoubling(p.Alarms, Alarm{q, t}) }

// A Change is one step of a plan: the new version of an object, or its deletion. It holds the whole
// object, so a change can be repeated.
type Change struct {
	Object Object // belongs to the change from now on
	Delete bool
	// Why is one sentence for an operator. It appears in the log, the event, the page and the
	// stories. Empty: the change needs no explanation.
	Why     string
	Reason  string // CamelCase reason of the event; empty: no event
	Message string // text of the event if clients expect Kubernetes' own words; empty: Why
	Warn    bool   // the event is a Warning
	About   Object // the object that the event is about; nil: Object
	Source  string // the event's component; empty: "flotilla-hub"
	By      string // the user who requested it; empty: the hub itself
}

// Put returns the change that stores an object.
func Put(o Object, why string) Change { return Change{Object: o, Why: why} }

// Remove returns the change that deletes an object.
func Remove(o Object, why string) Change { return Change{Object: o, Delete: true, Why: why} }

// Event makes the change produce an event with the reason.
func (c Change) Event(reason string) Change {
	c.Reason = reason
	return c
}

// Warning makes the change produce a warning event with the reason.
func (c Change) Warning(reason string) Change {
	c.Reason, c.Warn = reason, true
	return c
}

func (c Change) String() string { return c.Why }

// An Applied is a change that a snapshot contains.
type Applied struct {
	Rev      uint64
	Key      Key
	Old, New Object // Old is nil for a creation, New for a deletion
	Change   Change
	Bytes    int // size of New in the store; 0 for a deletion and before it is stored
}

// ReadyOf returns the status of a node's Ready condition: True, False or Unknown, "" without one.
func ReadyOf(n *corev1.Node) corev1.ConditionStatus {
	if c := NodeCondition(n, corev1.NodeReady); c != nil {
		return c.Status
	}
	return ""
}

// NodeCondition returns the node's condition of the type, nil if it has none.
func NodeCondition(n *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// PodCondition returns the pod's condition of the type, nil if it has none.
func PodCondition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// SetPodCondition sets a condition of the pod, in place. The transition time changes only with the
// status.
func SetPodCondition(p *corev1.Pod, c corev1.PodCondition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now)
	for i := range p.Status.Conditions {
		have := &p.Status.Conditions[i]
		if have.Type == c.Type {
			if have.Status == c.Status {
				c.LastTransitionTime = have.LastTransitionTime
			}
			*have = c
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}

// SettleReady sets the condition Ready of a pod with readiness gates, in place. Ready is True if
// the containers are ready and every gate's condition is True. Devices do not evaluate gates,
// because clients set the gates' conditions at the hub.
func SettleReady(p *corev1.Pod, now time.Time) {
	containers := PodCondition(p, corev1.ContainersReady)
	if len(p.Spec.ReadinessGates) == 0 || containers == nil {
		return
	}
	ready := corev1.PodCondition{
		Type: corev1.PodReady, Status: containers.Status, Reason: containers.Reason, Message: containers.Message,
	}
	if ready.Status == corev1.ConditionTrue {
		var shut []string
		for _, g := range p.Spec.ReadinessGates {
			switch c := PodCondition(p, g.ConditionType); {
			case c == nil:
				shut = append(shut, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.",
					g.ConditionType))
			case c.Status != corev1.ConditionTrue:
				shut = append(shut, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", g.ConditionType,
					c.Status))
			}
		}
		if len(shut) > 0 {
			ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(shut, ", ")
		}
	}
	SetPodCondition(p, ready, now)
}

// Terminated tells whether a pod has finished.
func Terminated(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
