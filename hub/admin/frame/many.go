package frame

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

const (
	// tickable is how many objects the page before an action lists with check boxes. With more, it
	// lists the first ones, and a destroying action needs their number typed.
	tickable = 10
	// firstShown is how many of many objects are listed.
	firstShown = 20
	// manyKind stands for several kinds in an address.
	manyKind state.Kind = "many"
)

var tooMany = fmt.Sprintf(
	"One action changes at most %d objects: filter the list, and do it in parts. Nothing was changed.", maxItems)

// unknownObject is the refusal of a form whose objects do not exist.
const unknownObject = "The form names no known object: go back to the list and choose again."

// manyRoutes lead from check boxes to an action: the picked objects are confirmed on a page, and
// the action begins from there.
func (s *Server) manyRoutes() []Route {
	return []Route{
		{Method: http.MethodPost, Path: "/actions/many", Verb: "patch", Resource: "nodes", Large: true,
			Serve: (*Call).picked},
		{Method: http.MethodPost, Path: "/actions/many/:do", Verb: "patch", Resource: "nodes", Large: true,
			Serve: (*Call).actTogether},
	}
}

// A choice is which picked objects an action would change, and why not the others.
type choice struct {
	act  *Action
	take []state.Object
	left []leftOut
}

// A leftOut is a picked object that the action does not change.
type leftOut struct {
	Name, Href, Why string
	idle            bool // it needs no change
}

// choose sorts the picked objects by whether the named action applies to them and the role may do
// it. The action's kind is empty if none remains.
func choose(actions []*Action, may func(verb, resource string) bool, do string, picked []state.Object) choice {
	var c choice
	var parts []*Action
	byKind := map[state.Kind]*Action{}
	for _, a := range actions {
		if a.Name == do && !a.Single && !a.Aside {
			byKind[a.Kind] = a
		}
	}
	ones := map[state.Kind]string{}
	for _, a := range actions {
		ones[a.Kind] = a.One
	}
	for _, o := range picked {
		kind := state.KindOf(o)
		a, why := byKind[kind], ""
		switch {
		case a == nil:
			why = "does not apply to a " + ones[kind]
		case !a.allowed(may):
			why = "is not for your role, which may not " + a.Verb + " " + a.Resource
		case a.Idle != nil:
			why = a.Idle(o)
		}
		if a != nil && !slices.Contains(parts, a) {
			parts = append(parts, a)
		}
		if why != "" {
			c.left = append(c.left, leftOut{Name: pickOf(o).String(), Href: ObjectHref(kind, ItemOf(o)), Why: why,
				idle: a != nil && a.allowed(may)})
			continue
		}
		c.take = append(c.take, o)
	}
	c.act = jointly(parts)
	return c
}

// needing sorts objects by whether they need the action.
func needing(v *Request, a *Action, with []state.Object) (take []state.Object, left []leftOut) {
	c := choose(append(slices.Clone(a.each), a), v.May, a.Name, with)
	return c.take, c.left
}

// jointly joins the actions with one name of several kinds: each object gets the action of its
// kind. For one kind it is that kind's action.
func jointly(parts []*Action) *Action {
	if len(parts) == 0 {
		return nil
	}
	if len(parts) == 1 {
		return parts[0]
	}
	first := parts[0]
	a := &Action{
		Name: first.Name, Label: first.Label, Save: first.Save, Done: first.Done, Means: first.Means, Kind: manyKind,
		One:  "workload",
		List: first.List, Listed: first.Listed, Fields: first.Fields, Parse: first.Parse, each: parts,
	}
	of := func(o state.Object) *Action {
		i := slices.IndexFunc(parts, func(p *Action) bool { return p.Kind == state.KindOf(o) })
		return parts[max(i, 0)] // objects of other kinds were left out before
	}
	var means []string
	for _, p := range parts {
		a.Destroy = a.Destroy || p.Destroy
		means = append(means, strings.ToUpper(p.One[:1])+p.One[1:]+"s: "+p.Means)
	}
	if slices.ContainsFunc(parts, func(p *Action) bool { return p.Means != first.Means }) {
		a.Means = strings.Join(means, " ")
	}
	a.Notes = func(s state.Snapshot, with []state.Object) (notes []string) {
		for _, p := range parts {
			mine := slices.DeleteFunc(slices.Clone(with), func(o state.Object) bool { return of(o) != p })
			if p.Notes == nil || len(mine) == 0 {
				continue
			}
			for _, n := range p.Notes(s, mine) {
				notes = append(notes, p.many(len(mine))+": "+n)
			}
		}
		return notes
	}
	a.Do = func(ctx context.Context, w *Worker, o state.Object) (Undo, error) { return of(o).Do(ctx, w, o) }
	return a
}

// namedIn returns the objects that a form names, each once: as single items, and as one list.
func namedIn(form url.Values) (items []Item, ok bool) {
	seen := map[Item]bool{}
	texts := slices.Clone(form["item"])
	for _, list := range form["items"] {
		texts = append(texts, strings.Fields(list)...)
	}
	for _, text := range texts {
		i, ok := parseItem(text)
		if !ok {
			return nil, false
		}
		if !seen[i] {
			seen[i] = true
			items = append(items, i)
		}
	}
	return items, true
}

// typed checks the number that must be typed before many objects are destroyed; "": it is right.
func typed(a *Action, form url.Values, n int) string {
	if !a.Destroy || n <= tickable {
		return ""
	}
	text := strings.NewReplacer(",", "", " ", "", "\u202f", "", "\u00a0", "").Replace(form.Get("number"))
	switch have, err := strconv.Atoi(text); {
	case text == "":
		return fmt.Sprintf("Type %d, the number of objects. Nothing was changed.", n)
	case err != nil || have != n:
		return fmt.Sprintf("You typed %.20q, but there are %d objects. Check the list, and type that number if it "+
			"is right. Nothing was changed.", form.Get("number"), n)
	}
	return ""
}

type siteCount struct {
	Name  string
	Count int
}

type manyData struct {
	Label, Save, Means, Many string
	Destroy                  bool
	Problem                  string
	Notes                    []string
	Fields                   []Field
	Path, Back               string
	Items                    string // all objects, by UID
	Count                    int
	Type                     bool // the number must be typed
	Shown                    []target
	More                     int // objects besides Shown
	By                       string
	Sites                    []siteCount
	MoreSites                int
	Left                     []leftOut
	LeftCount                int
}

// askMany confirms an action on objects that are too many for check boxes or of several kinds. The
// form names each by its UID, so that the action changes exactly these.
func (c *Call) askMany(code int, ch choice, form url.Values, problem string) error {
	a, v := ch.act, c.Ask()
	if len(ch.take) > maxItems {
		return c.Message(http.StatusBadRequest, "Too many", tooMany)
	}
	d := manyData{
		Label: a.Label, Save: a.Save, Means: a.Means, Many: a.many(len(ch.take)), Destroy: a.Destroy, Problem: problem,
		Path: a.Path(), Back: LocalPath(form.Get("back")),
		Count: len(ch.take), Type: a.Destroy && len(ch.take) > tickable, LeftCount: len(ch.left),
		Left: ch.left[:min(len(ch.left), firstShown)],
	}
	if d.Back == "/" {
		d.Back = c.listOf(a)
	}
	var items strings.Builder
	counts := map[string]int{}
	for n, o := range ch.take {
		i := ItemOf(o)
		if len(a.each) > 0 {
			i = pickOf(o)
		}
		items.WriteString(i.Form() + " ")
		by, name := placeOf(v, o)
		d.By = by
		counts[name]++
		if n < firstShown {
			t := targetOf(v, o)
			if len(a.each) > 0 {
				t.Where = a.oneOf(o)
			}
			d.Shown = append(d.Shown, t)
		}
	}
	d.Items, d.More = items.String(), len(ch.take)-len(d.Shown)
	for name, n := range counts {
		d.Sites = append(d.Sites, siteCount{name, n})
	}
	sort.Slice(d.Sites, func(i, j int) bool {
		x, y := d.Sites[i], d.Sites[j]
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Name, y.Name)) < 0
	})
	d.MoreSites = max(0, len(d.Sites)-firstShown)
	d.Sites = d.Sites[:len(d.Sites)-d.MoreSites]
	if a.Notes != nil {
		d.Notes = a.Notes(v.Snapshot, ch.take)
	}
	if a.Fields != nil {
		d.Fields = a.Fields(v.Snapshot, ch.take)
		for i := range d.Fields {
			d.Fields[i].keep(form)
		}
	}
	return c.ShowPage(code, Page{Template: "many", Title: a.Label + ": " + d.Many, Data: d})
}

// oneOf names an object's kind.
func (a *Action) oneOf(o state.Object) string {
	for _, p := range a.each {
		if p.Kind == state.KindOf(o) {
			return p.One
		}
	}
	return a.One
}

// placeOf is the group in which an object is counted: its site, or without one its namespace.
func placeOf(v *Request, o state.Object) (by, name string) {
	switch o := o.(type) {
	case *corev1.Node:
		return "site", state.SiteOf(o)
	case *corev1.Pod:
		if n := v.Node(o.Spec.NodeName); n != nil {
			return "site", state.SiteOf(n)
		}
		return "site", "on no node"
	}
	if o.GetNamespace() == "" {
		return "", ""
	}
	return "namespace", o.GetNamespace()
}

// picked shows the page before an action, for objects ticked in a list, or for all objects under
// the list's filter.
func (c *Call) picked() error {
	form, err := c.FormParams()
	if err != nil {
		return c.Message(http.StatusBadRequest, "Not understood", "The form could not be read: "+err.Error()+".")
	}
	items, ok := namedIn(url.Values{"item": form["pick"], "items": form["picks"]})
	if !ok {
		return c.Message(http.StatusBadRequest, "Nothing to act on", unknownObject)
	}
	v := c.Ask()
	var picked []state.Object
	var away []leftOut
	switch kind := state.Kind(form.Get("all")); {
	case kind != "":
		if !slices.ContainsFunc(c.actions, func(a *Action) bool { return a.Kind == kind }) {
			return c.Message(http.StatusBadRequest, "Nothing to act on", unknownObject)
		}
		if why := v.WrongSearch(kind); why != "" {
			return c.Message(http.StatusBadRequest, "Nothing to act on",
				why+" Go back to the list and correct the search. Nothing was changed.")
		}
		picked = shownUnder(v, kind)
	case len(items) > maxItems:
		return c.Message(http.StatusBadRequest, "Too many", tooMany)
	default:
		sort.Slice(items, func(i, j int) bool {
			x, y := items[i], items[j]
			return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Namespace, y.Namespace),
				cmp.Compare(x.Name, y.Name)) < 0
		})
		for _, i := range items {
			if !slices.ContainsFunc(c.actions, func(a *Action) bool { return a.Kind == i.Kind }) {
				return c.Message(http.StatusBadRequest, "Nothing to act on",
					"The form names an object without actions.")
			}
			switch o := v.Get(state.Key{Kind: i.Kind, Namespace: i.Namespace, Name: i.Name}); {
			case o == nil:
				away = append(away, leftOut{Name: i.String(), Why: "has gone"})
			case i.UID != o.GetUID():
				away = append(away, leftOut{Name: i.String(), Href: ObjectHref(i.Kind, i),
					Why: "was deleted, and a new object has its name: look at that one first"})
			default:
				picked = append(picked, o)
			}
		}
	}
	if len(picked) == 0 && len(away) == 0 {
		return c.Message(http.StatusBadRequest, "Nothing is selected",
			"Tick the boxes of the objects, and choose the action again. Nothing was changed.")
	}
	if len(picked) == 0 {
		return c.Message(http.StatusConflict, "Everything is gone",
			"The ticked objects do not exist any more. Nothing was changed.")
	}
	ch := choose(c.actions, v.May, form.Get("do"), picked)
	if ch.act == nil {
		return c.Message(http.StatusBadRequest, "Do what?",
			"This action applies to none of the ticked objects. Nothing was changed.")
	}
	if len(ch.act.each) == 0 && !slices.ContainsFunc(ch.left, func(l leftOut) bool { return !l.idle }) &&
		len(picked) <= tickable && len(away) == 0 {
		return c.askConfirm(http.StatusOK, ch.act, picked, c.QueryParams(), "")
	}
	ch.left = append(away, ch.left...)
	return c.askMany(http.StatusOK, ch, c.QueryParams(), "")
}

// may tells what the user's role may do.
func (c *Call) may() func(verb, resource string) bool {
	return func(verb, resource string) bool { return c.Allow(c.User.Role, verb, resource) }
}

// actTogether begins an action on exactly the objects, of several kinds, that the form names.
func (c *Call) actTogether() error {
	form, err := c.FormParams()
	if err != nil {
		return c.Message(http.StatusBadRequest, "Not understood", "The form could not be read: "+err.Error()+".")
	}
	items, ok := namedIn(form)
	if !ok {
		return c.Message(http.StatusBadRequest, "Nothing to act on", unknownObject)
	}
	var parts []*Action
	for _, i := range items {
		at := slices.IndexFunc(c.actions, func(a *Action) bool {
			return a.Kind == i.Kind && a.Name == c.Param("do") && !a.Single && !a.Aside
		})
		switch {
		case at < 0:
			return c.Message(http.StatusBadRequest, "Nothing to act on",
				"This action does not apply to an object in the form. Nothing was changed.")
		case !c.actions[at].allowed(c.may()):
			return c.Message(http.StatusForbidden, "Not for your role", "Your role “"+string(c.User.Role)+"” may not "+
				c.actions[at].Verb+" "+c.actions[at].Resource+". Nothing was changed.")
		case !slices.Contains(parts, c.actions[at]):
			parts = append(parts, c.actions[at])
		}
	}
	a := jointly(parts)
	if a == nil {
		return c.Message(http.StatusBadRequest, "Nothing is selected",
			"Tick the boxes of the objects, and choose the action again. Nothing was changed.")
	}
	return c.act(a)
}
