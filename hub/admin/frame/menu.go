package frame

import (
	"net/url"
	"slices"
	"strings"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/state"
)

// A MenuItem links an action: the page before it, or the action itself if it needs none.
type MenuItem struct {
	Label, Href string
	Item        string // the object that the action changes at once; "": Href is a page
	Destroy     bool
}

// A Menu offers the actions that the role may do and that would change something.
type Menu struct {
	Title string
	First []MenuItem // shown beside the menu
	More  []MenuItem
}

// shownActions is how many actions are shown beside the menu.
const shownActions = 2

// MenuOf offers the actions on one object.
func MenuOf(a *Request, o state.Object) Menu {
	m := Menu{Title: "More"}
	kind, i := state.KindOf(o), ItemOf(o)
	for _, act := range a.Actions {
		if act.Kind != kind || act.Aside || !a.May(act.Verb, act.Resource) || act.Idle != nil && act.Idle(o) != "" {
			continue
		}
		it := MenuItem{Label: act.Label, Href: act.Path(), Item: i.Form(), Destroy: act.Destroy}
		if !act.Quick {
			it.Href, it.Item = act.Path()+"?"+url.Values{"item": {i.Form()}}.Encode(), ""
		}
		if len(m.First) < shownActions {
			m.First = append(m.First, it)
		} else {
			m.More = append(m.More, it)
		}
	}
	return m
}

// Together offers the actions that all of the menus offer first, for all their objects at once.
func Together(menus []Menu) (m Menu) {
	for n, menu := range menus {
		if n == 0 {
			m.First = slices.Clone(menu.First)
			continue
		}
		m.First = slices.DeleteFunc(m.First, func(x MenuItem) bool {
			return !slices.ContainsFunc(menu.First, func(y MenuItem) bool { return y.Label == x.Label })
		})
		for i := range m.First {
			for _, y := range menu.First {
				if _, item, ok := strings.Cut(y.Href, "?"); ok && y.Label == m.First[i].Label &&
					!strings.Contains(m.First[i].Href, item) {
					m.First[i].Href += "&" + item
				}
			}
		}
	}
	m.First = slices.DeleteFunc(m.First, func(x MenuItem) bool { return x.Item != "" })
	return m
}

// BulkMenu offers the actions on all objects that a list shows under a filter.
func BulkMenu(a *Request, kind state.Kind, n int, filter url.Values) (m Menu) {
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
	for _, act := range a.Actions {
		if act.Kind == kind && !act.Single && !act.Aside && act.allowed(a.May) {
			m.More = append(m.More, MenuItem{Label: act.Label, Href: act.Path() + query, Destroy: act.Destroy})
			m.Title = "Act on " + all(n, act.One)
		}
	}
	return m
}

func all(n int, one string) string {
	if n == 1 {
		return "this " + one
	}
	return "all " + format.Plural(n, one)
}

// A PickBar stands below a list with check boxes. It offers the actions on the ticked objects, or
// on all objects under the filter.
type PickBar struct {
	Href  string // with the filter
	Kind  state.Kind
	Total int // objects under the filter; 0: this page shows all of them
	Does  []pickAction
}

// A pickAction is a button of the bar.
type pickAction struct {
	Name, Label string
	Kinds       string // kinds that have the action
	Destroy     bool
}

// mayPick tells whether the role may do any action on many objects of a kind.
func (a *Request) mayPick(kind state.Kind) bool {
	return slices.ContainsFunc(a.Actions, func(act *Action) bool {
		return act.Kind == kind && !act.Single && !act.Aside && act.allowed(a.May)
	})
}

// Pick is the value of a row's check box; "": the row has none.
func (a *Request) Pick(o state.Object) string {
	if !a.mayPick(state.KindOf(o)) {
		return ""
	}
	return pickOf(o).Form()
}

// PickBarOf returns the bar below a list of kinds: total objects are found, shown are on this page.
// nil: there is no action.
func PickBarOf(a *Request, filter url.Values, total, shown int, kinds ...state.Kind) *PickBar {
	b := &PickBar{Href: "/actions/many", Kind: kinds[0]}
	if total > shown && a.WrongSearch(kinds[0]) == "" { // a wrong search finds more than was meant
		b.Total = total
	}
	q := url.Values{}
	for k, v := range filter {
		if v[0] != "" {
			q[k] = v
		}
	}
	if len(q) > 0 {
		b.Href += "?" + q.Encode()
	}
	for _, act := range a.Actions {
		if !slices.Contains(kinds, act.Kind) || act.Single || act.Aside || !act.allowed(a.May) {
			continue
		}
		i := slices.IndexFunc(b.Does, func(p pickAction) bool { return p.Name == act.Name })
		if i < 0 {
			b.Does = append(b.Does, pickAction{act.Name, act.Label, string(act.Kind), act.Destroy})
			continue
		}
		b.Does[i].Kinds = strings.Join([]string{b.Does[i].Kinds, string(act.Kind)}, " ")
		b.Does[i].Destroy = b.Does[i].Destroy || act.Destroy
	}
	// Actions of more kinds come first, destroying actions last.
	slices.SortStableFunc(b.Does, func(x, y pickAction) int {
		switch {
		case x.Destroy != y.Destroy && x.Destroy:
			return 1
		case x.Destroy != y.Destroy:
			return -1
		}
		return strings.Count(y.Kinds, " ") - strings.Count(x.Kinds, " ")
	})
	if shown == 0 || len(b.Does) == 0 {
		return nil
	}
	return b
}
