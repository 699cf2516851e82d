package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// emptyNamespace deletes all that is in a namespace that is being deleted, and then
// the namespace. Its pods go first (KEP-5080): what they use, and what keeps them from
// strangers, is there as long as they run. Its events go last: they tell what happened.
func (p *pass) emptyNamespace(k state.Key) {
	ns, ok := p.s.Get(k).(*corev1.Namespace)
	if !ok || ns.DeletionTimestamp == nil {
		return
	}
	if left := p.emptyOf(ns, state.Pods); len(left) > 0 {
		p.sayLeft(ns, left)
		return
	}
	var rest []state.Kind
	for _, kind := range state.Kinds() {
		if kind.Namespaced() && kind != state.Pods && kind != state.Events {
			rest = append(rest, kind)
		}
	}
	if left := p.emptyOf(ns, rest...); len(left) > 0 {
		p.sayLeft(ns, left)
		return
	}
	var events []state.Object
	for e := range p.s.All(state.Events, ns.Name) {
		events = append(events, e)
	}
	for _, e := range events {
		p.do(state.Remove(e, ""))
	}
	held := slices.DeleteFunc(slices.Clone(ns.Spec.Finalizers), func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if len(ns.Finalizers)+len(held) == 0 {
		p.do(state.Remove(ns, fmt.Sprintf("remove namespace %s: it is empty", ns.Name)))
	} else if len(held) < len(ns.Spec.Finalizers) {
		ns = ns.DeepCopy()
		ns.Spec.Finalizers = held
		conditions(&ns.Status, nil, p)
		p.do(state.Put(ns, ""))
	}
}

// emptyOf deletes the objects of some kinds in a namespace, and returns those that wait
// for something: a device, or a finalizer.
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

// sayLeft writes into a namespace's conditions what it waits for.
func (p *pass) sayLeft(ns *corev1.Namespace, left []state.Object) {
	ns = ns.DeepCopy()
	if conditions(&ns.Status, left, p) {
		p.do(state.Put(ns, ""))
	}
}

// conditions sets the conditions that Kubernetes' namespace controller keeps, in its
// words, and tells whether that changed any.
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
	set(corev1.NamespaceCondition{Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionFalse, Reason: "ResourcesDiscovered", Message: "All resources successfully discovered"})
	set(corev1.NamespaceCondition{Type: corev1.NamespaceDeletionGVParsingFailure, Status: corev1.ConditionFalse, Reason: "ParsedGroupVersions", Message: "All legacy kube types successfully parsed"})
	set(corev1.NamespaceCondition{Type: corev1.NamespaceDeletionContentFailure, Status: corev1.ConditionFalse, Reason: "ContentDeleted", Message: "All content successfully deleted, may be waiting on finalization"})
	content := corev1.NamespaceCondition{Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionFalse, Reason: "ContentRemoved", Message: "All content successfully removed"}
	if len(kinds) > 0 {
		content.Status, content.Reason = corev1.ConditionTrue, "SomeResourcesRemain"
		content.Message = "Some resources are remaining: " + counted(kinds, "%s has %d resource instances")
	}
	set(content)
	held := corev1.NamespaceCondition{Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionFalse, Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished"}
	if len(finalizers) > 0 {
		held.Status, held.Reason = corev1.ConditionTrue, "SomeFinalizersRemain"
		held.Message = "Some content in the namespace has finalizers remaining: " + counted(finalizers, "%s in %d resource instances")
	}
	set(held)
	return changed
}

// counted lists names with their counts, in order of the names.
func counted(of map[string]int, format string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf(format, name, of[name]))
	}
	return strings.Join(out, ", ")
}
