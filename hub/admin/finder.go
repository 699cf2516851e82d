package admin

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// is tells whether a thing is what a term says, leaving the term's minus aside.
type is[T any] func(o T, t search.Term) bool

// A finder says for each key of a list's search, and for words under "", what its things
// have. Each is asked for once per search, and may look first at what it needs of the fleet.
type finder[T any] struct {
	list string
	has  map[string]func(a *request, t search.Term) is[T]
}

// of is a finder's key that needs nothing of the fleet.
func of[T any](f is[T]) func(*request, search.Term) is[T] {
	return func(*request, search.Term) is[T] { return f }
}

// searched reads the search that a request asks of a list.
func (a *request) searched(list string) search.Query {
	return search.Parse(list, a.query("q"), a.known(list))
}

// matcher tells what of a list a search finds.
func (f finder[T]) matcher(a *request, q search.Query) func(T) bool {
	tests := make([]is[T], len(q.Terms))
	for i, t := range q.Terms {
		tests[i] = f.has[t.Key](a, t)
	}
	return func(o T) bool {
		for i, t := range q.Terms {
			if tests[i](o, t) == t.Not {
				return false
			}
		}
		return true
	}
}

// wrongSearch is what is not understood of the search by which things of a kind are chosen,
// "" where all is: what a wrong search shows is chosen by nobody.
func (a *request) wrongSearch(kind state.Kind) string {
	if list := shownAs(kind).list; list != "" {
		return a.searched(list).Wrong
	}
	return ""
}

// nodesLike are the names of the nodes that have something.
func nodesLike(a *request, has func(*corev1.Node) bool) map[string]bool {
	names := map[string]bool{}
	for n := range a.Nodes() {
		if has(n) {
			names[n.Name] = true
		}
	}
	return names
}

// nodeFinder searches the list of nodes.
var nodeFinder = finder[*corev1.Node]{search.Nodes, map[string]func(*request, search.Term) is[*corev1.Node]{
	"":      of(func(n *corev1.Node, t search.Term) bool { return t.In(n.Name) }),
	"node":  of(func(n *corev1.Node, t search.Term) bool { return t.Is(n.Name) }),
	"site":  of(func(n *corev1.Node, t search.Term) bool { return t.Is(state.SiteOf(n)) }),
	"label": of(func(n *corev1.Node, t search.Term) bool { return t.Has(n.Labels) }),
	"board": of(func(n *corev1.Node, t search.Term) bool { return t.Is(boardName(n)) }),
	"status": func(_ *request, t search.Term) is[*corev1.Node] {
		return ofStatus(nodeStatuses, t, hasStatus)
	},
	"condition": of(func(n *corev1.Node, t search.Term) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return isCondition(t, string(c.Type), string(c.Status)) })
	}),
	"ip": of(func(n *corev1.Node, t search.Term) bool {
		return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
			return a.Type != corev1.NodeHostName && t.Is(a.Address)
		})
	}),
	"image": func(a *request, t search.Term) is[*corev1.Node] {
		on := map[string]bool{}
		for p := range a.Pods("") {
			if hasImage(t, &p.Spec) {
				on[p.Spec.NodeName] = true
			}
		}
		return func(n *corev1.Node, _ search.Term) bool { return on[n.Name] }
	},
}}

// boardName is what the list of nodes shows as a node's board.
func boardName(n *corev1.Node) string {
	return cmp.Or(n.Labels[fleet.LabelBoard], n.Status.NodeInfo.Architecture)
}

// isCondition tells whether a term is about a condition in its status: True unless it names another.
func isCondition(t search.Term, name, status string) bool {
	want, as, ok := strings.Cut(t.Value, "=")
	if !ok {
		as = "true"
	}
	return search.Term{Value: want}.Is(name) && search.Term{Value: as}.Is(status)
}

// ofStatus finds what has one of the statuses of a list's menu that a term is about: a
// pattern may be like several, or like none.
func ofStatus[T any](menu [][2]string, t search.Term, has func(o T, status string) bool) is[T] {
	var like []string
	for _, p := range menu {
		if p[0] != "" && t.Is(p[0]) {
			like = append(like, p[0])
		}
	}
	return func(o T, _ search.Term) bool {
		return slices.ContainsFunc(like, func(status string) bool { return has(o, status) })
	}
}

// hasImage tells whether a pod has a container of an image that a term is about.
func hasImage(t search.Term, s *corev1.PodSpec) bool {
	is := func(c corev1.Container) bool { return t.Is(c.Image) }
	return slices.ContainsFunc(s.Containers, is) || slices.ContainsFunc(s.InitContainers, is)
}

var podFinder = finder[*corev1.Pod]{search.Pods, map[string]func(*request, search.Term) is[*corev1.Pod]{
	"":          of(func(p *corev1.Pod, t search.Term) bool { return t.In(p.Name, p.Spec.NodeName) }),
	"node":      of(func(p *corev1.Pod, t search.Term) bool { return t.Is(p.Spec.NodeName) }),
	"namespace": of(func(p *corev1.Pod, t search.Term) bool { return t.Is(p.Namespace) }),
	"label":     of(func(p *corev1.Pod, t search.Term) bool { return t.Has(p.Labels) }),
	"image":     of(func(p *corev1.Pod, t search.Term) bool { return hasImage(t, &p.Spec) }),
	"site":      onNodes(func(n *corev1.Node, t search.Term) bool { return t.Is(state.SiteOf(n)) }),
	"board":     onNodes(func(n *corev1.Node, t search.Term) bool { return t.Is(boardName(n)) }),
	"ip": of(func(p *corev1.Pod, t search.Term) bool {
		return t.Is(p.Status.PodIP) || t.Is(p.Status.HostIP) || slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return t.Is(ip.IP) })
	}),
	"condition": of(func(p *corev1.Pod, t search.Term) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return isCondition(t, string(c.Type), string(c.Status)) })
	}),
	"owner": func(a *request, _ search.Term) is[*corev1.Pod] {
		return func(p *corev1.Pod, t search.Term) bool { return isOwner(t, ownerOf(a.Snapshot, p)) }
	},
	"status": func(a *request, t search.Term) is[*corev1.Pod] {
		menu := ofStatus(podStatuses, t, func(p *corev1.Pod, status string) bool { return podHasStatus(a, p, status) })
		if hasOption(podStatuses, t.Value) {
			return menu
		}
		return func(p *corev1.Pod, t search.Term) bool { return menu(p, t) || t.Is(table.PodStatus(p)) }
	},
}}

// onNodes finds pods by what their nodes have.
func onNodes(has is[*corev1.Node]) func(*request, search.Term) is[*corev1.Pod] {
	return func(a *request, t search.Term) is[*corev1.Pod] {
		on := nodesLike(a, func(n *corev1.Node) bool { return has(n, t) })
		return func(p *corev1.Pod, _ search.Term) bool { return on[p.Spec.NodeName] }
	}
}

// isOwner tells whether a term is about the owner of that kind and name.
func isOwner(t search.Term, owner string) bool {
	_, name, _ := strings.Cut(owner, "/")
	return owner != "" && (t.Is(owner) || t.Is(name))
}

var workloadFinder = finder[state.Object]{search.Workloads, map[string]func(*request, search.Term) is[state.Object]{
	"":          of(func(o state.Object, t search.Term) bool { return t.In(o.GetName()) }),
	"namespace": of(func(o state.Object, t search.Term) bool { return t.Is(o.GetNamespace()) }),
	"label":     of(func(o state.Object, t search.Term) bool { return t.Has(o.GetLabels()) }),
	"image":     of(func(o state.Object, t search.Term) bool { return hasImage(t, state.PodSpecOf(o)) }),
	"condition": of(func(o state.Object, t search.Term) bool {
		return slices.ContainsFunc(diagnose.Conditions(o), func(c diagnose.Condition) bool { return isCondition(t, c.Type, string(c.Status)) })
	}),
	"owner": of(func(o state.Object, t search.Term) bool {
		ref := metav1.GetControllerOf(o)
		return ref != nil && isOwner(t, strings.ToLower(ref.Kind)+"/"+ref.Name)
	}),
	"status": func(a *request, t search.Term) is[state.Object] {
		return ofStatus(workloadStatuses, t, func(o state.Object, status string) bool { return workloadHasStatus(a, o, status) })
	},
}}

var siteFinder = finder[*fleet.Site]{search.Sites, map[string]func(*request, search.Term) is[*fleet.Site]{
	"":      of(func(s *fleet.Site, t search.Term) bool { return t.In(s.Name, s.Spec.Description, s.Spec.Location) }),
	"site":  of(func(s *fleet.Site, t search.Term) bool { return t.Is(s.Name) }),
	"label": of(func(s *fleet.Site, t search.Term) bool { return t.Has(s.Labels) }),
	"status": func(a *request, t search.Term) is[*fleet.Site] {
		return ofStatus(siteStates, t, func(s *fleet.Site, status string) bool { return isSite(s, status, a.now) })
	},
}}

var eventFinder = finder[*corev1.Event]{search.Events, map[string]func(*request, search.Term) is[*corev1.Event]{
	"": of(func(e *corev1.Event, t search.Term) bool {
		return t.In(e.InvolvedObject.Kind+" "+e.InvolvedObject.Name, e.Reason, e.Message)
	}),
	"namespace": of(func(e *corev1.Event, t search.Term) bool { return t.Is(e.InvolvedObject.Namespace) }),
	"status":    of(func(e *corev1.Event, t search.Term) bool { return t.Is(e.Type) }),
	"node": func(a *request, _ search.Term) is[*corev1.Event] {
		return func(e *corev1.Event, t search.Term) bool {
			node := eventNode(a, e)
			return node != "" && t.Is(node)
		}
	},
	"site": func(a *request, t search.Term) is[*corev1.Event] {
		in := nodesLike(a, func(n *corev1.Node) bool { return t.Is(state.SiteOf(n)) })
		return func(e *corev1.Event, t search.Term) bool {
			return in[eventNode(a, e)] || e.InvolvedObject.Kind == state.Sites.Row().Name && t.Is(e.InvolvedObject.Name)
		}
	},
}}

// eventNode is the node that an event is about, or on which what it is about is; "": none.
func eventNode(a *request, e *corev1.Event) string {
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
