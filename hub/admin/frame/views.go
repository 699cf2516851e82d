package frame

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

// Views stores searches that users have named.
type Views interface {
	// Views lists a user's views by name.
	Views(ctx context.Context, user string) ([]store.View, error)
	// SaveView stores a view and replaces the user's view with that name.
	SaveView(ctx context.Context, user string, v store.View) error
	DeleteView(ctx context.Context, user, name string) error
}

// viewParams are the query parameters of each list's filter. The page number is not part of a view.
var viewParams = map[string][]string{
	"/nodes": {"q", "site", "status", "sort"}, "/pods": {"q", "namespace", "status", "owner", "sort"},
	"/workloads": {"q", "namespace", "status"},
	"/sites":     {"q", "state"}, "/events": {"q", "type", "since", "reason"},
	"/incidents": {"q", "site", "status", "cause", "severity"},
}

// Severities are the choices of the incidents' filter by severity.
var Severities = [][2]string{{"", "Any severity"}, {string(fleet.SeverityCritical), "Critical"},
	{string(fleet.SeverityWarning), "Warning"}, {string(fleet.SeverityInfo), "Info"}}

// wrongFilter says which value of a list's filter does not exist; "": all exist. An unknown value
// must not find everything, because people act on what a list finds.
func (a *Request) wrongFilter(list string) string {
	for _, param := range append(viewParams["/"+list], "page") {
		value := a.Query(param)
		if value == "" || viewParams["/"+list] == nil {
			continue
		}
		ok, use := true, ""
		switch param {
		case "status", "state", "type":
			ok, use = inMenu(StatusesOf(list), value)
		case "severity":
			ok, use = inMenu(Severities, value)
		case "cause":
			ok = slices.Contains(diagnose.Causes(), fleet.IncidentCause(value))
		case "site":
			ok = a.Site(value) != nil || a.Count(value).Nodes > 0
		case "namespace":
			ok = a.Get(state.Key{Kind: state.Namespaces, Name: value}) != nil
		case "sort":
			sorts := a.sortsOf(list)
			ok, use = slices.Contains(sorts, strings.TrimPrefix(value, "-")), useOne(sorts)
		case "since":
			d, err := time.ParseDuration(value)
			ok, use = err == nil && d > 0, " Use for example 1h."
		case "page":
			n, err := strconv.Atoi(value)
			ok, use = err == nil && n > 0, " Use a number from 1 on."
		}
		if !ok {
			return fmt.Sprintf("The filter's %s “%s” does not exist.%s", param, bound.Text(value, 60), use)
		}
	}
	return ""
}

// inMenu tells whether a menu has a value, and which values it has.
func inMenu(menu [][2]string, value string) (ok bool, use string) {
	var values []string
	for _, p := range menu {
		if ok = ok || p[0] == value; p[0] != "" {
			values = append(values, p[0])
		}
	}
	return ok, useOne(values)
}

// useOne names the values that a filter can have, of which there are at least two.
func useOne(values []string) string {
	last := len(values) - 1
	return " Use " + strings.Join(values[:last], ", ") + " or " + values[last] + "."
}

// sortsOf returns the columns by which a list can be sorted.
func (a *Request) sortsOf(list string) []string {
	for kind, l := range a.listings {
		if l.Sorts != nil && shownAs(kind).list == list {
			return l.Sorts
		}
	}
	return nil
}

// viewHref is the address of a list as a view stores it; "": it is not the address of a list.
func viewHref(text string) string {
	u, err := url.Parse(LocalPath(text))
	if err != nil || viewParams[u.Path] == nil {
		return ""
	}
	kept, given := url.Values{}, u.Query()
	for _, name := range viewParams[u.Path] {
		if v := given.Get(name); v != "" {
			kept.Set(name, v)
		}
	}
	if len(kept) == 0 {
		return u.Path
	}
	return u.Path + "?" + kept.Encode()
}

const errNoViews = UserError("A client certificate has no saved views: log in with your password instead.")

// A savedView is a link to a saved view.
type savedView struct {
	Name, Href string
	Here       bool
}

// savedViews are a user's views of one list.
type savedViews struct {
	Views []savedView
	Here  string // the address that would be saved
	CSRF  string
}

// person is the user who owns the views. The name in a certificate is not a user's.
func (c *Call) person() (name string, ok bool) {
	return c.User.Name, c.Views != nil && c.User.Name != "" && c.User.Via != "certificate"
}

// savedViews are the user's views of this page's list; nil: the page is not a list, the user cannot
// have views, or there is nothing to save.
func (c *Call) savedViews(code int) *savedViews {
	r := c.Request()
	here := viewHref(r.URL.RequestURI())
	if _, ok := c.person(); !ok || r.Method != http.MethodGet || here == "" ||
		!c.Allow(c.User.Role, "update", "account") {
		return nil
	}
	d := &savedViews{Here: here, CSRF: c.User.CSRF}
	for _, v := range c.OwnViews() {
		if path, _, _ := strings.Cut(v.Href, "?"); path == r.URL.Path {
			d.Views = append(d.Views, savedView{v.Name, v.Href, v.Href == here})
		}
	}
	if len(d.Views) == 0 && (code != http.StatusOK || c.lists(r.URL.Path) == 0) {
		return nil
	}
	return d
}

// lists returns how many objects the list at a path has without a filter.
func (c *Call) lists(path string) (n int) {
	s := c.Fleet.Snapshot()
	for _, kind := range state.Kinds() {
		if "/"+shownAs(kind).list == path {
			n += s.Len(kind)
		}
	}
	return n
}

// OwnViews are all views of the user. If they cannot be read, the page is shown without them.
func (c *Call) OwnViews() []store.View {
	name, ok := c.person()
	if !ok {
		return nil
	}
	all, err := c.Views.Views(c.Request().Context(), name)
	if err != nil {
		c.Log.Error("saved views are not shown", "user", name, "err", err)
	}
	return slices.DeleteFunc(all, func(v store.View) bool { return viewHref(v.Href) == "" })
}

// ChangeViews saves or deletes a view, and leads back to the list.
func (c *Call) ChangeViews() error {
	href, name, ctx := viewHref(c.FormValue("href")), c.FormValue("name"), c.Request().Context()
	act := store.Audit{Verb: "update", Resource: "views", Name: strings.Join(strings.Fields(name), " "), Message: href,
		Code: http.StatusOK}
	var err error
	person, ok := c.person()
	switch action := c.FormValue("action"); {
	case c.Views == nil || href == "" || action != "save" && action != "delete":
		return c.Message(http.StatusBadRequest, "Not saved",
			"Only a list's search can be saved: go to the list and save it there.")
	case !ok:
		err = errNoViews
	case action == "delete":
		act.Verb = "delete"
		err = c.Views.DeleteView(ctx, person, name)
	default:
		err = c.Views.SaveView(ctx, person, store.View{Name: name, Href: href})
	}
	if err != nil {
		act.Code, act.Message = c.Tell(err)
		c.Record(act)
		return c.Message(act.Code, "Not saved", act.Message)
	}
	c.Record(act)
	return c.Redirect(http.StatusSeeOther, href)
}
