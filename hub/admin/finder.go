package admin

import (
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

var eventFinder = frame.Finder[*corev1.Event]{List: search.Events, Has: map[string]func(*frame.Request, search.Term) frame.Match[*corev1.Event]{
	"": frame.Key(func(e *corev1.Event, t search.Term) bool {
		return t.In(e.InvolvedObject.Kind+" "+e.InvolvedObject.Name, e.Reason, e.Message)
	}),
	"namespace": frame.Key(func(e *corev1.Event, t search.Term) bool { return t.Is(e.InvolvedObject.Namespace) }),
	"status":    frame.Key(func(e *corev1.Event, t search.Term) bool { return t.Is(e.Type) }),
	"node": func(a *frame.Request, _ search.Term) frame.Match[*corev1.Event] {
		return func(e *corev1.Event, t search.Term) bool {
			node := eventNode(a, e)
			return node != "" && t.Is(node)
		}
	},
	"site": func(a *frame.Request, t search.Term) frame.Match[*corev1.Event] {
		in := frame.NodesLike(a, func(n *corev1.Node) bool { return t.Is(state.SiteOf(n)) })
		return func(e *corev1.Event, t search.Term) bool {
			return in[eventNode(a, e)] || e.InvolvedObject.Kind == state.Sites.Row().Name && t.Is(e.InvolvedObject.Name)
		}
	},
}}

// eventNode is the node that an event is about, or on which what it is about is; "": none.
func eventNode(a *frame.Request, e *corev1.Event) string {
	switch e.InvolvedObject.Kind {
	case "Node":
		return e.InvolvedObject.Name
	case "Pod":
		if p := a.Pod(e.InvolvedObject.Namespace, e.InvolvedObject.Name); p != nil {
			return p.Spec.NodeName
		}
	}
	return ""
}
