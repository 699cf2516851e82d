package kube

import (
	"reflect"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// shallow returns a copy of an object whose own fields can be set; what they
// point to is shared with the original.
func shallow(o state.Object) state.Object {
	v := reflect.New(reflect.TypeOf(o).Elem())
	v.Elem().Set(reflect.ValueOf(o).Elem())
	return v.Interface().(state.Object)
}

// show returns an object as its resource's version shows it, with its kind set.
func (r *resource) show(o state.Object) runtime.Object {
	if e, ok := o.(*corev1.Event); ok && r.Group == eventsv1.GroupName {
		return newEvent(e)
	}
	o = shallow(o)
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind)
	return o
}

// take returns an object as it is kept; it is the inverse of show. What is not
// kept is not ok.
func take(o runtime.Object) (state.Object, bool) {
	if e, ok := o.(*eventsv1.Event); ok {
		return oldEvent(e), true
	}
	obj, ok := o.(state.Object)
	return obj, ok && state.KindOf(obj) != ""
}

// oldEvent is an event of events.k8s.io in the shape in which events are kept.
func oldEvent(e *eventsv1.Event) *corev1.Event {
	out := &corev1.Event{
		TypeMeta: e.TypeMeta, ObjectMeta: e.ObjectMeta, EventTime: e.EventTime,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, InvolvedObject: e.Regarding, Related: e.Related, Message: e.Note, Type: e.Type,
		Source: e.DeprecatedSource, FirstTimestamp: e.DeprecatedFirstTimestamp, LastTimestamp: e.DeprecatedLastTimestamp, Count: e.DeprecatedCount,
	}
	if e.Series != nil {
		out.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}

// newEvent is an event in the shape of events.k8s.io.
func newEvent(e *corev1.Event) *eventsv1.Event {
	out := &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{Kind: "Event", APIVersion: eventsv1.SchemeGroupVersion.String()},
		ObjectMeta: e.ObjectMeta, EventTime: e.EventTime,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, Regarding: e.InvolvedObject, Related: e.Related, Note: e.Message, Type: e.Type,
		DeprecatedSource: e.Source, DeprecatedFirstTimestamp: e.FirstTimestamp, DeprecatedLastTimestamp: e.LastTimestamp, DeprecatedCount: e.Count,
	}
	if e.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return out
}

// partial returns an object's metadata alone.
func partial(o state.Object) *metav1.PartialObjectMetadata {
	m := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()},
		ObjectMeta: *m,
	}
}

// one returns an object in the form that is asked for.
func (c *call) one(o state.Object, f form, headers bool) runtime.Object {
	switch f.as {
	case "Table":
		t := c.table([]state.Object{o}, f, headers)
		t.ResourceVersion = o.GetResourceVersion()
		return f.versioned(t)
	case "PartialObjectMetadata":
		return f.versioned(partial(o))
	}
	return c.shown(o)
}

// versioned says of what is not an object itself that it is of the version of
// meta.k8s.io that is asked for, the older of which is the same but for its name and, of
// lists, its numbers in protobuf.
func (f form) versioned(o runtime.Object) runtime.Object {
	if !f.old {
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

// many returns a list in the form that is asked for.
func (c *call) many(objs []state.Object, f form, m metav1.ListMeta) (runtime.Object, error) {
	switch f.as {
	case "Table":
		t := c.table(objs, f, true)
		t.ListMeta = m
		return f.versioned(t), nil
	case "PartialObjectMetadataList":
		list := &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: f.as, APIVersion: metav1.SchemeGroupVersion.String()}, ListMeta: m,
			Items: make([]metav1.PartialObjectMetadata, 0, len(objs)),
		}
		for _, o := range objs {
			list.Items = append(list.Items, *partial(o)) // each with its kind, as Kubernetes does
		}
		return f.versioned(list), nil
	}
	if c.res.empty && c.res.plain { // whose types are not part of the hub
		return &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: c.res.Kind + "List", APIVersion: c.res.GroupVersion().String()}, ListMeta: m,
			Items: []metav1.PartialObjectMetadata{},
		}, nil
	}
	list, err := scheme.New(c.res.listKind())
	if err != nil {
		return nil, err
	}
	items := make([]runtime.Object, 0, len(objs))
	for _, o := range objs {
		item := c.shown(o)
		if c.res.plain {
			items = append(items, item) // as Kubernetes does for kinds of others
			continue
		}
		item.GetObjectKind().SetGroupVersionKind(noKind)
		items = append(items, item)
	}
	if err := meta.SetList(list, items); err != nil {
		return nil, err
	}
	list.GetObjectKind().SetGroupVersionKind(c.res.listKind())
	acc, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	acc.SetResourceVersion(m.ResourceVersion)
	acc.SetContinue(m.Continue)
	acc.SetRemainingItemCount(m.RemainingItemCount)
	return list, nil
}

// noKind is no kind at all: items of a list carry none.
var noKind = schema.GroupVersionKind{}

func (c *call) table(objs []state.Object, f form, headers bool) *metav1.Table {
	kind := c.res.kind
	return table.For(kind, objs, table.Options{
		Include: f.include, NoHeaders: !headers, Now: c.Now(), LastSeen: c.Leases.Seen,
		Object: c.shown,
	})
}

// shown returns an object as it is answered: show, and what the hub knows from
// memory alone.
func (c *call) shown(o state.Object) runtime.Object {
	if n, ok := o.(*corev1.Node); ok {
		o = beating(n, c.Leases.Seen(n.Name))
	}
	return c.res.show(o)
}

// beating gives the conditions that a device reports the heartbeat that they have: a
// device says at once what changes, so each sign of life says them once more. That
// is no change of the node, and is not remembered. The hub's own are as old as they
// are.
func beating(n *corev1.Node, seen time.Time) *corev1.Node {
	at := metav1.NewTime(seen.UTC().Truncate(time.Second))
	conditions := slices.Clone(n.Status.Conditions)
	for i := range conditions {
		switch c := &conditions[i]; c.Type {
		case fleet.ConditionFlapping, fleet.ConditionIdentityConflict, fleet.ConditionPodCIDRAvailable:
		default:
			if at.After(c.LastHeartbeatTime.Time) {
				c.LastHeartbeatTime = at
			}
		}
	}
	like := *n
	like.Status.Conditions = conditions
	return &like
}

func formatRev(rev uint64) string { return strconv.FormatUint(rev, 10) }
