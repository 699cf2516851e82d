package admin

import (
	"net/url"
	"slices"
	"strings"

	"flotilla.dev/hub/state"
)

// A pickBar stands below a list whose rows have check boxes, and offers what can be done to
// those that are ticked, or to all that the list shows under its filter.
type pickBar struct {
	Href  string // with the filter
	Kind  state.Kind
	Total int // under the filter; 0: the list shows all of them
	Does  []pickAction
}

// A pickAction is a button of the bar.
type pickAction struct {
	Name, Label string
	Kinds       string // that have it
	Destroy     bool
}

// mayPick tells whether there is an action on many of a kind that the role may do.
func (a *request) mayPick(kind state.Kind) bool {
	return slices.ContainsFunc(a.actions, func(act *action) bool {
		return act.kind == kind && !act.single && !act.aside && act.allowed(a.may)
	})
}

// pick is what the check box of a row says, "" where the row has none.
func (a *request) pick(o state.Object) string {
	if !a.mayPick(state.KindOf(o)) {
		return ""
	}
	return pickOf(o).Form()
}

// pickBarOf returns the bar below a list of kinds of which total are found and shown are on
// this page; nil: there is nothing to do to them.
func pickBarOf(a *request, filter url.Values, total, shown int, kinds ...state.Kind) *pickBar {
	b := &pickBar{Href: "/actions/many", Kind: kinds[0]}
	if total > shown && a.wrongSearch(kinds[0]) == "" { // what a wrong search shows is not all that was meant
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
	for _, act := range a.actions {
		if !slices.Contains(kinds, act.kind) || act.single || act.aside || !act.allowed(a.may) {
			continue
		}
		i := slices.IndexFunc(b.Does, func(p pickAction) bool { return p.Name == act.Name })
		if i < 0 {
			b.Does = append(b.Does, pickAction{act.Name, act.Label, string(act.kind), act.Destroy})
			continue
		}
		b.Does[i].Kinds = strings.Join([]string{b.Does[i].Kinds, string(act.kind)}, " ")
		b.Does[i].Destroy = b.Does[i].Destroy || act.Destroy
	}
	// What several kinds have in common comes first, and what destroys last.
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
