package workload

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// collect removes what nobody wants any more.
func (p *pass) collect(w *work) {
	for _, k := range w.nodes.sorted() {
		p.node(k)
	}
	for _, k := range w.lost.sorted() {
		p.lost(k)
	}
	for _, k := range w.check.sorted() {
		if o := p.s.Get(k); o != nil {
			p.inspect(o)
		}
	}
	if w.finished {
		p.trimFinished()
	}
	if w.events {
		p.trimEvents()
	}
	for _, k := range w.namespaces.sorted() {
		p.emptyNamespace(k)
	}
}

// inspect looks at one object: at its owners, and where it is being deleted at
// what still holds it.
func (p *pass) inspect(o state.Object) {
	if o = p.untracked(o); o == nil {
		return
	}
	if p.dropOwners(o) || o.GetDeletionTimestamp() == nil {
		return
	}
	if pod, ok := o.(*corev1.Pod); ok && p.abandon(pod) {
		return
	}
	switch {
	case slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents):
		for d := range p.s.Dependents(o.GetUID()) {
			p.do(state.Put(release(d, o), fmt.Sprintf("keep %s: %s is deleted without its dependents", state.Display(d), state.Display(o))))
		}
		p.dropFinalizer(o, metav1.FinalizerOrphanDependents)
		return
	case slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents):
		if p.dependentsGone(o) {
			p.dropFinalizer(o, metav1.FinalizerDeleteDependents)
		}
		return
	case len(o.GetFinalizers()) > 0:
		return
	}
	switch o := o.(type) {
	case *corev1.Namespace: // see emptyNamespace
	case *corev1.Pod:
		if state.Released(o) {
			p.do(state.Remove(o, fmt.Sprintf("remove %s: it was deleted and runs nowhere", state.Display(o))))
		}
	default:
		p.do(state.Remove(o, fmt.Sprintf("remove %s %s: nothing holds it any more", state.KindOf(o), state.Display(o))))
	}
}

// dropOwners deletes an object whose owners are all gone, and forgets those that
// are where others live. It says whether it did anything.
func (p *pass) dropOwners(o state.Object) bool {
	refs := o.GetOwnerReferences()
	if len(refs) == 0 {
		return false
	}
	solid := slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool { return !p.lives(o, r) })
	switch {
	case len(solid) == len(refs):
		return false
	case len(solid) == 0:
		return p.removeObject(o, fmt.Sprintf("delete %s: its owner %s %s is gone", state.Display(o), refs[0].Kind, refs[0].Name))
	}
	o = o.DeepCopyObject().(state.Object)
	o.SetOwnerReferences(solid)
	p.do(state.Put(o, fmt.Sprintf("update %s: one of its owners is gone", state.Display(o))))
	return true
}

// lives tells whether an owner of an object is there.
func (p *pass) lives(o state.Object, r metav1.OwnerReference) bool {
	if !keeps(r) || outside(o, state.KindNamed(r.Kind)) {
		return true // of a kind that the hub does not know, or where nobody can look it up: not ours to judge
	}
	owner := p.s.ByUID(r.UID)
	return owner != nil && (owner.GetNamespace() == "" || owner.GetNamespace() == o.GetNamespace())
}

// kept tells whether an object has an owner that lives and does not wait for its
// dependents to go.
func (p *pass) kept(o state.Object) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		owner := p.s.ByUID(r.UID)
		return p.lives(o, r) && (owner == nil || owner.GetDeletionTimestamp() == nil || !slices.Contains(owner.GetFinalizers(), metav1.FinalizerDeleteDependents))
	})
}

// keeps tells whether a reference is to a kind that the hub keeps: others have kinds of such
// names, too, as the Service of Knative.
func keeps(r metav1.OwnerReference) bool {
	k := state.KindNamed(r.Kind)
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	return k != "" && err == nil && gv.Group == k.GroupVersionKind().Group
}

// outside tells whether an object is in no namespace and its owner, of that kind, in one: in
// which, its reference does not say. With Kubernetes, too, nothing goes with such an owner.
func outside(o state.Object, owner state.Kind) bool {
	return o.GetNamespace() == "" && owner.Namespaced()
}

// dependentsGone deletes what depends on an object that goes in the foreground,
// and tells whether nothing is left of it that blocks. What another owner keeps is let go.
func (p *pass) dependentsGone(o state.Object) bool {
	gone := true
	var rest []state.Object
	for d := range p.s.Dependents(o.GetUID()) {
		if !outside(d, state.KindOf(o)) {
			rest = append(rest, d)
		}
	}
	for _, d := range rest {
		if p.kept(d) {
			p.do(state.Put(release(d, o), fmt.Sprintf("keep %s: its owner %s is deleted, another is not", state.Display(d), o.GetName())))
			continue
		}
		if d.GetDeletionTimestamp() == nil {
			p.deleteForeground(d, fmt.Sprintf("delete %s: its owner %s is deleted", state.Display(d), o.GetName()))
		}
		if p.s.Get(state.KeyOf(d)) == nil {
			continue
		}
		if blocks(d, o) && !p.waitsFor(d, o, map[types.UID]bool{}) {
			gone = false
		}
	}
	return gone
}

// blocks tells whether an owner that goes in the foreground has to wait for a dependent.
func blocks(dependent, owner state.Object) bool {
	return slices.ContainsFunc(dependent.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		return r.UID == owner.GetUID() && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
	})
}

// waitsFor tells whether an object that goes in the foreground waits for another one, over however many others. Where
// that one waits for it, too, their owners are a circle, in which all would wait for ever.
func (p *pass) waitsFor(o, other state.Object, seen map[types.UID]bool) bool {
	if seen[o.GetUID()] || o.GetDeletionTimestamp() == nil || !slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents) {
		return false
	}
	seen[o.GetUID()] = true
	for d := range p.s.Dependents(o.GetUID()) {
		if blocks(d, o) && (d.GetUID() == other.GetUID() || p.waitsFor(d, other, seen)) {
			return true
		}
	}
	return false
}

// deleteForeground deletes an object after its own dependents.
func (p *pass) deleteForeground(o state.Object, why string) {
	for range p.s.Dependents(o.GetUID()) {
		o = o.DeepCopyObject().(state.Object)
		o.SetFinalizers(append(o.GetFinalizers(), metav1.FinalizerDeleteDependents))
		break
	}
	p.removeObject(o, why)
}

// removeObject deletes an object as the API would: a pod gets its grace, a namespace is emptied,
// and one with finalizers waits for them. It says whether it did anything.
func (p *pass) removeObject(o state.Object, why string) bool {
	ns, isNamespace := o.(*corev1.Namespace)
	switch pod, isPod := o.(*corev1.Pod); {
	case isNamespace && (o.GetDeletionTimestamp() != nil || state.Immortal(o.GetName())):
		return false
	case isNamespace:
		ns, at := ns.DeepCopy(), p.stamp()
		ns.DeletionTimestamp, ns.Status.Phase = &at, corev1.NamespaceTerminating
		p.do(state.Put(ns, why)) // see emptyNamespace
	case isPod:
		if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) > 0 {
			return false
		}
		if o.GetDeletionTimestamp() != nil && pod.Spec.NodeName != "" && !state.Terminated(pod) {
			return false
		}
		c, ok := state.Delete(pod, p.now, nil, why)
		if !ok {
			return false
		}
		p.do(c)
	case len(o.GetFinalizers()) == 0:
		p.do(state.Remove(o, why))
	case o.GetDeletionTimestamp() == nil:
		o = o.DeepCopyObject().(state.Object)
		at := p.stamp()
		o.SetDeletionTimestamp(&at)
		p.do(state.Put(o, why))
	default:
		return false
	}
	return true
}

// dropFinalizer takes a finalizer off; an object that is being deleted and has no
// other goes with it, but for a pod that runs and a namespace: see emptyNamespace.
func (p *pass) dropFinalizer(o state.Object, name string) {
	left := o.DeepCopyObject().(state.Object)
	left.SetFinalizers(slices.DeleteFunc(left.GetFinalizers(), func(f string) bool { return f == name }))
	if !state.Released(left) || state.KindOf(o) == state.Namespaces {
		p.do(state.Put(left, ""))
		return
	}
	p.do(state.Remove(o, fmt.Sprintf("remove %s %s: its dependents are gone", state.KindOf(o), state.Display(o))))
}
