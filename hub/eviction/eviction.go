// Package eviction decides which pods must leave their node because of its NoExecute taints, and
// when.
//
// It neither adds nor removes taints (package lifecycle does, at each site's rate), and it does not
// replace the pods that it evicts (package workload does).
package eviction

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A Decider evicts pods from tainted nodes.
type Decider struct {
	// Timeouts are how long the hub waits, after its start or a standstill, before it evicts from a
	// node that is not ready. A live device sends a heartbeat in that time.
	Timeouts state.Timeouts
}

// Touches returns the pod of a change, or the node if its NoExecute taints or its grace period
// change. For a deleted node the subject has its last version, because running deadlines stay.
func (Decider) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Pods:
		return []state.Subject{{Key: c.Key}}
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		switch {
		case old != nil && next == nil:
			return []state.Subject{{Key: c.Key, Was: old}}
		case old == nil || !sameNoExecute(old, next) || state.SiteOf(old) != state.SiteOf(next):
			return []state.Subject{{Key: c.Key}}
		}
	}
	return state.GraceChanges(c)
}

// Subjects returns the pods that have a node.
func (Decider) Subjects(s state.Snapshot) (all []state.Subject) {
	for p := range s.Pods("") {
		if p.Spec.NodeName != "" {
			all = append(all, state.About(state.KeyOf(p)))
		}
	}
	return all
}

// Decide evicts every pod that does not, or no longer, tolerate a NoExecute taint of its node.
func (d Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	keys, deleted := pods(s, subjects)
	for _, key := range keys {
		p := s.Pod(key.Namespace, key.Name)
		if p == nil || p.DeletionTimestamp != nil || p.Spec.NodeName == "" || state.Terminated(p) {
			plan.Wake(key, time.Time{})
			continue
		}
		leave, written := d.leave(s, p, deleted[p.Spec.NodeName])
		if leave.Must && now.Before(leave.At) {
			plan.Wake(key, leave.At)
			if written {
				plan.Do(state.Put(withLeaveBy(p, leave.At), ""))
			}
			continue
		}
		plan.Wake(key, time.Time{})
		if !leave.Must {
			if _, stale := p.Annotations[annotationLeaveBy]; written && stale { // the annotation is of an earlier deletion
				p = p.DeepCopy()
				delete(p.Annotations, annotationLeaveBy)
				plan.Do(state.Put(p, ""))
			}
			continue
		}
		why := fmt.Sprintf("evict %s from %s: %s", state.Display(p), p.Spec.NodeName, leave.Why)
		if c, ok := state.Evict(p, now, "DeletionByTaintManager", why); ok {
			plan.Do(c.Event("TaintManagerEviction"))
		}
	}
	return plan
}

// leave returns when a pod must leave its node. old is the last version of a node that was just
// deleted, otherwise nil. written: a deadline runs, and must be written to the pod because its node
// is deleted.
func (d Decider) leave(s state.Snapshot, p *corev1.Pod, old *corev1.Node) (leave Leave, written bool) {
	node := s.Node(p.Spec.NodeName)
	switch {
	case node == nil && old == nil:
		return storedLeave(p), false
	case node == nil:
		leave, written = LeaveBy(old, p), true
		node = old
	default:
		leave = LeaveBy(node, p)
	}
	if leave.Must && leave.Lifecycle {
		if earliest := d.Timeouts.UnseenUntil(s, node); leave.At.Before(earliest) {
			leave.At = earliest
			if others := LeaveBy(withoutLifecycleTaints(node), p); others.Must && others.At.Before(earliest) {
				leave = others
			}
		}
	}
	return leave, written
}

// annotationLeaveBy holds the deadline of a pod whose node was deleted while the deadline ran.
const annotationLeaveBy = "flotilla.dev/leave-by"

func withLeaveBy(p *corev1.Pod, at time.Time) *corev1.Pod {
	p = p.DeepCopy()
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[annotationLeaveBy] = at.UTC().Format(time.RFC3339)
	return p
}

func storedLeave(p *corev1.Pod) Leave {
	at, err := time.Parse(time.RFC3339, p.Annotations[annotationLeaveBy])
	if err != nil {
		return Leave{}
	}
	return Leave{Must: true, At: at, Why: "tolerated the taints of its node, which is gone, until " +
		at.UTC().Format(time.TimeOnly)}
}

// pods returns the distinct pods of the subjects, and the last versions of deleted nodes. A node
// stands for all of its pods, and a site for the pods of all its nodes.
func pods(s state.Snapshot, subjects []state.Subject) (keys []state.Key, deleted map[string]*corev1.Node) {
	seen := make(map[state.Key]bool, len(subjects))
	add := func(k state.Key) {
		if !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	on := func(node string) {
		for p := range s.PodsOn(node) {
			add(state.KeyOf(p))
		}
	}
	for _, q := range subjects {
		switch q.Kind {
		case state.Pods:
			add(q.Key)
			continue
		case state.Sites:
			for n := range s.NodesIn(q.Name) {
				on(n.Name)
			}
			continue
		}
		if old, ok := q.Was.(*corev1.Node); ok {
			if deleted == nil {
				deleted = map[string]*corev1.Node{}
			}
			deleted[q.Name] = old
		}
		on(q.Name)
	}
	return keys, deleted
}

func sameNoExecute(old, next *corev1.Node) bool {
	x, y := noExecute(old.Spec.Taints), noExecute(next.Spec.Taints)
	return slices.EqualFunc(x, y, func(x, y corev1.Taint) bool {
		return state.SameTaint(x, y) && x.TimeAdded.Equal(y.TimeAdded)
	})
}

func noExecute(taints []corev1.Taint) (out []corev1.Taint) {
	for _, t := range taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

// A Leave says whether, when and why a pod must leave.
type Leave struct {
	Must      bool
	At        time.Time
	Why       string
	Lifecycle bool // the reason is a node that is not ready or unreachable, not a user's taint
	tolerated bool // the pod tolerates the taint for a limited time, possibly 0 s
}

// LeaveBy returns when a pod must leave its node because of the node's taints.
//
// For each NoExecute taint the first matching toleration counts. Without one, or with one of 0 s,
// the pod leaves now. Another limited toleration ends its seconds after the later of the taint's
// time and the pod's binding; the earliest end counts. Without a limit the pod stays. Both times
// are stored, so a restart of the hub changes no deadline, and a pod on a node with an old taint
// gets its full time.
//
// not-ready and unreachable count as one reason, as in Kubernetes' taint manager: when one replaces
// the other, a running deadline stays as it is. If the pod tolerates the second taint for ever, the
// deadline ends, because the first taint is gone. A pod that does not tolerate the second taint
// leaves at the replacement.
func LeaveBy(n *corev1.Node, p *corev1.Pod) (leave Leave) {
	bound := state.BoundAt(p)
	var silent, others []corev1.Taint
	for _, t := range noExecute(n.Spec.Taints) {
		if lifecycles(t) {
			silent = append(silent, t)
		} else {
			others = append(others, t)
		}
	}
	if outage := state.OutageOf(n); len(silent) > 0 && outage != nil {
		var running Leave
		for _, spell := range outage.TaintPeriods {
			if t := (corev1.Taint{Key: spell.Key, Effect: corev1.TaintEffectNoExecute,
				TimeAdded: &spell.From}); bound.Before(spell.To.Time) {
				running = replaceDeadline(running, leaveFor(t, p.Spec.Tolerations, bound))
			}
		}
		leave = replaceDeadline(running, soonest(silent, p, bound))
	} else {
		leave = soonest(silent, p, bound)
	}
	return sooner(leave, soonest(others, p, bound))
}

// replaceDeadline returns the deadline after not-ready and unreachable have replaced each other.
// running is the deadline of the old taint, next that of the new one.
func replaceDeadline(running, next Leave) Leave {
	if running.Must && next.Must && next.tolerated {
		return running
	}
	return next
}

func soonest(taints []corev1.Taint, p *corev1.Pod, bound time.Time) (leave Leave) {
	for _, t := range taints {
		leave = sooner(leave, leaveFor(t, p.Spec.Tolerations, bound))
	}
	return leave
}

func sooner(a, b Leave) Leave {
	if b.Must && (!a.Must || b.At.Before(a.At)) {
		return b
	}
	return a
}

func lifecycles(t corev1.Taint) bool {
	return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
}

// withoutLifecycleTaints returns the node with only the taints of users.
func withoutLifecycleTaints(n *corev1.Node) *corev1.Node {
	out := *n
	out.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), lifecycles)
	return &out
}

// leaveFor returns the deadline that one taint gives a pod.
func leaveFor(t corev1.Taint, tolerations []corev1.Toleration, bound time.Time) Leave {
	tol := firstToleration(tolerations, &t)
	switch {
	case tol == nil:
		return Leave{Must: true, Why: "does not tolerate " + t.ToString(), Lifecycle: lifecycles(t)}
	case tol.TolerationSeconds == nil:
		return Leave{}
	case *tol.TolerationSeconds <= 0:
		return Leave{Must: true, Why: "tolerates " + t.Key + " for 0 s", Lifecycle: lifecycles(t), tolerated: true}
	}
	at := bound
	if t.TimeAdded != nil && t.TimeAdded.After(at) {
		at = t.TimeAdded.Time
	}
	at = at.Add(time.Duration(min(*tol.TolerationSeconds, maxTolerationSeconds)) * time.Second)
	return Leave{Must: true, At: at, Why: fmt.Sprintf("tolerated %s until %s", t.Key, at.UTC().Format(time.TimeOnly)),
		Lifecycle: lifecycles(t), tolerated: true}
}

// maxTolerationSeconds is the most seconds that count, because a time.Duration ends at 292 years.
const maxTolerationSeconds = 250 * 365 * 24 * 60 * 60

// firstToleration returns the first toleration of a taint, or nil.
func firstToleration(tolerations []corev1.Toleration, t *corev1.Taint) *corev1.Toleration {
	for i := range tolerations {
		if state.Tolerates(tolerations[i:i+1], t) {
			return &tolerations[i]
		}
	}
	return nil
}
