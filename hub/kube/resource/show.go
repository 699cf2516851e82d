package resource

import (
	"reflect"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/state"
)

// Shallow returns a copy of an object whose own fields can be set. The values behind its pointers
// are shared with the original.
func Shallow(o state.Object) state.Object {
	v := reflect.New(reflect.TypeOf(o).Elem())
	v.Elem().Set(reflect.ValueOf(o).Elem())
	return v.Interface().(state.Object)
}

// Show returns an object in its resource's version, with its kind set.
func (r *Resource) Show(o state.Object) runtime.Object {
	if e, ok := o.(*corev1.Event); ok && r.Group == eventsv1.GroupName {
		return newEvent(e)
	}
	o = Shallow(o)
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind)
	return o
}

// Take returns an object in its stored version; it is the inverse of Show. ok is false if the kind
// is not stored.
func Take(o runtime.Object) (state.Object, bool) {
	if e, ok := o.(*eventsv1.Event); ok {
		return oldEvent(e), true
	}
	obj, ok := o.(state.Object)
	return obj, ok && state.KindOf(obj) != ""
}

// oldEvent converts an event of events.k8s.io to a v1 event, which is the stored version.
func oldEvent(e *eventsv1.Event) *corev1.Event {
	out := &corev1.Event{
		TypeMeta: e.TypeMeta, ObjectMeta: e.ObjectMeta, EventTime: e.EventTime,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, InvolvedObject: e.Regarding, Related: e.Related, Message: e.Note, Type: e.Type,
		Source: e.DeprecatedSource, FirstTimestamp: e.DeprecatedFirstTimestamp, LastTimestamp: e.DeprecatedLastTimestamp,
		Count: e.DeprecatedCount,
	}
	if e.Series != nil {
		out.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}

// newEvent converts a v1 event to an event of events.k8s.io.
func newEvent(e *corev1.Event) *eventsv1.Event {
	out := &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{Kind: "Event", APIVersion: eventsv1.SchemeGroupVersion.String()},
		ObjectMeta: e.ObjectMeta, EventTime: e.EventTime,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, Regarding: e.InvolvedObject, Related: e.Related, Note: e.Message, Type: e.Type,
		DeprecatedSource: e.Source, DeprecatedFirstTimestamp: e.FirstTimestamp, DeprecatedLastTimestamp: e.LastTimestamp,
		DeprecatedCount: e.Count,
	}
	if e.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}

// partial returns only an object's metadata.
func partial(o state.Object) *metav1.PartialObjectMetadata {
	m := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()},
		ObjectMeta: *m,
	}
}

// Versioned sets the requested version of meta.k8s.io on tables and partial objects. The older
// version has another name and, for lists, other field numbers in protobuf.
func (f Form) Versioned(o runtime.Object) runtime.Object {
	if !f.Old {
		return o
	}
	kind := func(name string) schema.GroupVersionKind { return metav1beta1.SchemeGroupVersion.WithKind(name) }
	switch o := o.(type) {
	case *metav1.Table:
		o.SetGroupVersionKind(kind(o.Kind))
		for _, r := range o.Rows {
			if p, ok := r.Object.Object.(*metav1.PartialObjectMetadata); ok {
				p.SetGroupVersionKind(kind(p.Kind))
			}
		}
	case *metav1.PartialObjectMetadata:
		o.SetGroupVersionKind(kind(o.Kind))
	case *metav1.PartialObjectMetadataList:
		list := &metav1beta1.PartialObjectMetadataList{TypeMeta: o.TypeMeta, ListMeta: o.ListMeta, Items: o.Items}
		list.SetGroupVersionKind(kind(o.Kind))
		for i := range o.Items {
			o.Items[i].SetGroupVersionKind(kind(o.Items[i].Kind))
		}
		return list
	}
	return o
}

// FormatRev formats a revision as resourceVersion.
func FormatRev(rev uint64) string { return strconv.FormatUint(rev, 10) }
