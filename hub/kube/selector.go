package kube

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"flotilla.dev/hub/state"
)

// A selected is which objects of a kind a list or watch is about.
type selected struct {
	kind      state.Kind
	namespace string // "" for all
	labels    labels.Selector
	fields    fields.Requirements
}

// selectors are the field labels that can be selected by, beside name and
// namespace, for each kind.
var selectors = map[state.Kind]map[string]func(state.Object) string{
	state.Nodes: {
		"spec.unschedulable": func(o state.Object) string { return strconv.FormatBool(o.(*corev1.Node).Spec.Unschedulable) },
	},
	state.Namespaces: {
		"status.phase": func(o state.Object) string { return string(o.(*corev1.Namespace).Status.Phase) },
	},
	state.Secrets: {
		"type": func(o state.Object) string { return string(o.(*corev1.Secret).Type) },
	},
	state.Pods:   podFields,
	state.Events: eventFields,
}

func podField(f func(*corev1.Pod) string) func(state.Object) string {
	return func(o state.Object) string { return f(o.(*corev1.Pod)) }
}

var podFields = map[string]func(state.Object) string{
	"spec.nodeName":           podField(func(p *corev1.Pod) string { return p.Spec.NodeName }),
	"spec.restartPolicy":      podField(func(p *corev1.Pod) string { return string(p.Spec.RestartPolicy) }),
	"spec.schedulerName":      podField(func(p *corev1.Pod) string { return p.Spec.SchedulerName }),
	"spec.serviceAccountName": podField(func(p *corev1.Pod) string { return p.Spec.ServiceAccountName }),
	"spec.hostNetwork":        podField(func(p *corev1.Pod) string { return strconv.FormatBool(p.Spec.HostNetwork) }),
	"status.phase":            podField(func(p *corev1.Pod) string { return string(p.Status.Phase) }),
	"status.podIP":            podField(func(p *corev1.Pod) string { return p.Status.PodIP }),
	"status.nominatedNodeName": podField(func(p *corev1.Pod) string {
		return p.Status.NominatedNodeName
	}),
}

func eventField(f func(*corev1.Event) string) func(state.Object) string {
	return func(o state.Object) string { return f(o.(*corev1.Event)) }
}

var eventFields = func() map[string]func(state.Object) string {
	m := map[string]func(state.Object) string{
		"reason": eventField(func(e *corev1.Event) string { return e.Reason }),
		"type":   eventField(func(e *corev1.Event) string { return e.Type }),
		"source": eventField(func(e *corev1.Event) string {
			if e.Source.Component != "" {
				return e.Source.Component
			}
			return e.ReportingController
		}),
		"reportingComponent": eventField(func(e *corev1.Event) string { return e.ReportingController }),
	}
	for name, f := range map[string]func(*corev1.ObjectReference) string{
		"kind":            func(r *corev1.ObjectReference) string { return r.Kind },
		"namespace":       func(r *corev1.ObjectReference) string { return r.Namespace },
		"name":            func(r *corev1.ObjectReference) string { return r.Name },
		"uid":             func(r *corev1.ObjectReference) string { return string(r.UID) },
		"apiVersion":      func(r *corev1.ObjectReference) string { return r.APIVersion },
		"resourceVersion": func(r *corev1.ObjectReference) string { return r.ResourceVersion },
		"fieldPath":       func(r *corev1.ObjectReference) string { return r.FieldPath },
	} {
		m["involvedObject."+name] = eventField(func(e *corev1.Event) string { return f(&e.InvolvedObject) })
	}
	return m
}()

// newEventField says how events call a field that events.k8s.io calls so.
func newEventField(name, value string) (string, string, error) {
	about, isAbout := strings.CutPrefix(name, "regarding.")
	switch {
	case isAbout:
		return "involvedObject." + about, value, nil
	case name == "reportingController":
		return "reportingComponent", value, nil
	case name == "reportingComponent", name == "source", strings.HasPrefix(name, "involvedObject."):
		return "", "", apierrors.NewBadRequest("field label not supported: " + name)
	}
	return name, value, nil
}

// newSelected checks what a client selects by.
func newSelected(kind state.Kind, namespace string, l labels.Selector, f fields.Selector) (*selected, error) {
	s := &selected{kind: kind, namespace: namespace, labels: labels.Everything()}
	if l != nil {
		s.labels = l
	}
	if f != nil {
		s.fields = f.Requirements()
	}
	for _, r := range s.fields {
		if r.Field == "metadata.name" || r.Field == "metadata.namespace" && kind.Namespaced() {
			continue
		}
		if selectors[kind][r.Field] == nil {
			return nil, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	return s, nil
}

// any tells whether the selection is of all objects in its namespace.
func (s *selected) any() bool { return s.labels.Empty() && len(s.fields) == 0 }

// matches tells whether an object is selected.
func (s *selected) matches(o state.Object) bool {
	if s.namespace != "" && o.GetNamespace() != s.namespace {
		return false
	}
	for _, r := range s.fields {
		var have string
		switch r.Field {
		case "metadata.name":
			have = o.GetName()
		case "metadata.namespace":
			have = o.GetNamespace()
		default:
			have = selectors[s.kind][r.Field](o)
		}
		if (have == r.Value) == (r.Operator == selection.NotEquals) {
			return false
		}
	}
	return s.labels.Empty() || s.labels.Matches(labels.Set(o.GetLabels()))
}

// exactly returns the one value that a field must have, if there is such.
func (s *selected) exactly(field string) (string, bool) {
	for _, r := range s.fields {
		if r.Field == field && r.Operator != selection.NotEquals {
			return r.Value, true
		}
	}
	return "", false
}

// walk yields what is selected, in the order of namespace and name, beginning
// behind the object named.
func (c *call) walk(snap state.Snapshot, sel *selected, afterNamespace, afterName string) iter.Seq[state.Object] {
	return func(yield func(state.Object) bool) {
		for o := range c.candidates(snap, sel, afterNamespace, afterName) {
			if sel.matches(o) && !yield(o) {
				return
			}
		}
	}
}

// candidates narrows the walk down by what the snapshot has an index of.
func (c *call) candidates(snap state.Snapshot, sel *selected, afterNamespace, afterName string) iter.Seq[state.Object] {
	behind := func(o state.Object) bool {
		if n := strings.Compare(o.GetNamespace(), afterNamespace); n != 0 || afterName == "" {
			return n >= 0
		}
		return o.GetName() > afterName
	}
	if empty(sel.kind) {
		return func(func(state.Object) bool) {}
	}
	if sel.kind == state.Leases {
		return slices.Values(slices.DeleteFunc(c.leases(snap, sel.namespace), func(o state.Object) bool { return !behind(o) }))
	}
	if name, ok := sel.exactly("metadata.name"); ok && (sel.namespace != "" || !sel.kind.Namespaced()) {
		return func(yield func(state.Object) bool) {
			if o := snap.Get(state.Key{Kind: sel.kind, Namespace: sel.namespace, Name: name}); o != nil && behind(o) {
				yield(o)
			}
		}
	}
	if node, ok := sel.exactly("spec.nodeName"); ok && sel.kind == state.Pods {
		return func(yield func(state.Object) bool) {
			for p := range snap.PodsOn(node) {
				if behind(p) && !yield(p) {
					return
				}
			}
		}
	}
	return snap.From(sel.kind, sel.namespace, afterNamespace, afterName)
}
