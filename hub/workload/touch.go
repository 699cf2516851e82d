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

// Parts of the work on an object. A DaemonSet's work on one node has the node's name.
const (
	partAdopt    = "Adopt"    // a new workload: it may adopt objects without a controller
	partTemplate = "Template" // of a DaemonSet: all nodes, and perhaps a new template
	partRevision = "Revision" // of a DaemonSet: its revisions have changed
	partTurn     = "Turn"     // deferred work that walks many objects is due
	partFamily   = "Kin"      // an object's owners and dependents
	partPods     = "Pods"     // of a node: it has joined, was deleted, or its out-of-service taint has changed
	partDaemons  = "Daemons"  // of a node: DaemonSets may have to add or remove pods
	partLabels   = "Labels"   // of a namespace: its policy has changed, or it is terminating
	partReach    = "Reach"    // of a node: its Ready condition has become Unknown, or known again
	partSize     = "Size"     // of a workload: its number of pods, or its controller, has changed
	partLost     = "Lost"     // of a pod: its quarantine is over
	partImages   = "Images"   // of a node: it has other images
	partMore     = "More"     // of a kind: there is a new object
)

// A podChange is a pod before and after a change. The old labels, owner and node show which
// workloads the change concerns. The new state shows how the pod was lost.
type podChange struct{ old, next *corev1.Pod }

// A family holds an object's relations before a change: its UID if it was removed, and the owners
// that may have waited for it.
type family struct {
	gone   types.UID
	owners []types.UID
}

// Touches returns the changed object and the objects that it names. Decide finds the objects that
// are related by labels or UIDs.
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
		return []state.Subject{{Key: c.Key, Was: podChange{old, next}}}
	}
	all := make([]state.Subject, 1, 4)
	all[0].Key = c.Key
	part := func(p string) { all = append(all, state.Subject{Key: c.Key, Part: p}) }
	if k, ok := familyOf(c.Old, c.New); ok {
		all = append(all, state.Subject{Key: c.Key, Part: partFamily, Was: k})
	}
	if deferrable(c.Key.Kind) && specChanged(c.Old, c.New) {
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
		if old != nil && next != nil && !slices.EqualFunc(old.Status.Images, next.Status.Images, sameNames) {
			part(partImages)
		}
	case state.Namespaces:
		if c.Old != nil && c.New != nil && (!maps.Equal(c.Old.GetLabels(), c.New.GetLabels()) || specChanged(c.Old, c.New)) {
			part(partLabels)
		}
	}
	return all
}

// deferrable reports whether the work on objects of a kind may be deferred; see deferWalk.
func deferrable(k state.Kind) bool {
	switch k {
	case state.PodDisruptionBudgets, state.ReplicaSets, state.Controllers, state.StatefulSets, state.Jobs:
		return true
	}
	return false
}

// specChanged reports whether an object exists whose spec has changed.
func specChanged(old, next state.Object) bool {
	return next != nil && (old == nil || old.GetUID() != next.GetUID() || old.GetGeneration() != next.GetGeneration() ||
		(old.GetDeletionTimestamp() == nil) != (next.GetDeletionTimestamp() == nil))
}

// appendController adds the controller of an object; the object may be nil.
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

// familyOf returns an object's former family. ok is false if the change cannot concern the family.
func familyOf(old, next state.Object) (k family, ok bool) {
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

// sameForDaemons reports whether a change of a node cannot concern DaemonSets, for example a
// repeated condition.
func sameForDaemons(old, next *corev1.Node) bool {
	return old != nil && next != nil && old.Spec.Unschedulable == next.Spec.Unschedulable && old.UID == next.UID &&
		maps.Equal(old.Labels, next.Labels) &&
		slices.EqualFunc(old.Spec.Taints, next.Spec.Taints, state.SameTaint)
}

func sameNames(a, b corev1.ContainerImage) bool { return slices.Equal(a.Names, b.Names) }

// The subjects for whole kinds.
var (
	allPods      = state.Subject{Key: state.Key{Kind: state.Pods}}
	allEvents    = state.Subject{Key: state.Key{Kind: state.Events}}
	anotherEvent = []state.Subject{{Key: allEvents.Key, Part: partMore}}
)

// Subjects returns every object except events, with all of its parts. It skips cluster-scoped
// objects without owners and finalizers, such as most nodes, because they need no decision.
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
		case deferrable(kind):
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
