package resource

import (
	"fmt"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"flotilla.dev/hub/state"
)

// A Selection is the objects of a kind that a list or a watch selects.
type Selection struct {
	Kind      state.Kind
	Namespace string // "" for all namespaces
	labels    labels.Selector
	fields    fields.Requirements
}

// fieldsOf returns a kind's selectable fields except name and namespace.
func fieldsOf(k state.Kind) map[string]func(state.Object) string {
	if r := k.Row(); r != nil {
		return r.Fields
	}
	return nil
}

// FieldNames returns the function that translates old or other names of fields, or nil.
func (r *Resource) FieldNames(kind state.Kind) fields.TransformFunc {
	switch {
	case kind == state.Pods:
		return podField
	case kind == state.Events && r.Group == eventsv1.GroupName:
		return newEventField
	}
	return nil
}

// podField translates a pod field's name that is older than v1.
func podField(name, value string) (string, string, error) {
	if name == "spec.host" {
		name = "spec.nodeName"
	}
	return name, value, nil
}

// newEventField translates a field of events.k8s.io to the field of v1.
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

// maxRequirements limits a selector's requirements and values, because each is checked against each
// object, and in a watch against each change.
const maxRequirements = 256

func tooMany(what string, n int) error {
	return apierrors.NewBadRequest(fmt.Sprintf(
		"the %s has %d requirements and values; the limit is %d: use fewer, or another label", what, n,
		maxRequirements))
}

// NewSelection checks a client's selectors.
func NewSelection(kind state.Kind, namespace string, l labels.Selector, f fields.Selector) (*Selection, error) {
	s := &Selection{Kind: kind, Namespace: namespace, labels: labels.Everything()}
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

// All tells whether all objects of the namespace are selected.
func (s *Selection) All() bool { return s.labels.Empty() && len(s.fields) == 0 }

// Matches tells whether an object is selected.
func (s *Selection) Matches(o state.Object) bool {
	if s.Namespace != "" && o.GetNamespace() != s.Namespace {
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
			have = fieldsOf(s.Kind)[r.Field](o)
		}
		if (have == r.Value) == (r.Operator == selection.NotEquals) {
			return false
		}
	}
	return s.labels.Empty() || s.labels.Matches(labels.Set(o.GetLabels()))
}

// exactly returns the only value that a field may have, if there is one.
func (s *Selection) exactly(field string) (string, bool) {
	for _, r := range s.fields {
		if r.Field == field && r.Operator != selection.NotEquals {
			return r.Value, true
		}
	}
	return "", false
}
