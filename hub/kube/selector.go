package kube

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
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

// fieldsOf are what objects of a kind can be selected by, beside name and namespace.
func fieldsOf(k state.Kind) map[string]func(state.Object) string {
	if r := k.Row(); r != nil {
		return r.Fields
	}
	return nil
}

// fieldNames says what fields are called that are asked for by another name, nil: there are no other names.
func (c *call) fieldNames(kind state.Kind) fields.TransformFunc {
	switch {
	case kind == state.Pods:
		return podField
	case kind == state.Events && c.res.Group == eventsv1.GroupName:
		return newEventField
	}
	return nil
}

// podField says how a field of pods is called that had another name before v1.
func podField(name, value string) (string, string, error) {
	if name == "spec.host" {
		name = "spec.nodeName"
	}
	return name, value, nil
}

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

// maxRequirements is how many requirements, and values of theirs, a selector may have:
// each is held against each object, for each change again where it is watched.
const maxRequirements = 256

func tooMany(what string, n int) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the %s has %d requirements and values, at most %d are taken: select by fewer, or by another label", what, n, maxRequirements))
}

// newSelected checks what a client selects by.
func newSelected(kind state.Kind, namespace string, l labels.Selector, f fields.Selector) (*selected, error) {
	s := &selected{kind: kind, namespace: namespace, labels: labels.Everything()}
	if l != nil {
		s.labels = l
		rs, _ := l.Requirements()
		n := len(rs)
		for _, r := range rs {
			n += max(len(r.ValuesUnsorted())-1, 0)
		}
		if n > maxRequirements {
			return nil, tooMany("labelSelector", n)
		}
	}
	if f != nil {
		if s.fields = f.Requirements(); len(s.fields) > maxRequirements {
			return nil, tooMany("fieldSelector", len(s.fields))
		}
	}
	for _, r := range s.fields {
		if r.Field == "metadata.name" || r.Field == "metadata.namespace" && kind.Namespaced() {
			continue
		}
		if fieldsOf(kind)[r.Field] == nil {
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
			have = fieldsOf(s.kind)[r.Field](o)
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
	if sel.kind.Row() == nil {
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
