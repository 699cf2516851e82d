// Package eviction decides which pods must leave their node because of its
// NoExecute taints, and when.
//
// It neither gives nor takes taints (package lifecycle does, at each site's rate),
// nor does it replace what it evicts (package workload does).
package eviction

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"flotilla.dev/hub/state"
)

// A Decider evicts pods from tainted nodes.
type Decider struct {
	// Grace is how long after its start the hub listens before it evicts from
	// a node that it holds for not ready: a device that lives is heard in that
	// time, so a restart of the hub evicts nobody whose node lives.
	Grace time.Duration
}

// Decide evicts every pod whose node carries a NoExecute taint that the pod does
// not tolerate, or no longer.
func (d Decider) Decide(s state.Snapshot, now time.Time) (plan state.Plan) {
	for _, key := range pods(s) {
		p := s.Pod(key.Namespace, key.Name)
		if p == nil || p.DeletionTimestamp != nil || p.Spec.NodeName == "" || state.Terminated(p) {
			plan.Wake(key, time.Time{})
			continue
		}
		node := s.Node(p.Spec.NodeName)
		if node == nil {
			plan.Wake(key, time.Time{})
			continue
		}
		leave := LeaveBy(node.Spec.Taints, p.Spec.Tolerations)
		if leave.Must && leave.Lifecycle {
			if earliest := s.Started.Add(d.Grace); leave.At.Before(earliest) && node.CreationTimestamp.Time.Before(s.Started) {
				leave.At = earliest
			}
		}
		switch {
		case !leave.Must:
			plan.Wake(key, time.Time{})
		case now.Before(leave.At):
			plan.Wake(key, leave.At)
		default:
			plan.Wake(key, time.Time{})
			why := fmt.Sprintf("evict %s from %s: %s", state.Display(p), node.Name, leave.Why)
			if c, ok := state.Evict(p, now, "DeletionByTaintManager", why); ok {
				plan.Do(c.Event("TaintManagerEviction"))
			}
		}
	}
	return plan
}

// pods returns the pods that need be looked at, each once: those that changed,
// those whose node's taints changed, and those whose time has come.
func pods(s state.Snapshot) (keys []state.Key) {
	seen := map[state.Key]bool{}
	look := func(k state.Key) {
		if !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	add := func(p *corev1.Pod) { look(state.KeyOf(p)) }
	if s.Look.All {
		for n := range s.Nodes() {
			for p := range s.PodsOn(n.Name) {
				add(p)
			}
		}
		return keys
	}
	for _, a := range s.Look.Recent {
		switch a.Key.Kind {
		case state.Pods:
			look(a.Key)
		case state.Nodes:
			if sameNoExecute(a.Old, a.New) {
				continue
			}
			for p := range s.PodsOn(a.Key.Name) {
				add(p)
			}
		}
	}
	for _, k := range s.Look.Due {
		look(k)
	}
	return keys
}

func sameNoExecute(a, b state.Object) bool {
	old, _ := a.(*corev1.Node)
	new, _ := b.(*corev1.Node)
	if old == nil || new == nil {
		return false
	}
	x, y := noExecute(old.Spec.Taints), noExecute(new.Spec.Taints)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if !x[i].MatchTaint(&y[i]) || x[i].Value != y[i].Value || !x[i].TimeAdded.Equal(y[i].TimeAdded) {
			return false
		}
	}
	return true
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
	Lifecycle bool // because its node is not ready or unreachable, not because somebody tainted it
}

// LeaveBy returns when a pod with these tolerations must leave a node with these
// taints.
//
// For each NoExecute taint the first toleration that tolerates it counts. A taint
// that nothing tolerates: now, that is, when the taint was given. Otherwise each
// bounded toleration ends its seconds after its taint was given, and the earliest
// of these counts; a toleration of 0 seconds or less ends at once. No bound at
// all: never. Counting from the taint, a restart of the hub neither shortens nor
// lengthens anybody's stay.
func LeaveBy(taints []corev1.Taint, tolerations []corev1.Toleration) (leave Leave) {
	for _, t := range noExecute(taints) {
		var at time.Time
		if t.TimeAdded != nil {
			at = t.TimeAdded.Time
		}
		lifecycle := t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
		tol := first(tolerations, &t)
		var next Leave
		switch {
		case tol == nil:
			next = Leave{true, at, "does not tolerate " + t.ToString(), lifecycle}
		case tol.TolerationSeconds == nil:
			continue
		default:
			at = at.Add(time.Duration(max(*tol.TolerationSeconds, 0)) * time.Second)
			next = Leave{true, at, fmt.Sprintf("tolerated %s until %s", t.Key, at.UTC().Format(time.TimeOnly)), lifecycle}
		}
		if !leave.Must || next.At.Before(leave.At) {
			leave = next
		}
	}
	return leave
}

func first(tolerations []corev1.Toleration, t *corev1.Taint) *corev1.Toleration {
	for i := range tolerations {
		if tolerations[i].ToleratesTaint(klog.Logger{}, t, false) {
			return &tolerations[i]
		}
	}
	return nil
}
