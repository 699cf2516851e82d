package control

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// Component is the source of the hub's own events.
const Component = "flotilla-hub"

// events returns the changes that create Events about the changes done.
func events(s state.Snapshot, done []state.Applied, now time.Time) (changes []state.Change) {
	latest := map[string]*corev1.Event{} // events of this pass: equal events become one with a count
	for _, a := range done {
		c := a.Change
		if c.Reason == "" {
			continue
		}
		about := c.About
		if about == nil {
			about = c.Object
		}
		kind := corev1.EventTypeNormal
		if c.Warn {
			kind = corev1.EventTypeWarning
		}
		e := NewEvent(s, About(about),
			EventText{Type: kind, Reason: c.Reason, Message: cmp.Or(c.Message, c.Why), Component: c.Source}, now)
		if earlier, ok := latest[e.Namespace+"/"+e.Name]; ok {
			earlier.Count++
			continue
		}
		latest[e.Namespace+"/"+e.Name] = e
		changes = append(changes, trimEvents(s, e, now)...)
		changes = append(changes, state.Put(e, ""))
	}
	return changes
}

// AddEvent returns the changes that add an event and remove those beyond the limit.
func AddEvent(s state.Snapshot, ref corev1.ObjectReference, text EventText, now time.Time) []state.Change {
	e := NewEvent(s, ref, text, now)
	return append(trimEvents(s, e, now), state.Put(e, ""))
}

// EventText is the content of an event.
type EventText struct{ Type, Reason, Message, Component, Host string }

// About returns the object reference for an event.
func About(o state.Object) corev1.ObjectReference {
	version, kind := state.KindOf(o).GroupVersionKind().ToAPIVersionAndKind()
	return corev1.ObjectReference{Kind: kind, APIVersion: version, Namespace: o.GetNamespace(), Name: o.GetName(),
		UID: o.GetUID()}
}

// NewEvent returns an event about an object. If an equal event exists, it returns that event with a
// higher count. The name is derived from the content.
func NewEvent(s state.Snapshot, ref corev1.ObjectReference, text EventText, now time.Time) *corev1.Event {
	h := sha256.Sum256([]byte(string(ref.UID) + "\x00" + ref.FieldPath + "\x00" + text.Type + "\x00" + text.Reason +
		"\x00" + text.Message))
	at := metav1.NewTime(now)
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name + "." + hex.EncodeToString(h[:8]),
			CreationTimestamp: at},
		InvolvedObject: ref, Type: text.Type, Reason: text.Reason, Message: text.Message,
		Source:         corev1.EventSource{Component: text.Component, Host: text.Host},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingController: text.Component, ReportingInstance: text.Host,
	}
	if e.Source.Component == "" {
		e.Source.Component, e.ReportingController = Component, Component
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault // as Kubernetes does for objects without a namespace
	}
	if old, ok := s.Get(state.KeyOf(e)).(*corev1.Event); ok {
		e = old.DeepCopy()
		e.Count++
		e.LastTimestamp = at
	}
	return e
}

// The limits of events about one object and of one device. A device over its limit replaces only
// its own events.
const (
	eventsAbout = 100
	eventsOf    = 256
)

// trimEvents removes the oldest events beyond the limits.
func trimEvents(s state.Snapshot, e *corev1.Event, now time.Time) (changes []state.Change) {
	if s.Get(state.KeyOf(e)) != nil {
		return nil
	}
	var about, of *corev1.Event
	n := 0
	prefix := e.InvolvedObject.Name + "."
	for o := range s.From(state.Events, e.Namespace, e.Namespace, prefix) {
		if !strings.HasPrefix(o.GetName(), prefix) {
			break
		}
		other, ok := o.(*corev1.Event)
		if !ok || other.InvolvedObject.UID != e.InvolvedObject.UID {
			continue
		}
		if n++; about == nil || state.LastOccurred(other, now).Before(state.LastOccurred(about, now)) {
			about = other
		}
	}
	if n >= eventsAbout {
		changes = append(changes, state.Remove(about, ""))
	} else {
		about = nil
	}
	if e.Source.Host == "" {
		return changes
	}
	n = 0
	for other := range s.EventsFrom(e.Source.Host) {
		if n++; of == nil {
			of = other
		}
	}
	if n >= eventsOf && of != about {
		changes = append(changes, state.Remove(of, ""))
	}
	return changes
}
