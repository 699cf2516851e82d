package control

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Component is the source of the hub's own events.
const Component = "flotilla-hub"

// events returns the changes by which what was done becomes known as Events.
func events(s state.Snapshot, done []state.Applied, now time.Time) (changes []state.Change) {
	latest := map[string]*corev1.Event{} // of this pass: two of a kind are one, counted
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
		e := NewEvent(s, About(about), Said{Type: kind, Reason: c.Reason, Message: cmp.Or(c.Message, c.Why), Component: c.Source}, now)
		if again, ok := latest[e.Namespace+"/"+e.Name]; ok {
			again.Count++
			continue
		}
		latest[e.Namespace+"/"+e.Name] = e
		changes = append(changes, state.Put(e, ""))
	}
	return changes
}

// Said is what an event says.
type Said struct{ Type, Reason, Message, Component, Host string }

// About returns the reference of an object in an event.
func About(o state.Object) corev1.ObjectReference {
	ref := corev1.ObjectReference{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), APIVersion: "v1"}
	switch state.KindOf(o) {
	case state.Nodes:
		ref.Kind = "Node"
	case state.Pods:
		ref.Kind = "Pod"
	case state.Namespaces:
		ref.Kind = "Namespace"
	case state.ConfigMaps:
		ref.Kind = "ConfigMap"
	case state.Secrets:
		ref.Kind = "Secret"
	case state.Deployments:
		ref.Kind, ref.APIVersion = "Deployment", "apps/v1"
	case state.ReplicaSets:
		ref.Kind, ref.APIVersion = "ReplicaSet", "apps/v1"
	case state.DaemonSets:
		ref.Kind, ref.APIVersion = "DaemonSet", "apps/v1"
	case state.PodDisruptionBudgets:
		ref.Kind, ref.APIVersion = "PodDisruptionBudget", "policy/v1"
	case state.Sites:
		ref.Kind, ref.APIVersion = "Site", fleet.Group+"/"+fleet.Version
	case state.BoardProfiles:
		ref.Kind, ref.APIVersion = "BoardProfile", fleet.Group+"/"+fleet.Version
	}
	return ref
}

// NewEvent returns the event that says so about an object: a new one, or the one
// that said the same before, counted up. Its name follows from what it says.
func NewEvent(s state.Snapshot, ref corev1.ObjectReference, said Said, now time.Time) *corev1.Event {
	h := sha256.Sum256([]byte(string(ref.UID) + "\x00" + ref.FieldPath + "\x00" + said.Type + "\x00" + said.Reason + "\x00" + said.Message))
	at := metav1.NewTime(now)
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name + "." + hex.EncodeToString(h[:8]), CreationTimestamp: at},
		InvolvedObject: ref, Type: said.Type, Reason: said.Reason, Message: said.Message,
		Source:         corev1.EventSource{Component: said.Component, Host: said.Host},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingController: said.Component, ReportingInstance: said.Host,
	}
	if e.Source.Component == "" {
		e.Source.Component, e.ReportingController = Component, Component
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault // as Kubernetes does for what has none
	}
	if old, ok := s.Get(state.KeyOf(e)).(*corev1.Event); ok {
		e = old.DeepCopy()
		e.Count++
		e.LastTimestamp = at
	}
	return e
}
