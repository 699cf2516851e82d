// Package drain decides which pods of a draining node leave next.
//
// A drain is desired state: one annotation of the Node requests it (state.DrainOrder), another
// holds its progress (state.DrainStatus). So it goes on after a restart of the hub, whether
// kubectl, the page or a program requested it. The decider cordons the node, evicts pods as the
// disruption budgets allow, and ends the drain as done, given up or cancelled. It neither places
// nor creates pods (packages schedule and workload do); the rules of budgets are in package state.
package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A Decider drains nodes.
type Decider struct {
	// Timeouts are how long the hub waits, after its start or a standstill, before it gives up a
	// running drain. In that time a live device reports which pods have stopped.
	Timeouts state.Timeouts
}

// scanLimit is the largest number of pods times draining nodes at which drains are updated with
// every change. Beyond it they are updated only once a second.
const scanLimit = 20_000

// allDrains is the subject of all drains together. blockersChanged is the subject of a change that
// may let a blocked pod leave.
var (
	allDrains       = state.Subject{Key: state.Key{Kind: state.Nodes}}
	blockersChanged = []state.Subject{{Key: allDrains.Key, Part: "Waiting"}}
)

// Touches returns all drains if a change may let a blocked pod leave, and the node whose order has
// changed.
func (Decider) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Pods, state.PodDisruptionBudgets, state.ReplicaSets, state.Deployments, state.DaemonSets,
		state.StatefulSets, state.Controllers:
		return blockersChanged
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		switch {
		case orderChanged(old, next):
			return append([]state.Subject{{Key: c.Key}}, blockersChanged...)
		case state.HasDrainAnnotation(old), state.HasDrainAnnotation(next):
			return blockersChanged
		}
	}
	return nil
}

// orderChanged tells whether a user has just requested or changed a drain.
func orderChanged(old, next *corev1.Node) bool {
	return state.HasDrainAnnotation(next) &&
		(old == nil || old.Annotations[state.DrainAnnotation] != next.Annotations[state.DrainAnnotation] ||
			old.Spec.Unschedulable != next.Spec.Unschedulable)
}

// Subjects returns the one subject of all drains.
func (Decider) Subjects(state.Snapshot) []state.Subject { return []state.Subject{allDrains} }

// Decide starts, continues and ends drains.
func (d Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	for _, name := range nodes(s, subjects, now, &plan) {
		key := state.Key{Kind: state.Nodes, Name: name}
		n := s.Node(name)
		if n == nil || !state.HasDrainAnnotation(n) {
			plan.Wake(key, time.Time{})
			continue
		}
		changes, wake := d.node(s, n, now)
		plan.Wake(key, wake)
		plan.Do(changes...)
		s, _ = state.Apply(s, changes) // so that the next node's budgets count these evictions
	}
	return plan
}

// nodes returns the nodes of the subjects, by name. If all drains are too much work, it postpones
// them to the next second.
func nodes(s state.Snapshot, subjects []state.Subject, now time.Time, plan *state.Plan) (names []string) {
	all, wait := false, false
	for _, q := range subjects {
		all, wait = all || q == allDrains, wait || q.Part != ""
		if q.Name != "" {
			names = append(names, q.Name)
		}
	}
	var marked []string
	for n := range s.NodesWithDrain() {
		marked = append(marked, n.Name)
	}
	if wait && !all && len(marked) > 0 {
		if all = len(marked)*s.Len(state.Pods) <= scanLimit; !all {
			plan.WakeFor(allDrains, now.Truncate(time.Second).Add(time.Second))
		}
	}
	if all {
		names = append(names, marked...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// node decides about one node, and when to decide again.
func (d Decider) node(s state.Snapshot, n *corev1.Node, now time.Time) (changes []state.Change, wake time.Time) {
	text, ordered := n.Annotations[state.DrainAnnotation]
	st := state.DrainStatusOf(n)
	switch {
	case !ordered && !n.Spec.Unschedulable: // the node was uncordoned: remove both annotations
		return removeAnnotations(n, "")
	case !ordered && st.Going():
		return d.end(n, *st, state.DrainStopped, "the order was removed", now)
	case !ordered:
		return nil, wake
	case st.Going() && !n.Spec.Unschedulable:
		return removeAnnotations(n, fmt.Sprintf("drain of %s ended: it was uncordoned", n.Name))
	}
	order, err := state.ParseDrainOrder(text)
	if err != nil {
		return d.end(n, state.DrainStatus{Began: now}, state.DrainInvalid, err.Error(), now)
	}
	why := ""
	if !st.Going() {
		st = &state.DrainStatus{State: state.Draining, By: order.By, Began: now.UTC()}
		why = fmt.Sprintf("drain %s%s", n.Name, by(order.By))
	}
	st.By = order.By // the last user who changed the order
	st.Until = d.until(s, n, st.Began, order)
	ask := &changes
	if !now.Before(st.Until) {
		ask = nil // after the timeout: evict no further pod
	}
	held, leaving := d.pods(s, n, order, now, ask)
	st.Left = len(held) + leaving
	st.Pods = max(st.Pods, st.Left)
	st.Held = held[:min(len(held), state.MaxDrainHeld)]
	stay := 0
	for _, h := range held {
		if h.Stays {
			stay++
		}
	}
	var end []state.Change
	switch {
	case st.Left == 0:
		end, _ = d.end(n, *st, state.Drained, fmt.Sprintf("%s left", count(st.Pods)), now)
	case stay == st.Left:
		end, _ = d.end(n, *st, state.DrainBlocked, fmt.Sprintf("%s not leave: %s: %s", does(stay), held[0].Pod, held[0].Why),
			now)
	case ask == nil:
		end, _ = d.end(n, *st, state.DrainTimedOut,
			fmt.Sprintf("given up after %s: %s", st.Until.Sub(st.Began), remaining(held, leaving)), now)
	default:
		next := withStatus(n, *st)
		next.Spec.Unschedulable = true
		if why == "" && next.Annotations[state.DrainStatusAnnotation] == n.Annotations[state.DrainStatusAnnotation] {
			return changes, st.Until
		}
		c := state.Put(next, why)
		if why != "" {
			c = c.Event("Draining")
		}
		return append([]state.Change{c}, changes...), st.Until
	}
	if why != "" { // the drain begins and ends at one moment
		end[0].Object.(*corev1.Node).Spec.Unschedulable = true
	}
	return append(changes, end...), time.Time{}
}

// until returns when a drain is given up.
func (d Decider) until(s state.Snapshot, n *corev1.Node, began time.Time, order state.DrainOrder) time.Time {
	at := began.Add(order.Limit())
	if unseen := state.Ceil(d.Timeouts.UnseenUntil(s, n)).UTC(); began.Before(s.Listening()) && at.Before(unseen) {
		return unseen
	}
	return at
}

// pods evicts the pods of a node, as additions to changes; if changes is nil it evicts none. It
// returns the pods that cannot leave and the number of stopping pods.
func (d Decider) pods(s state.Snapshot, n *corev1.Node, order state.DrainOrder, now time.Time,
	changes *[]state.Change) (held []state.DrainHeld, leaving int) {
	var stays []state.DrainHeld
	holds := state.NewEvictionRefusals(s, now)
	for p := range s.PodsOn(n.Name) {
		name := p.Namespace + "/" + p.Name
		switch is, why := OutcomeOf(p, order); {
		case is == Ignored:
		case p.DeletionTimestamp != nil:
			leaving++
		case is == Stays:
			stays = append(stays, state.DrainHeld{Pod: name, Stays: true, Why: why})
		default:
			if !order.DisableEviction {
				if why := holds.For(p).String(); why != "" {
					held = append(held, state.DrainHeld{Pod: name, Why: why})
					continue
				}
			}
			leaving++
			if changes != nil {
				if c, ok := leave(p, n, order, now); ok {
					*changes = append(*changes, c)
					s, _ = state.Apply(s, []state.Change{c})
					holds = state.NewEvictionRefusals(s, now)
				}
			}
		}
	}
	return append(stays, held...), leaving
}

// An Outcome is what an order does with a pod, before disruption budgets.
type Outcome int

const (
	Leaves  Outcome = iota // the pod is evicted, as budgets allow
	Ignored                // the pod has ended or belongs to a daemon set, so the drain does not wait for it
	Stays                  // the order does not cover the pod, so the drain ends as blocked
)

// OutcomeOf returns what an order does with a pod, and the reason if the pod stays.
func OutcomeOf(p *corev1.Pod, order state.DrainOrder) (is Outcome, why string) {
	owner := metav1.GetControllerOfNoCopy(p)
	daemon := owner != nil && owner.Kind == "DaemonSet"
	switch {
	case state.Terminated(p), p.Annotations[corev1.MirrorPodAnnotationKey] != "", daemon && order.DaemonPodsStay():
		return Ignored, ""
	case daemon:
		return Stays, "its daemon set would recreate it at once: leave out ignoreDaemonSets"
	case owner == nil && !order.Force:
		return Stays, "nothing recreates it: set force, or delete it"
	case state.HasData(p) && !order.DeleteEmptyDirData:
		return Stays, "it has data in an emptyDir, which would be lost: set deleteEmptyDirData"
	}
	return Leaves, ""
}

// leave returns the change that evicts a pod.
func leave(p *corev1.Pod, n *corev1.Node, order state.DrainOrder, now time.Time) (state.Change, bool) {
	why := fmt.Sprintf("evict %s from %s: the node is drained%s", state.Display(p), n.Name, by(order.By))
	c, ok := state.Delete(p, now, order.GracePeriodSeconds, why)
	if gone, is := c.Object.(*corev1.Pod); ok && is && !c.Delete {
		state.SetPodCondition(gone, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
			Message: "Eviction API: evicting",
		}, now)
	}
	return c.Event("Evicted"), ok
}

// withStatus returns the node with a drain status.
func withStatus(n *corev1.Node, st state.DrainStatus) *corev1.Node {
	n = n.DeepCopy()
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[state.DrainStatusAnnotation] = st.String()
	return n
}

// end removes the order and stores the result.
func (d Decider) end(n *corev1.Node, st state.DrainStatus, how state.DrainState, why string,
	now time.Time) ([]state.Change, time.Time) {
	st.State, st.Ended, st.Why = how, now.UTC().Truncate(time.Second), why
	if how == state.Drained {
		st.Left, st.Held = 0, nil
	}
	n = withStatus(n, st)
	delete(n.Annotations, state.DrainAnnotation)
	c := state.Put(n, fmt.Sprintf("drain of %s%s ended: %s: %s", n.Name, by(st.By), how, why))
	if how == state.Drained {
		return []state.Change{c.Event("Drained")}, time.Time{}
	}
	return []state.Change{c.Warning("DrainEnded")}, time.Time{}
}

// removeAnnotations removes the order and the status.
func removeAnnotations(n *corev1.Node, why string) ([]state.Change, time.Time) {
	n = n.DeepCopy()
	delete(n.Annotations, state.DrainAnnotation)
	delete(n.Annotations, state.DrainStatusAnnotation)
	c := state.Put(n, why)
	if why != "" {
		c = c.Event("DrainEnded")
	}
	return []state.Change{c}, time.Time{}
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

func count(n int) string {
	if n == 1 {
		return "1 pod has"
	}
	return fmt.Sprintf("%d pods have", n)
}

func does(n int) string {
	if n == 1 {
		return "1 pod does"
	}
	return fmt.Sprintf("%d pods do", n)
}

// remaining describes the pods that have not left.
func remaining(held []state.DrainHeld, leaving int) string {
	var parts []string
	if leaving > 0 {
		parts = append(parts, fmt.Sprintf("%d stopping, and the device has not confirmed the end", leaving))
	}
	if len(held) > 0 {
		parts = append(parts, fmt.Sprintf("%d held, first %s: %s", len(held), held[0].Pod, held[0].Why))
	}
	return strings.Join(parts, "; ")
}
