package admin

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"flotilla.dev/hub/state"
)

// A menuItem leads to an action: to the page before it, or, where that is not
// needed, to the action itself.
type menuItem struct {
	Label, Href string
	Item        string // what it is done to at once; "": Href is a page
	Destroy     bool
}

// A menu offers the actions that the role may do and that would change something.
type menu struct {
	Title string
	First []menuItem // stand next to it
	More  []menuItem
}

// shownActions is how many actions stand next to the menu.
const shownActions = 2

// menuOf offers what can be done to one object.
func menuOf(a *request, o state.Object) menu {
	m := menu{Title: "More"}
	kind, i := state.KindOf(o), itemOf(o)
	for _, act := range a.actions {
		if act.kind != kind || act.aside || !a.may(act.verb, act.resource) || act.idle != nil && act.idle(o) != "" {
			continue
		}
		it := menuItem{Label: act.Label, Href: act.path(), Item: i.Form(), Destroy: act.Destroy}
		if !act.quick {
			it.Href, it.Item = act.path()+"?"+url.Values{"item": {i.Form()}}.Encode(), ""
		}
		if len(m.First) < shownActions {
			m.First = append(m.First, it)
		} else {
			m.More = append(m.More, it)
		}
	}
	return m
}

// bulk offers what can be done to all that a list shows under a filter.
func bulk(a *request, kind state.Kind, n int, filter url.Values) (m menu) {
	if n == 0 {
		return m
	}
	query := ""
	q := url.Values{}
	for k, v := range filter {
		if v[0] != "" {
			q[k] = v
		}
	}
	if len(q) > 0 {
		query = "?" + q.Encode()
	}
	for _, act := range a.actions {
		if act.kind == kind && !act.single && !act.aside && act.allowed(a.may) {
			m.More = append(m.More, menuItem{Label: act.Label, Href: act.path() + query, Destroy: act.Destroy})
			m.Title = "Act on " + all(n, act.one)
		}
	}
	return m
}

func all(n int, one string) string {
	if n == 1 {
		return "this " + one
	}
	return "all " + plural(n, one)
}

// ---- sorting

// unsorted is what lists are sorted by when nobody asks: trouble first, and then by name.
const unsorted = "status"

// A sorter is a column that a list may be sorted by; without less it is by name, as
// the fleet is kept.
type sorter[T any] struct {
	name, title string
	by          func(a *request) func(x, y T) int
}

// A column is the head of one, with the address that sorts by it.
type column struct {
	Title, Href string
	Sorted      string // ascending, descending, or "": not by this one
	All         bool   // it has the box that ticks all rows that are shown
}

// order sorts a list as the query says: by a column, or with "-" before its name the other way.
func order[T any](a *request, list []T, by []sorter[T]) {
	name, down := strings.CutPrefix(cmp.Or(a.query("sort"), unsorted), "-")
	if !slices.ContainsFunc(by, func(s sorter[T]) bool { return s.name != "" && s.name == name }) {
		name = unsorted
	}
	for _, s := range by {
		if s.name == "" || s.name != name {
			continue
		}
		if s.by != nil {
			slices.SortStableFunc(list, s.by(a))
		}
		if down {
			slices.Reverse(list)
		}
	}
}

// sortLinks are the heads of the columns of a list, each with the address that sorts by it.
func sortLinks[T any](a *request, filter url.Values, by []sorter[T]) (columns []column) {
	now, down := strings.CutPrefix(cmp.Or(a.query("sort"), unsorted), "-")
	for _, s := range by {
		c := column{Title: s.title}
		if s.name == "" {
			columns = append(columns, c)
			continue
		}
		q := url.Values{}
		for k, v := range filter {
			if v[0] != "" && k != "sort" {
				q[k] = v
			}
		}
		sort := s.name
		if s.name == now {
			c.Sorted = "ascending"
			if down {
				c.Sorted = "descending"
			} else {
				sort = "-" + s.name
			}
		}
		if sort != unsorted {
			q.Set("sort", sort)
		}
		c.Href = a.path
		if len(q) > 0 {
			c.Href += "?" + q.Encode()
		}
		columns = append(columns, c)
	}
	return columns
}
