package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// collect removes objects that are no longer needed.
func (p *pass) collect(w *work) {
	for _, k := range w.nodes.sorted() {
		p.node(k)
	}
	for _, k := range w.lost.sorted() {
		p.lost(k)
	}
	for _, k := range w.check.sorted() {
		if o := p.s.Get(k); o != nil {
			p.checkObject(o)
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

// checkObject checks whether the owners of an object exist and, if it is being deleted, whether it
// can be removed.
func (p *pass) checkObject(o state.Object) {
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
			p.do(state.Put(release(d, o),
				fmt.Sprintf("keep %s: %s is deleted without its dependents", state.Display(d), state.Display(o))))
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
		p.do(state.Remove(o, fmt.Sprintf("remove %s %s: its last finalizer is gone", state.KindOf(o), state.Display(o))))
	}
}

// dropOwners deletes an object if none of its owners exists; if some exist, it removes the
// references to the missing ones. It reports whether it changed anything.
func (p *pass) dropOwners(o state.Object) bool {
	refs := o.GetOwnerReferences()
	if len(refs) == 0 {
		return false
	}
	solid := slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool { return !p.ownerExists(o, r) })
	switch {
	case len(solid) == len(refs):
		return false
	case len(solid) == 0:
		return p.removeObject(o, fmt.Sprintf("delete %s: its owner %s %s is gone", state.Display(o), refs[0].Kind,
			refs[0].Name))
	}
	o = o.DeepCopyObject().(state.Object)
	o.SetOwnerReferences(solid)
	p.do(state.Put(o, fmt.Sprintf("update %s: one of its owners is gone", state.Display(o))))
	return true
}

// ownerExists reports whether an owner exists.
func (p *pass) ownerExists(o state.Object, r metav1.OwnerReference) bool {
	if !ownKind(r) || crossScope(o, state.KindNamed(r.Kind)) {
		return true // the kind is unknown or the reference cannot be resolved: assume that the owner exists
	}
	owner := p.s.ByUID(r.UID)
	return owner != nil && (owner.GetNamespace() == "" || owner.GetNamespace() == o.GetNamespace())
}

// hasOwner reports whether an object has an owner that exists and is not being deleted in the
// foreground.
func (p *pass) hasOwner(o state.Object) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		owner := p.s.ByUID(r.UID)
		return p.ownerExists(o, r) && (owner == nil || owner.GetDeletionTimestamp() == nil ||
			!slices.Contains(owner.GetFinalizers(), metav1.FinalizerDeleteDependents))
	})
}

// ownKind reports whether a reference is to a kind of this hub. Other API groups may use the same
// kind name, for example Knative's Service.
func ownKind(r metav1.OwnerReference) bool {
	k := state.KindNamed(r.Kind)
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	return k != "" && err == nil && gv.Group == k.GroupVersionKind().Group
}

// crossScope reports whether a cluster-scoped object names an owner of a namespaced kind. The
// reference has no namespace, so the object stays, as in Kubernetes.
func crossScope(o state.Object, owner state.Kind) bool {
	return o.GetNamespace() == "" && owner.Namespaced()
}

// dependentsGone deletes the dependents of an object in foreground deletion, and reports whether no
// blocking dependent is left. A dependent that has another owner is kept and loses the reference.
func (p *pass) dependentsGone(o state.Object) bool {
	gone := true
	var rest []state.Object
	for d := range p.s.Dependents(o.GetUID()) {
		if !crossScope(d, state.KindOf(o)) {
			rest = append(rest, d)
		}
	}
	for _, d := range rest {
		if p.hasOwner(d) {
			p.do(state.Put(release(d, o),
				fmt.Sprintf("keep %s: its owner %s is deleted, but another owner exists", state.Display(d), o.GetName())))
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

// blocks reports whether a dependent blocks its owner's foreground deletion.
func blocks(dependent, owner state.Object) bool {
	return slices.ContainsFunc(dependent.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		return r.UID == owner.GetUID() && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
	})
}

// waitsFor reports whether an object in foreground deletion waits for another object, directly or
// through others. If each waits for the other, their owner references are a cycle, and the deletion
// would never end.
func (p *pass) waitsFor(o, other state.Object, seen map[types.UID]bool) bool {
	if seen[o.GetUID()] || o.GetDeletionTimestamp() == nil ||
		!slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents) {
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

// removeObject deletes an object as the API does: a pod gets its grace period, a namespace is
// emptied first, and finalizers delay the removal. It reports whether it changed anything.
func (p *pass) removeObject(o state.Object, why string) bool {
	ns, isNamespace := o.(*corev1.Namespace)
	switch pod, isPod := o.(*corev1.Pod); {
	case isNamespace && (o.GetDeletionTimestamp() != nil || state.IsBuiltInNamespace(o.GetName())):
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

// dropFinalizer removes a finalizer. If an object that is being deleted has no other finalizer it
// is removed, except for a running pod and a namespace (see emptyNamespace).
func (p *pass) dropFinalizer(o state.Object, name string) {
	left := o.DeepCopyObject().(state.Object)
	left.SetFinalizers(slices.DeleteFunc(left.GetFinalizers(), func(f string) bool { return f == name }))
	if !state.Released(left) || state.KindOf(o) == state.Namespaces {
		p.do(state.Put(left, ""))
		return
	}
	p.do(state.Remove(o, fmt.Sprintf("remove %s %s: its dependents are gone", state.KindOf(o), state.Display(o))))
}

// emptyNamespace deletes the content of a terminating namespace, then the namespace. Pods are
// deleted first (KEP-5080), so that running pods keep their configuration and access rules. Events
// are deleted last.
func (p *pass) emptyNamespace(k state.Key) {
	ns, ok := p.s.Get(k).(*corev1.Namespace)
	if !ok || ns.DeletionTimestamp == nil {
		return
	}
	if left := p.emptyOf(ns, state.Pods); len(left) > 0 {
		p.setRemaining(ns, left)
		return
	}
	var rest []state.Kind
	for _, kind := range state.Kinds() {
		if kind.Namespaced() && kind != state.Pods && kind != state.Events {
			rest = append(rest, kind)
		}
	}
	if left := p.emptyOf(ns, rest...); len(left) > 0 {
		p.setRemaining(ns, left)
		return
	}
	var events []state.Object
	for e := range p.s.All(state.Events, ns.Name) {
		events = append(events, e)
	}
	for _, e := range events {
		p.do(state.Remove(e, ""))
	}
	held := slices.DeleteFunc(slices.Clone(ns.Spec.Finalizers), func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	if len(ns.Finalizers)+len(held) == 0 {
		p.do(state.Remove(ns, fmt.Sprintf("remove namespace %s: it is empty", ns.Name)))
	} else if len(held) < len(ns.Spec.Finalizers) {
		ns = ns.DeepCopy()
		ns.Spec.Finalizers = held
		conditions(&ns.Status, nil, p)
		p.do(state.Put(ns, ""))
	}
}

// emptyOf deletes the objects of some kinds in a namespace, and returns those that wait for a
// device or a finalizer.
func (p *pass) emptyOf(ns *corev1.Namespace, kinds ...state.Kind) (left []state.Object) {
	var all []state.Object
	for _, kind := range kinds {
		for o := range p.s.All(kind, ns.Name) {
			all = append(all, o)
		}
	}
	for _, o := range all {
		p.removeObject(o, fmt.Sprintf("delete %s: its namespace is deleted", state.Display(o)))
	}
	for _, o := range all {
		if o = p.s.Get(state.KeyOf(o)); o != nil {
			left = append(left, o)
		}
	}
	return left
}

// setRemaining writes the objects that a namespace waits for into its conditions.
func (p *pass) setRemaining(ns *corev1.Namespace, left []state.Object) {
	ns = ns.DeepCopy()
	if conditions(&ns.Status, left, p) {
		p.do(state.Put(ns, ""))
	}
}

// conditions sets the conditions of Kubernetes' namespace controller with its messages. It reports
// whether a condition has changed.
func conditions(st *corev1.NamespaceStatus, left []state.Object, p *pass) (changed bool) {
	kinds, finalizers := map[string]int{}, map[string]int{}
	for _, o := range left {
		gvk := state.KindOf(o).GroupVersionKind()
		kinds[fmt.Sprintf("%s.%s", state.KindOf(o), gvk.Group)]++
		for _, f := range o.GetFinalizers() {
			finalizers[f]++
		}
	}
	set := func(c corev1.NamespaceCondition) {
		i := slices.IndexFunc(st.Conditions, func(was corev1.NamespaceCondition) bool { return was.Type == c.Type })
		if i < 0 {
			i = len(st.Conditions)
			st.Conditions = append(st.Conditions, corev1.NamespaceCondition{Type: c.Type})
		}
		was := &st.Conditions[i]
		if was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message {
			return
		}
		c.LastTransitionTime = was.LastTransitionTime
		if was.Status != c.Status {
			c.LastTransitionTime = p.stamp()
		}
		*was, changed = c, true
	}
	set(corev1.NamespaceCondition{Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionFalse,
		Reason: "ResourcesDiscovered", Message: "All resources successfully discovered"})
	set(corev1.NamespaceCondition{Type: corev1.NamespaceDeletionGVParsingFailure, Status: corev1.ConditionFalse,
		Reason: "ParsedGroupVersions", Message: "All legacy kube types successfully parsed"})
	set(corev1.NamespaceCondition{Type: corev1.NamespaceDeletionContentFailure, Status: corev1.ConditionFalse,
		Reason: "ContentDeleted", Message: "All content successfully deleted, may be waiting on finalization"})
	content := corev1.NamespaceCondition{Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionFalse,
		Reason: "ContentRemoved", Message: "All content successfully removed"}
	if len(kinds) > 0 {
		content.Status, content.Reason = corev1.ConditionTrue, "SomeResourcesRemain"
		content.Message = "Some resources are remaining: " + counted(kinds, "%s has %d resource instances")
	}
	set(content)
	held := corev1.NamespaceCondition{Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionFalse,
		Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished"}
	if len(finalizers) > 0 {
		held.Status, held.Reason = corev1.ConditionTrue, "SomeFinalizersRemain"
		held.Message = "Some content in the namespace has finalizers remaining: " +
			counted(finalizers, "%s in %d resource instances")
	}
	set(held)
	return changed
}

// counted formats names with their counts, sorted by name.
func counted(of map[string]int, format string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf(format, name, of[name]))
	}
	return strings.Join(out, ", ")
}
