package frame

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Match tells whether an object matches a term; it ignores the term's minus.
type Match[T any] func(o T, t search.Term) bool

// A Finder has a match for each search key of a list, and for words under "". Each function runs
// once per search and may prepare data of the whole fleet.
type Finder[T any] struct {
	List string
	Has  map[string]func(a *Request, t search.Term) Match[T]
}

// Key is a match that needs no data of the fleet.
func Key[T any](f Match[T]) func(*Request, search.Term) Match[T] {
	return func(*Request, search.Term) Match[T] { return f }
}

// Searched parses the request's search of a list.
func (a *Request) Searched(list string) search.Query {
	return search.Parse(list, a.Query("q"), a.known(list))
}

// Matcher tells whether an object matches a search.
func (f Finder[T]) Matcher(a *Request, q search.Query) func(T) bool {
	tests := make([]Match[T], len(q.Terms))
	for i, t := range q.Terms {
		tests[i] = f.Has[t.Key](a, t)
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

// WrongSearch says what is wrong with the filter and the search of a kind's list; "": nothing.
// Nobody may act on what a wrong search finds.
func (a *Request) WrongSearch(kind state.Kind) string {
	if list := shownAs(kind).list; list != "" {
		return cmp.Or(a.wrongFilter(list), a.Searched(list).Wrong)
	}
	return ""
}

// NodesLike are the names of the nodes for which has is true.
func NodesLike(a *Request, has func(*corev1.Node) bool) map[string]bool {
	names := map[string]bool{}
	for n := range a.Nodes() {
		if has(n) {
			names[n.Name] = true
		}
	}
	return names
}

// BoardName is a node's board in the list of nodes.
func BoardName(n *corev1.Node) string {
	return cmp.Or(n.Labels[fleet.LabelBoard], n.Status.NodeInfo.Architecture)
}

// IsCondition tells whether a term names a condition with this status; without a status it means
// True.
func IsCondition(t search.Term, name, status string) bool {
	want, as, ok := strings.Cut(t.Value, "=")
	if !ok {
		as = "true"
	}
	return search.Term{Value: want}.Is(name) && search.Term{Value: as}.Is(status)
}

// OfStatus matches objects with one of the menu's statuses that the term's pattern matches.
func OfStatus[T any](menu [][2]string, t search.Term, has func(o T, status string) bool) Match[T] {
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

// HasImage tells whether a pod has a container whose image matches a term.
func HasImage(t search.Term, s *corev1.PodSpec) bool {
	is := func(c corev1.Container) bool { return t.Is(c.Image) }
	return slices.ContainsFunc(s.Containers, is) || slices.ContainsFunc(s.InitContainers, is)
}

// IsOwner tells whether a term names the owner, with or without its kind.
func IsOwner(t search.Term, owner string) bool {
	_, name, _ := strings.Cut(owner, "/")
	return owner != "" && (t.Is(owner) || t.Is(name))
}
