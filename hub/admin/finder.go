package admin

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// nodeFinder searches the list of nodes.
var nodeFinder = frame.Finder[*corev1.Node]{List: search.Nodes, Has: map[string]func(*frame.Request, search.Term) frame.Match[*corev1.Node]{
	"":      frame.Key(func(n *corev1.Node, t search.Term) bool { return t.In(n.Name) }),
	"node":  frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Is(n.Name) }),
	"site":  frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Is(state.SiteOf(n)) }),
	"label": frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Has(n.Labels) }),
	"board": frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Is(frame.BoardName(n)) }),
	"status": func(_ *frame.Request, t search.Term) frame.Match[*corev1.Node] {
		return frame.OfStatus(frame.NodeStatuses, t, hasStatus)
	},
	"condition": frame.Key(func(n *corev1.Node, t search.Term) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return frame.IsCondition(t, string(c.Type), string(c.Status)) })
	}),
	"ip": frame.Key(func(n *corev1.Node, t search.Term) bool {
		return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
			return a.Type != corev1.NodeHostName && t.Is(a.Address)
		})
	}),
	"image": func(a *frame.Request, t search.Term) frame.Match[*corev1.Node] {
		on := map[string]bool{}
		for p := range a.Pods("") {
			if frame.HasImage(t, &p.Spec) {
				on[p.Spec.NodeName] = true
			}
		}
		return func(n *corev1.Node, _ search.Term) bool { return on[n.Name] }
	},
}}

var siteFinder = frame.Finder[*fleet.Site]{List: search.Sites, Has: map[string]func(*frame.Request, search.Term) frame.Match[*fleet.Site]{
	"":      frame.Key(func(s *fleet.Site, t search.Term) bool { return t.In(s.Name, s.Spec.Description, s.Spec.Location) }),
	"site":  frame.Key(func(s *fleet.Site, t search.Term) bool { return t.Is(s.Name) }),
	"label": frame.Key(func(s *fleet.Site, t search.Term) bool { return t.Has(s.Labels) }),
	"status": func(a *frame.Request, t search.Term) frame.Match[*fleet.Site] {
		return frame.OfStatus(frame.SiteStates, t, func(s *fleet.Site, status string) bool { return isSite(s, status, a.Now) })
	},
}}

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
