package admin

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/state"
)

// How long an answer waits for an action that is quick most often, and for one that
// seldom is.
const (
	quickly = 2 * time.Second
	slowly  = 300 * time.Millisecond
)

// actionRoutes are the routes of the actions: each is asked for on a page that says
// what exactly it would be done to, and begun from there.
func (s *Server) actionRoutes() []Route {
	routes := []Route{
		{Method: http.MethodGet, Path: "/actions/:id", Verb: "list", Resource: "nodes", serve: func(c *call) error { return c.show(jobView) }},
		{Method: http.MethodPost, Path: "/actions/:id", Verb: "patch", Resource: "nodes", serve: (*call).jobAction},
	}
	routes = append(routes, s.manyRoutes()...)
	for _, a := range s.actions {
		routes = append(routes,
			Route{Method: http.MethodGet, Path: a.path(), Verb: a.verb, Resource: a.resource, serve: func(c *call) error { return c.confirm(a) }},
			Route{Method: http.MethodPost, Path: a.path(), Verb: a.verb, Resource: a.resource, Large: true, serve: func(c *call) error { return c.act(a) }})
	}
	return routes
}

// A target is one row of what an action would be done to.
type target struct {
	Form, Name, Href string
	Pill             pill
	Where, Idle      string
	Chosen           bool
}

type confirmData struct {
	Label, Means, Many string
	One, Save          string
	Alone              *target // what it is done to, where that is one thing that is named
	Destroy            bool
	Targets            []target
	Count              int // that are chosen
	Notes              []string
	Foreseen           *foreseen
	Again              bool // what is foreseen is another with another box ticked
	Fields             []field
	Problem            string
	Back               string
	Path               string
}

// confirm shows what exactly an action would be done to, before it is.
func (c *call) confirm(a *action) error {
	with, err := c.chosen(a, c.QueryParams()["item"])
	if err != nil {
		return c.refuse("Do it to what?", err)
	}
	if a.single && len(with) != 1 {
		return c.message(http.StatusBadRequest, "One at a time", a.Label+" is for one "+a.one+" at a time: choose it on its page.")
	}
	return c.askConfirm(http.StatusOK, a, with, c.QueryParams(), "")
}

// chosen returns the objects that are named, or those that a list shows under the
// filter that is in the query.
func (c *call) chosen(a *action, named []string) (with []state.Object, err error) {
	s := c.Fleet.Snapshot()
	if len(named) > 0 {
		for _, text := range named {
			i, ok := parseItem(text)
			if !ok {
				return nil, errMissing("The address names nothing: go back to the list and choose there.")
			}
			if o := s.Get(state.Key{Kind: cmp.Or(i.Kind, a.kind), Namespace: i.Namespace, Name: i.Name}); o != nil && (i.UID == "" || i.UID == o.GetUID()) {
				with = append(with, o)
			}
		}
		return with, nil
	}
	v := c.ask()
	if why := v.wrongSearch(a.kind); why != "" {
		return nil, errMissing(why + " Go back to the list and mend the search.")
	}
	return shownUnder(v, a.kind), nil
}

func (c *call) askConfirm(code int, a *action, with []state.Object, form url.Values, problem string) error {
	if len(with) > tickable || len(a.each) > 0 {
		take, left := needing(c.ask(), a, with)
		return c.askMany(code, choice{act: a, take: take, left: left}, form, problem)
	}
	d := confirmData{
		Label: a.Label, Save: a.Save, Means: a.Means, One: a.one, Destroy: a.Destroy, Problem: problem, Path: a.path(),
		Back: local(form.Get("back")),
	}
	if d.Back == "/" {
		d.Back = c.listOf(a)
	}
	v := c.ask()
	var needed []state.Object
	for _, o := range with {
		t := targetOf(v, o)
		if a.idle != nil {
			t.Idle = a.idle(o)
		}
		if t.Chosen = t.Idle == ""; t.Chosen {
			needed = append(needed, o)
		}
		d.Targets = append(d.Targets, t)
	}
	d.Count, d.Many = len(needed), a.many(len(needed))
	if len(form["item"]) == 1 && len(d.Targets) == 1 {
		d.Alone = &d.Targets[0]
	}
	if a.foresee != nil && c.Foresight.Deciders != nil && len(needed) > 0 {
		d.Foreseen = a.foresee(v, needed, form)
	} else if a.notes != nil {
		d.Notes = a.notes(v.Snapshot, needed)
	}
	if a.fields != nil {
		d.Fields = a.fields(v.Snapshot, needed)
		for i := range d.Fields {
			d.Fields[i].keep(form)
			d.Again = d.Again || d.Foreseen != nil && d.Fields[i].Type == "checkbox"
		}
	}
	return c.plain(code, page{Template: "confirm", Title: a.Label + ": " + d.Many, Data: d})
}

// keep puts what was filled in before into the field.
func (f *field) keep(form url.Values) {
	if !form.Has(f.Name) {
		if f.Type == "checkbox" && form.Has("csrf") {
			f.Value = "" // a box that is not ticked is not sent
		}
		return
	}
	if f.Changes && leftAlone(form, f.Name) {
		return // others may have changed it since
	}
	if form.Has(wasOf(f.Name)) {
		f.Was = form.Get(wasOf(f.Name))
	}
	f.Value = form.Get(f.Name)
	for i := range f.Options {
		f.Options[i].Chosen = f.Options[i].Value == f.Value
	}
}

// listOf is the list from which an action's things are chosen, as it was filtered.
func (c *call) listOf(a *action) string {
	q := url.Values{}
	for _, name := range []string{"q", "site", "state", "status", "namespace", "owner", "sort"} {
		if v := c.QueryParam(name); v != "" {
			q.Set(name, v)
		}
	}
	if named := c.QueryParams()["item"]; len(named) == 1 {
		if i, ok := parseItem(named[0]); ok {
			return objectHref(a.kind, i)
		}
	}
	if len(q) == 0 {
		return a.list
	}
	return a.list + "?" + q.Encode()
}

func targetOf(a *request, o state.Object) target {
	i := itemOf(o)
	t := target{Form: i.Form(), Name: i.String(), Href: objectHref(state.KindOf(o), i)}
	how := a.listings[state.KindOf(o)]
	if how.pill != nil {
		t.Pill = how.pill(a, o)
	}
	if how.where != nil {
		t.Where = how.where(a, o)
	}
	return t
}

// act begins an action on exactly the things that the form names.
func (c *call) act(a *action) error {
	form, err := c.FormParams()
	if err != nil {
		return c.message(http.StatusBadRequest, "Not understood", "The form could not be read: "+err.Error()+".")
	}
	named, ok := namedIn(form)
	if !ok || slices.ContainsFunc(named, func(i item) bool { return i.Kind != "" && len(a.each) == 0 }) {
		return c.message(http.StatusBadRequest, "Do it to what?", "The form names nothing that could be found.")
	}
	var items []progress
	var texts []string
	for _, i := range named {
		items, texts = append(items, progress{item: i, State: "waiting"}), append(texts, i.Form())
	}
	switch {
	case len(items) == 0:
		return c.message(http.StatusBadRequest, "Nothing is chosen", "Choose at least one "+a.one+". Nothing was changed.")
	case a.single && len(items) > 1:
		return c.message(http.StatusBadRequest, "One at a time", a.Label+" is for one "+a.one+" at a time. Nothing was changed.")
	case len(items) > maxItems:
		return c.message(http.StatusBadRequest, "Too many", tooMany)
	}
	with, err := c.chosen(a, texts)
	if err != nil {
		return c.refuse("Do it to what?", err)
	}
	if form.Has("look") {
		return c.askConfirm(http.StatusOK, a, with, form, "")
	}
	if problem := typed(a, form, len(items)); problem != "" {
		return c.askConfirm(http.StatusUnprocessableEntity, a, with, form, problem)
	}
	w := worker{caller: c.caller(), fleet: c.Fleet}
	if a.parse != nil {
		if w.given, err = a.parse(form); err != nil {
			return c.askConfirm(http.StatusUnprocessableEntity, a, with, form, err.Error())
		}
	}
	if a.check != nil && len(with) > 0 {
		if err := a.check(c.Request().Context(), &w, with[0]); err != nil {
			return c.askConfirm(http.StatusUnprocessableEntity, a, with, form, sentence(err))
		}
	}
	return c.begin(&job{worker: w, By: c.user.Name, act: a, Items: items})
}

// begin starts a job, and leads to where it can be seen.
func (c *call) begin(j *job) error {
	if !c.jobs.begin(j) {
		return c.message(http.StatusServiceUnavailable, "Too busy", "Too many actions are going on: stop some, or wait until they are over. Nothing was changed.")
	}
	quick := time.NewTimer(quickly)
	if j.act.all != nil && j.Undoes == nil {
		quick.Reset(slowly)
	}
	defer quick.Stop()
	select {
	case <-j.over:
	case <-quick.C:
	case <-c.Request().Context().Done():
	}
	return c.Redirect(http.StatusSeeOther, c.after(j))
}

// after is where to look next: at the one thing where it was one and went well, else
// at the job.
func (c *call) after(j *job) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	here := "/actions/" + j.ID
	if j.Ended.IsZero() || len(j.Items) != 1 || j.Items[0].State != "done" || j.act.all != nil && j.Undoes == nil {
		return here
	}
	i := j.Items[0].item
	href := objectHref(j.act.kind, i)
	u, err := url.Parse(href)
	if err != nil || href == "" || c.Fleet.Snapshot().Get(state.Key{Kind: j.act.kind, Namespace: i.Namespace, Name: i.Name}) == nil {
		return here
	}
	if u.Path == "/workloads" || strings.HasPrefix(u.Path, "/yaml/") {
		return here // which tells nothing of what was done
	}
	q := u.Query()
	q.Set("did", j.ID)
	u.RawQuery = q.Encode()
	return u.String()
}
