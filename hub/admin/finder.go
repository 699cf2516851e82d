package admin

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/kube/table"
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

var podFinder = frame.Finder[*corev1.Pod]{List: search.Pods, Has: map[string]func(*frame.Request, search.Term) frame.Match[*corev1.Pod]{
	"":          frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.In(p.Name, p.Spec.NodeName) }),
	"node":      frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.Is(p.Spec.NodeName) }),
	"namespace": frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.Is(p.Namespace) }),
	"label":     frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.Has(p.Labels) }),
	"image":     frame.Key(func(p *corev1.Pod, t search.Term) bool { return frame.HasImage(t, &p.Spec) }),
	"site":      onNodes(func(n *corev1.Node, t search.Term) bool { return t.Is(state.SiteOf(n)) }),
	"board":     onNodes(func(n *corev1.Node, t search.Term) bool { return t.Is(frame.BoardName(n)) }),
	"ip": frame.Key(func(p *corev1.Pod, t search.Term) bool {
		return t.Is(p.Status.PodIP) || t.Is(p.Status.HostIP) || slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return t.Is(ip.IP) })
	}),
	"condition": frame.Key(func(p *corev1.Pod, t search.Term) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return frame.IsCondition(t, string(c.Type), string(c.Status)) })
	}),
	"owner": func(a *frame.Request, _ search.Term) frame.Match[*corev1.Pod] {
		return func(p *corev1.Pod, t search.Term) bool { return frame.IsOwner(t, frame.OwnerOf(a.Snapshot, p)) }
	},
	"status": func(a *frame.Request, t search.Term) frame.Match[*corev1.Pod] {
		menu := frame.OfStatus(frame.PodStatuses, t, func(p *corev1.Pod, status string) bool { return podHasStatus(a, p, status) })
		if frame.HasOption(frame.PodStatuses, t.Value) {
			return menu
		}
		return func(p *corev1.Pod, t search.Term) bool { return menu(p, t) || t.Is(table.PodStatus(p)) }
	},
}}

// onNodes finds pods by what their nodes have.
func onNodes(has frame.Match[*corev1.Node]) func(*frame.Request, search.Term) frame.Match[*corev1.Pod] {
	return func(a *frame.Request, t search.Term) frame.Match[*corev1.Pod] {
		on := frame.NodesLike(a, func(n *corev1.Node) bool { return has(n, t) })
		return func(p *corev1.Pod, _ search.Term) bool { return on[p.Spec.NodeName] }
	}
}

var workloadFinder = frame.Finder[state.Object]{List: search.Workloads, Has: map[string]func(*frame.Request, search.Term) frame.Match[state.Object]{
	"":          frame.Key(func(o state.Object, t search.Term) bool { return t.In(o.GetName()) }),
	"namespace": frame.Key(func(o state.Object, t search.Term) bool { return t.Is(o.GetNamespace()) }),
	"label":     frame.Key(func(o state.Object, t search.Term) bool { return t.Has(o.GetLabels()) }),
	"image":     frame.Key(func(o state.Object, t search.Term) bool { return frame.HasImage(t, state.PodSpecOf(o)) }),
	"condition": frame.Key(func(o state.Object, t search.Term) bool {
		return slices.ContainsFunc(diagnose.Conditions(o), func(c diagnose.Condition) bool { return frame.IsCondition(t, c.Type, string(c.Status)) })
	}),
	"owner": frame.Key(func(o state.Object, t search.Term) bool {
		ref := metav1.GetControllerOf(o)
		return ref != nil && frame.IsOwner(t, strings.ToLower(ref.Kind)+"/"+ref.Name)
	}),
	"status": func(a *frame.Request, t search.Term) frame.Match[state.Object] {
		return frame.OfStatus(frame.WorkloadStatuses, t, func(o state.Object, status string) bool { return workloadHasStatus(a, o, status) })
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
