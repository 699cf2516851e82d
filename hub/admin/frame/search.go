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

// Match tells whether a thing is what a term says, leaving the term's minus aside.
type Match[T any] func(o T, t search.Term) bool

// A Finder says for each key of a list's search, and for words under "", what its things
// have. Each is asked for once per search, and may look first at what it needs of the fleet.
type Finder[T any] struct {
	List string
	Has  map[string]func(a *Request, t search.Term) Match[T]
}

// Key is a finder's key that needs nothing of the fleet.
func Key[T any](f Match[T]) func(*Request, search.Term) Match[T] {
	return func(*Request, search.Term) Match[T] { return f }
}

// Searched reads the search that a request asks of a list.
func (a *Request) Searched(list string) search.Query {
	return search.Parse(list, a.Query("q"), a.known(list))
}

// Matcher tells what of a list a search finds.
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

// WrongSearch says what is wrong with the filter and the search by which objects of a kind are chosen,
// "" where nothing is. What a wrong search finds is not acted on.
func (a *Request) WrongSearch(kind state.Kind) string {
	if list := shownAs(kind).list; list != "" {
		return cmp.Or(a.wrongFilter(list), a.Searched(list).Wrong)
	}
	return ""
}

// NodesLike are the names of the nodes that have something.
func NodesLike(a *Request, has func(*corev1.Node) bool) map[string]bool {
	names := map[string]bool{}
	for n := range a.Nodes() {
		if has(n) {
			names[n.Name] = true
		}
	}
	return names
}

// BoardName is what the list of nodes shows as a node's board.
func BoardName(n *corev1.Node) string {
	return cmp.Or(n.Labels[fleet.LabelBoard], n.Status.NodeInfo.Architecture)
}

// IsCondition tells whether a term is about a condition in its status: True unless it names another.
func IsCondition(t search.Term, name, status string) bool {
	want, as, ok := strings.Cut(t.Value, "=")
	if !ok {
		as = "true"
	}
	return search.Term{Value: want}.Is(name) && search.Term{Value: as}.Is(status)
}

// OfStatus finds what has one of the statuses of a list's menu that a term is about: a
// pattern may be like several, or like none.
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

// HasImage tells whether a pod has a container of an image that a term is about.
func HasImage(t search.Term, s *corev1.PodSpec) bool {
	is := func(c corev1.Container) bool { return t.Is(c.Image) }
	return slices.ContainsFunc(s.Containers, is) || slices.ContainsFunc(s.InitContainers, is)
}

// IsOwner tells whether a term is about the owner of that kind and name.
func IsOwner(t search.Term, owner string) bool {
	_, name, _ := strings.Cut(owner, "/")
	return owner != "" && (t.Is(owner) || t.Is(name))
}
