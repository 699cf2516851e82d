package table

import (
	"cmp"
	"strings"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func init() {
	show(state.Namespaces, columns("Name Status Age"), namespaceCells)
	show(state.ConfigMaps, columns("Name Data Age"), configMapCells)
	show(state.Secrets, columns("Name Type Data Age"), secretCells)
	show(state.PriorityClasses, columns("Name Value(i) Global-Default(b) Age PreemptionPolicy"), priorityClassCells)
	show(state.Leases, columns("Name Holder Age"), leaseCells)
	show(state.Events, columns("Last Seen", "Type", "Reason", "Object", "(w)Subobject", "(w)Source", "Message",
		"(w)First Seen", "(w)Count", "(w)Name"), eventCells)
}

func namespaceCells(obj state.Object, o *Options) []any {
	n := obj.(*corev1.Namespace)
	return []any{n.Name, string(n.Status.Phase), age(n.CreationTimestamp, o)}
}

func configMapCells(obj state.Object, o *Options) []any {
	c := obj.(*corev1.ConfigMap)
	return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), age(c.CreationTimestamp, o)}
}

func secretCells(obj state.Object, o *Options) []any {
	s := obj.(*corev1.Secret)
	return []any{s.Name, string(s.Type), int64(len(s.Data)), age(s.CreationTimestamp, o)}
}

func priorityClassCells(obj state.Object, o *Options) []any {
	c := obj.(*schedulingv1.PriorityClass)
	policy := ""
	if c.PreemptionPolicy != nil {
		policy = string(*c.PreemptionPolicy)
	}
	return []any{c.Name, int64(c.Value), c.GlobalDefault, age(c.CreationTimestamp, o), policy}
}

func leaseCells(obj state.Object, o *Options) []any {
	l := obj.(*coordv1.Lease)
	holder := ""
	if l.Spec.HolderIdentity != nil {
		holder = *l.Spec.HolderIdentity
	}
	return []any{l.Name, holder, age(l.CreationTimestamp, o)}
}

// eventCells handles both generations of events: with first and last timestamps and a count, and
// with an event time and a series.
func eventCells(obj state.Object, o *Options) []any {
	e := obj.(*corev1.Event)
	first, count := e.FirstTimestamp.Time, e.Count
	if first.IsZero() {
		first = e.EventTime.Time
	}
	last := e.LastTimestamp.Time
	switch {
	case e.Series != nil:
		last, count = e.Series.LastObservedTime.Time, e.Series.Count
	case last.IsZero():
		last = first
	}
	if e.Series == nil && count == 0 {
		count = 1
	}
	object := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		object += "/" + e.InvolvedObject.Name
	}
	source := cmp.Or(e.Source.Component, e.ReportingController)
	if host := cmp.Or(e.Source.Host, e.ReportingInstance); host != "" {
		source += ", " + host
	}
	return []any{
		since(last, o), e.Type, e.Reason, object, e.InvolvedObject.FieldPath, source, strings.TrimSpace(e.Message),
		since(first, o), int64(count), e.Name,
	}
}

func until(t metav1.Time) string { return t.UTC().Format("2006-01-02T15:04Z") }
