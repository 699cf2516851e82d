package frame

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/state"
)

// How long a response waits for an action: for a quick action, and for a slow one.
const (
	quickly = 2 * time.Second
	slowly  = 300 * time.Millisecond
)

// actionRoutes are the routes of the actions. Each action is confirmed on a page that lists exactly
// what it would change.
func (s *Server) actionRoutes() []Route {
	routes := []Route{
		{Method: http.MethodGet, Path: "/actions/:id", Verb: "list", Resource: "nodes",
			Serve: func(c *Call) error { return c.Show(jobView) }},
		{Method: http.MethodPost, Path: "/actions/:id", Verb: "patch", Resource: "nodes", Serve: (*Call).jobAction},
	}
	routes = append(routes, s.manyRoutes()...)
	for _, a := range s.actions {
		routes = append(routes,
			Route{Method: http.MethodGet, Path: a.Path(), Verb: a.Verb, Resource: a.Resource,
				Serve: func(c *Call) error { return c.confirm(a) }},
			Route{Method: http.MethodPost, Path: a.Path(), Verb: a.Verb, Resource: a.Resource, Large: true,
				Serve: func(c *Call) error { return c.act(a) }})
	}
	return routes
}

// A target is one object that an action would change.
type target struct {
	Form, Name, Href string
	Pill             Pill
	Where, Idle      string
	Chosen           bool
}

type confirmData struct {
	Label, Means, Many string
	One, Save          string
	Alone              *target // the only object, if the address names one
	Destroy            bool
	Targets            []target
	Count              int // chosen targets
	Notes              []string
	Foreseen           *Foreseen
	Again              bool // the form has a box that changes the forecast
	Fields             []Field
	Problem            string
	Back               string
	Path               string
}

// confirm shows exactly what an action would change.
func (c *Call) confirm(a *Action) error {
	with, err := c.chosen(a, c.QueryParams()["item"])
	if err != nil {
		return c.Refuse("Nothing to act on", err)
	}
	if a.Single && len(with) != 1 {
		return c.Message(http.StatusBadRequest, "One at a time", a.Label+" is for one "+a.One+
			" at a time: choose it on its page.")
	}
	return c.askConfirm(http.StatusOK, a, with, c.QueryParams(), "")
}

// chosen returns the named objects, or those that a list shows under the query's filter.
func (c *Call) chosen(a *Action, named []string) (with []state.Object, err error) {
	s := c.Fleet.Snapshot()
	if len(named) > 0 {
		for _, text := range named {
			i, ok := parseItem(text)
			if !ok {
				return nil, MissingError("The address names no known object: go back to the list and choose there.")
			}
			if o := s.Get(state.Key{Kind: cmp.Or(i.Kind, a.Kind), Namespace: i.Namespace, Name: i.Name}); o != nil &&
				(i.UID == "" || i.UID == o.GetUID()) {
				with = append(with, o)
			}
		}
		return with, nil
	}
	v := c.Ask()
	if why := v.WrongSearch(a.Kind); why != "" {
		return nil, MissingError(why + " Go back to the list and correct the search.")
	}
	return shownUnder(v, a.Kind), nil
}

func (c *Call) askConfirm(code int, a *Action, with []state.Object, form url.Values, problem string) error {
	if len(with) > tickable || len(a.each) > 0 {
		take, left := needing(c.Ask(), a, with)
		return c.askMany(code, choice{act: a, take: take, left: left}, form, problem)
	}
	d := confirmData{
		Label: a.Label, Save: a.Save, Means: a.Means, One: a.One, Destroy: a.Destroy, Problem: problem, Path: a.Path(),
		Back: LocalPath(form.Get("back")),
	}
	if d.Back == "/" {
		d.Back = c.listOf(a)
	}
	v := c.Ask()
	var needed []state.Object
	for _, o := range with {
		t := targetOf(v, o)
		if a.Idle != nil {
			t.Idle = a.Idle(o)
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
	if a.Foresee != nil && c.Foresight.Deciders != nil && len(needed) > 0 {
		d.Foreseen = a.Foresee(v, needed, form)
	} else if a.Notes != nil {
		d.Notes = a.Notes(v.Snapshot, needed)
	}
	if a.Fields != nil {
		d.Fields = a.Fields(v.Snapshot, needed)
		for i := range d.Fields {
			d.Fields[i].keep(form)
			d.Again = d.Again || d.Foreseen != nil && d.Fields[i].Type == "checkbox"
		}
	}
	return c.ShowPage(code, Page{Template: "confirm", Title: a.Label + ": " + d.Many, Data: d})
}

// keep fills the field with what the user entered before.
func (f *Field) keep(form url.Values) {
	if !form.Has(f.Name) {
		if f.Type == "checkbox" && form.Has("csrf") {
			f.Value = "" // browsers do not send unticked boxes
		}
		return
	}
	if f.Changes && Unchanged(form, f.Name) {
		return // somebody may have changed the object since
	}
	lines := strings.NewReplacer("\r\n", "\n") // browsers send these line ends
	if form.Has(wasOf(f.Name)) {
		f.Was = lines.Replace(form.Get(wasOf(f.Name)))
	}
	f.Value = lines.Replace(form.Get(f.Name))
	for i := range f.Options {
		f.Options[i].Chosen = f.Options[i].Value == f.Value
	}
}

// listOf returns the filtered list that an action's objects are chosen from.
func (c *Call) listOf(a *Action) string {
	q := url.Values{}
	for _, name := range []string{"q", "site", "state", "status", "cause", "severity", "namespace",
		"owner", "sort"} {
		if v := c.QueryParam(name); v != "" {
			q.Set(name, v)
		}
	}
	if named := c.QueryParams()["item"]; len(named) == 1 {
		if i, ok := parseItem(named[0]); ok {
			return ObjectHref(a.Kind, i)
		}
	}
	if len(q) == 0 {
		return a.List
	}
	return a.List + "?" + q.Encode()
}

func targetOf(a *Request, o state.Object) target {
	i := ItemOf(o)
	t := target{Form: i.Form(), Name: i.String(), Href: ObjectHref(state.KindOf(o), i)}
	how := a.listings[state.KindOf(o)]
	if how.Pill != nil {
		t.Pill = how.Pill(a, o)
	}
	if how.Where != nil {
		t.Where = how.Where(a, o)
	}
	return t
}

// act begins an action on exactly the objects that the form names.
func (c *Call) act(a *Action) error {
	form, err := c.FormParams()
	if err != nil {
		return c.Message(http.StatusBadRequest, "Not understood", "The form could not be read: "+err.Error()+".")
	}
	named, ok := namedIn(form)
	if !ok || slices.ContainsFunc(named, func(i Item) bool { return i.Kind != "" && len(a.each) == 0 }) {
		return c.Message(http.StatusBadRequest, "Nothing to act on", unknownObject)
	}
	var items []Progress
	var texts []string
	for _, i := range named {
		items, texts = append(items, Progress{Item: i, State: "waiting"}), append(texts, i.Form())
	}
	switch {
	case len(items) == 0:
		return c.Message(http.StatusBadRequest, "Nothing is selected", "Choose at least one "+a.One+
			". Nothing was changed.")
	case a.Single && len(items) > 1:
		return c.Message(http.StatusBadRequest, "One at a time", a.Label+" is for one "+a.One+
			" at a time. Nothing was changed.")
	case len(items) > maxItems:
		return c.Message(http.StatusBadRequest, "Too many", tooMany)
	}
	with, err := c.chosen(a, texts)
	if err != nil {
		return c.Refuse("Nothing to act on", err)
	}
	if form.Has("look") {
		return c.askConfirm(http.StatusOK, a, with, form, "")
	}
	if problem := typed(a, form, len(items)); problem != "" {
		return c.askConfirm(http.StatusUnprocessableEntity, a, with, form, problem)
	}
	w := Worker{caller: c.caller(), Fleet: c.Fleet}
	if a.Parse != nil {
		if w.Given, err = a.Parse(form); err != nil {
			return c.askConfirm(http.StatusUnprocessableEntity, a, with, form, err.Error())
		}
	}
	if a.Check != nil && len(with) > 0 {
		if err := a.Check(c.Request().Context(), &w, with[0]); err != nil {
			return c.askConfirm(http.StatusUnprocessableEntity, a, with, form, ErrorText(err))
		}
	}
	return c.begin(&Job{Worker: w, By: c.User.Name, act: a, Items: items})
}

// begin starts a job and redirects to the page that shows it.
func (c *Call) begin(j *Job) error {
	if !c.jobs.begin(j) {
		return c.Message(http.StatusServiceUnavailable, "Too busy",
			"Too many actions are running: stop some, or wait until they end. Nothing was changed.")
	}
	quick := time.NewTimer(quickly)
	if j.act.All != nil && j.Undoes == nil {
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

// after returns the next page: the changed object's if all went well, otherwise the job's.
func (c *Call) after(j *Job) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	here := "/actions/" + j.ID
	if j.Ended.IsZero() || len(j.Items) != 1 || j.Items[0].State != "done" || j.act.All != nil && j.Undoes == nil {
		return here
	}
	i := j.Items[0].Item
	href := ObjectHref(j.act.Kind, i)
	u, err := url.Parse(href)
	if err != nil || href == "" || c.Fleet.Snapshot().Get(state.Key{Kind: j.act.Kind, Namespace: i.Namespace,
		Name: i.Name}) == nil {
		return here
	}
	if u.Path == "/workloads" || strings.HasPrefix(u.Path, "/yaml/") {
		return here // the page does not show what was done
	}
	q := u.Query()
	q.Set("did", j.ID)
	u.RawQuery = q.Encode()
	return u.String()
}

// A Foreseen is what an action would do to pods, shown before it is confirmed.
type Foreseen struct {
	Sums    []string
	Budgets []BudgetWarning
	Losses  []string
	Rows    []FateRow
	More    int  // pods that are not listed
	From    bool // the pods are on several nodes
	Note    string
}

// A BudgetWarning is what a PodDisruptionBudget means for a drain.
type BudgetWarning struct {
	Name, Href string
	Text       string
	Never      bool
}

// A FateRow is a pod and what an action would do to it.
type FateRow struct {
	Name, Href string
	From       string
	Pill       Pill
	To, ToHref string
	Why        string
}
