package workload

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// Parts of the work on an object. A DaemonSet's work on one node is named by the node.
const (
	partAdopt    = "Adopt"    // it is new: what has no controller may be its
	partTemplate = "Template" // of a DaemonSet: on every node, and perhaps by another template
	partRevision = "Revision" // of a DaemonSet: its revisions are others
	partTurn     = "Turn"     // what costs a walk and was put off has its turn, or cannot wait for it
	partKin      = "Kin"      // its owners, and what depends on it
	partPods     = "Pods"     // of a node: it has come, gone, or is out of service or in it again
	partDaemons  = "Daemons"  // of a node: other DaemonSets may want a pod on it
	partLabels   = "Labels"   // of a namespace: they say what may run in it, or nothing may any more
	partReach    = "Reach"    // of a node: it answers again, or does not any more
	partSize     = "Size"     // of a workload: it is to have more pods or fewer, or another says how many
	partLost     = "Lost"     // of a pod: the quarantine after its node is over
	partMore     = "More"     // of a kind: there is one more
)

// A step is a pod before and after a change: whom it concerned follows from its labels,
// owner and node as they were, and what it was lost to from what it became.
type step struct{ old, next *corev1.Pod }

// A kin is an object's family before a change: the uid of one that is no more, and the
// owners that may have waited for it to go.
type kin struct {
	gone   types.UID
	owners []types.UID
}

// Touches says that a change concerns its object, and of others those that are named in
// it; whom it concerns by labels and uids is found when it is decided.
func (Decider) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Events:
		if c.Old == nil {
			return anotherEvent
		}
		return nil
	case state.Pods:
		old, _ := c.Old.(*corev1.Pod)
		next, _ := c.New.(*corev1.Pod)
		return []state.Subject{{Key: c.Key, Was: step{old, next}}}
	}
	all := make([]state.Subject, 1, 4)
	all[0].Key = c.Key
	part := func(p string) { all = append(all, state.Subject{Key: c.Key, Part: p}) }
	if k, ok := kinOf(c.Old, c.New); ok {
		all = append(all, state.Subject{Key: c.Key, Part: partKin, Was: k})
	}
	if mayWait(c.Key.Kind) && asksElse(c.Old, c.New) {
		part(partTurn)
	}
	if c.Old != nil && state.ScaleOf(c.Old) != state.ScaleOf(c.New) {
		part(partSize)
	}
	switch c.Key.Kind {
	case state.ReplicaSets, state.ControllerRevisions:
		for _, o := range []state.Object{c.Old, c.New} {
			all = appendController(all, o)
		}
		if c.Key.Kind == state.ReplicaSets && c.Old == nil {
			part(partAdopt)
		}
	case state.Deployments, state.Controllers, state.StatefulSets:
		if c.Old == nil {
			part(partAdopt)
		}
	case state.Jobs:
		for _, o := range []state.Object{c.Old, c.New} {
			all = appendController(all, o)
		}
		if c.Old == nil {
			part(partAdopt)
		}
	case state.DaemonSets:
		old, had := c.Old.(*appsv1.DaemonSet)
		next, has := c.New.(*appsv1.DaemonSet)
		if has && (!had || old.Generation != next.Generation || old.UID != next.UID || next.DeletionTimestamp != nil) {
			part(partTemplate)
		}
		if !had {
			part(partAdopt)
		}
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		if old == nil || next == nil || outOfService(old) != outOfService(next) {
			part(partPods)
		}
		if silent(old) != silent(next) {
			part(partReach)
		}
		if !sameForDaemons(old, next) {
			part(partDaemons)
		}
	case state.Namespaces:
		if c.Old != nil && c.New != nil && (!maps.Equal(c.Old.GetLabels(), c.New.GetLabels()) || asksElse(c.Old, c.New)) {
			part(partLabels)
		}
	}
	return all
}

// mayWait tells whether the work on objects of a kind may be put off, see later.
func mayWait(k state.Kind) bool {
	switch k {
	case state.PodDisruptionBudgets, state.ReplicaSets, state.Controllers, state.StatefulSets, state.Jobs:
		return true
	}
	return false
}

// asksElse tells whether an object is there that asks for something else than it did.
func asksElse(old, next state.Object) bool {
	return next != nil && (old == nil || old.GetUID() != next.GetUID() || old.GetGeneration() != next.GetGeneration() ||
		(old.GetDeletionTimestamp() == nil) != (next.GetDeletionTimestamp() == nil))
}

// appendController adds the controller of an object, which may be nil.
func appendController(all []state.Subject, o state.Object) []state.Subject {
	if o == nil {
		return all
	}
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		return all
	}
	q := state.About(state.Key{Kind: state.KindNamed(ref.Kind), Namespace: o.GetNamespace(), Name: ref.Name})
	if q.Kind == state.DaemonSets {
		q.Part = partRevision
	}
	return append(all, q)
}

// kinOf returns the family that an object had, if the change may matter to it.
func kinOf(old, next state.Object) (k kin, ok bool) {
	if old == nil {
		return k, false
	}
	if next == nil || next.GetUID() != old.GetUID() {
		k.gone = old.GetUID()
	}
	for _, ref := range old.GetOwnerReferences() {
		k.owners = append(k.owners, ref.UID)
	}
	return k, k.gone != "" || len(k.owners) > 0
}

// sameForDaemons tells whether a node's change means nothing to DaemonSets, as when it
// only reports its condition again.
func sameForDaemons(old, next *corev1.Node) bool {
	return old != nil && next != nil && old.Spec.Unschedulable == next.Spec.Unschedulable && old.UID == next.UID &&
		maps.Equal(old.Labels, next.Labels) &&
		slices.EqualFunc(old.Spec.Taints, next.Spec.Taints, state.SameTaint)
}

// What concerns the whole of a kind.
var (
	allPods      = state.Subject{Key: state.Key{Kind: state.Pods}}
	allEvents    = state.Subject{Key: state.Key{Kind: state.Events}}
	anotherEvent = []state.Subject{{Key: allEvents.Key, Part: partMore}}
)

// Subjects returns every object but events, with every part that it has. Of those that are in
// no namespace, such as nodes, which nothing owns and nothing holds there is nothing to decide.
func (Decider) Subjects(s state.Snapshot) []state.Subject {
	all := []state.Subject{{Key: allPods.Key, Part: partMore}, anotherEvent[0]}
	for _, kind := range state.Kinds() {
		if kind == state.Events {
			continue
		}
		var parts []string
		switch {
		case kind == state.DaemonSets:
			parts = []string{partTemplate, partTurn}
		case mayWait(kind):
			parts = []string{partTurn}
		}
		alone := !kind.Row().Namespaced && kind != state.Namespaces
		for o := range s.All(kind, "") {
			if alone && !mayEnd(o) {
				continue
			}
			k := state.KeyOf(o)
			all = append(all, state.About(k))
			for _, p := range parts {
				all = append(all, state.Subject{Key: k, Part: p})
			}
		}
	}
	if s.Len(state.Pods) > 0 {
		for n := range s.Nodes() {
			for range s.PodsOn(n.Name) {
				all = append(all, state.Subject{Key: state.KeyOf(n), Part: partPods})
				break
			}
		}
	}
	return all
}
