package admin

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"flotilla.dev/hub/store"
)

// Views are the searches that people have given names.
type Views interface {
	// Views lists a person's by name.
	Views(ctx context.Context, user string) ([]store.View, error)
	// SaveView keeps one, in place of theirs of that name.
	SaveView(ctx context.Context, user string, v store.View) error
	DeleteView(ctx context.Context, user, name string) error
}

// viewParams are what an address says of a list, by the list's path. A page of it is none of them.
var viewParams = map[string][]string{
	"/nodes": {"q", "site", "status", "sort"}, "/pods": {"q", "namespace", "status", "owner", "sort"}, "/workloads": {"q", "namespace", "status"},
	"/sites": {"q", "state"}, "/events": {"q", "type", "since", "reason"},
}

// viewHref is the address of a list as a view keeps it, "" where it is of no list.
func viewHref(text string) string {
	u, err := url.Parse(local(text))
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

const errNoViews = errTold("A certificate has no saved views: log in with your password, without it.")

// A savedView is a link to one.
type savedView struct {
	Name, Href string
	Here       bool
}

// savedViews are a person's of one list.
type savedViews struct {
	Views []savedView
	Here  string // what would be saved
	CSRF  string
}

// person is whose views these are: the name in a certificate is anybody's, or nobody's.
func (c *call) person() (name string, ok bool) {
	return c.user.Name, c.Views != nil && c.user.Name != "" && c.user.Via != "certificate"
}

// savedViews are those of the list that is asked for; nil: it is none, or there can be none.
func (c *call) savedViews() *savedViews {
	r := c.Request()
	here := viewHref(r.URL.RequestURI())
	if _, ok := c.person(); !ok || r.Method != http.MethodGet || here == "" || !c.Allow(c.user.Role, "update", "account") {
		return nil
	}
	d := &savedViews{Here: here, CSRF: c.user.CSRF}
	for _, v := range c.ownViews() {
		if path, _, _ := strings.Cut(v.Href, "?"); path == r.URL.Path {
			d.Views = append(d.Views, savedView{v.Name, v.Href, v.Href == here})
		}
	}
	return d
}

// ownViews are all of the person's; a page without them is better than none.
func (c *call) ownViews() []store.View {
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

// viewFinds are the person's views as the palette finds them.
func (c *call) viewFinds(asked string) (all []find) {
	if asked == "" {
		return nil
	}
	for _, v := range c.ownViews() {
		path, _, _ := strings.Cut(v.Href, "?")
		all = append(all, find{Kind: "View", Name: v.Name, Where: strings.TrimPrefix(path, "/"), Href: v.Href})
	}
	return all
}

// changeViews saves or deletes a view, and leads back to the list.
func (c *call) changeViews() error {
	href, name, ctx := viewHref(c.FormValue("href")), c.FormValue("name"), c.Request().Context()
	act := store.Audit{Verb: "update", Resource: "views", Name: strings.Join(strings.Fields(name), " "), Message: href, Code: http.StatusOK}
	var err error
	person, ok := c.person()
	switch action := c.FormValue("action"); {
	case c.Views == nil || href == "" || action != "save" && action != "delete":
		return c.message(http.StatusBadRequest, "Not saved", "Only a list's search can be saved: go to the list and save it there.")
	case !ok:
		err = errNoViews
	case action == "delete":
		act.Verb = "delete"
		err = c.Views.DeleteView(ctx, person, name)
	default:
		err = c.Views.SaveView(ctx, person, store.View{Name: name, Href: href})
	}
	if err != nil {
		act.Code, act.Message = c.tell(err)
		c.did(act)
		return c.message(act.Code, "Not saved", act.Message)
	}
	c.did(act)
	return c.Redirect(http.StatusSeeOther, href)
}

// ---- sorting where the heads of columns are not shown

// sortOptions are the orders of a list, each also the other way.
func sortOptions[T any](a *request, by []sorter[T]) (o []option) {
	now := a.query("sort")
	for _, s := range by {
		if s.name == "" {
			continue
		}
		value := s.name
		if s.name == unsorted {
			value = ""
		}
		o = append(o, option{value, "Sort by " + inside(s.title), now == value || now == s.name}, option{"-" + s.name, "… " + inside(s.title) + ", last first", now == "-"+s.name})
	}
	return o
}
