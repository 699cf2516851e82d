package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"flotilla.dev/hub/state"
)

// A done is what somebody has just done, as the page of the thing tells it.
type done struct {
	Text, ID string
	MayUndo  bool
}

// justDone is the action that the address tells of; nil: none.
func justDone(a *request) *done {
	j := a.jobs.get(a.query("did"))
	if j == nil || len(j.Items) != 1 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return &done{ID: j.ID, Text: j.title() + " by " + j.By + ".", MayUndo: len(j.undoable()) > 0 && j.act.allowed(a.may)}
}

// title says what is done: "Cordon 3 nodes", or once it is over and for one "pi-1: cordoned".
func (j *job) title() string {
	switch {
	case j.Undoes != nil:
		return "Undone: " + j.act.Label + " " + j.what()
	case !j.Ended.IsZero() && len(j.Items) == 1 && j.Items[0].State == "done":
		return j.Items[0].String() + " " + j.act.Done
	}
	return j.act.Label + " " + j.what()
}

func (j *job) what() string {
	if len(j.Items) == 1 {
		return j.act.one + " " + j.Items[0].String()
	}
	return j.act.many(len(j.Items))
}

// A jobRow is an action in the list of actions.
type jobRow struct {
	ID, Title, By string
	Pill          pill
	Sum           sum
	Began         *moment
	Took          string
}

func jobRowOf(j *job, now time.Time) jobRow {
	r := jobRow{ID: j.ID, Title: j.title(), By: j.By, Sum: j.sum(), Began: at(j.Began, now)}
	switch {
	case j.Ended.IsZero():
		r.Pill = pill{"warn", "In progress"}
	case r.Sum.Failed > 0 && j.Stopped:
		r.Pill = pill{"warn", "Stopped"}
	case r.Sum.Failed > 0:
		r.Pill = pill{"bad", "Failed"}
		if r.Sum.Done > 0 {
			r.Pill.Text = "Partly failed"
		}
	default:
		r.Pill = pill{"ok", "Done"}
	}
	if !j.Ended.IsZero() {
		r.Took = j.Ended.Sub(j.Began).Round(100 * time.Millisecond).String()
	}
	return r
}

// jobRows are all jobs, the newest first.
func jobRows(a *request) (rows []jobRow) {
	for _, j := range a.jobs.all() {
		j.mu.Lock()
		rows = append(rows, jobRowOf(j, a.now))
		j.mu.Unlock()
	}
	return rows
}

type jobsData struct {
	Rows   []jobRow
	Goings []going
	Since  *moment // the hub started
}

// jobList lists what people have had done.
func jobList(a *request) (page, error) {
	d := jobsData{Rows: jobRows(a), Goings: goings(a), Since: a.jobs.since(a.now)}
	return page{Template: "jobs", Title: "Actions", Watch: []string{jobsTopic, "nodes"}, Data: d}, nil
}

type jobItem struct {
	Name, Href string
	Pill       pill
	Text       string
	Parts      []part
}

type jobData struct {
	jobRow
	Means            string
	Items            []jobItem
	Running          bool
	MayStop, MayUndo bool
	Back, BackText   string
	Shows            []menuItem // all of them, or only those that have failed
	Pager            pager
}

// jobView shows one action: what it is done to, how far it is, and what failed why.
func jobView(a *request) (page, error) {
	j := a.jobs.get(a.param("id"))
	if j == nil {
		return page{}, errMissing("The hub does not know of this action any more: it was restarted, or many others have been done since. What it changed is in the fleet, and Actions lists the drains that go on.")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	undo := len(j.undoable()) > 0
	may := j.act.allowed(a.may)
	d := jobData{jobRow: jobRowOf(j, a.now), Means: j.act.Means, Running: j.Ended.IsZero(), MayStop: j.Ended.IsZero() && may, MayUndo: undo && may}
	var order []int
	filter := url.Values{}
	if a.query("show") == "failed" {
		filter.Set("show", "failed")
	}
	for _, failed := range []bool{true, false} { // what failed is what somebody looks for
		for i, p := range j.Items {
			if (p.State == "failed") == failed && (failed || len(filter) == 0) {
				order = append(order, i)
			}
		}
	}
	var from, to int
	from, to, d.Pager = pageOf(a, len(order), filter)
	for _, i := range order[from:to] {
		d.Items = append(d.Items, j.item(a, j.Items[i]))
	}
	if len(j.Items) > perPage && d.Sum.Failed > 0 {
		d.Shows = []menuItem{{Label: fmt.Sprintf("All %d", d.Sum.All), Href: a.path, Destroy: len(filter) == 0}, {Label: fmt.Sprintf("%d not done", d.Sum.Failed), Href: a.path + "?show=failed", Destroy: len(filter) > 0}}
	}
	d.Back, d.BackText = j.act.list, j.act.listed
	p := page{Template: "job", Title: j.title(), Watch: []string{jobsTopic + "/" + j.ID}, Data: d}
	if d.Running {
		p.Again = 3
	}
	return p, nil
}

func (j *job) item(a *request, p progress) jobItem {
	r := jobItem{Name: p.String(), Text: p.Text, Parts: p.Parts}
	kind := cmp.Or(p.Kind, j.act.kind)
	if o := a.Get(state.Key{Kind: kind, Namespace: p.Namespace, Name: p.Name}); o != nil {
		r.Href = objectHref(kind, p.item)
	}
	for _, part := range j.act.each {
		if part.kind == kind {
			r.Name = part.one + " " + r.Name
		}
	}
	switch p.State {
	case "done":
		r.Pill = pill{"ok", "Done"}
	case "failed":
		r.Pill = pill{"bad", cmp.Or(string(p.Why), "Failed")}
		if p.Why == wasGone {
			r.Pill.Kind = "idle"
		}
	case "doing":
		r.Pill = pill{"warn", "In progress"}
	default:
		r.Pill = pill{"idle", "Waiting"}
	}
	return r
}

// jobAction stops an action, or takes it back.
func (c *call) jobAction() error {
	j := c.jobs.get(c.Param("id"))
	if j == nil {
		return c.message(http.StatusNotFound, "Nothing to undo", "The hub does not know of this action any more: it was restarted, or many others have been done since.")
	}
	if !j.act.allowed(c.may()) {
		return c.message(http.StatusForbidden, "Not for your role", "Your role “"+string(c.user.Role)+"” may not do this. Ask an administrator.")
	}
	switch c.FormValue("action") {
	case "stop":
		j.mu.Lock()
		j.Stopped = j.Ended.IsZero()
		j.mu.Unlock()
		j.cancel()
		return c.Redirect(http.StatusSeeOther, "/actions/"+j.ID)
	case "undo":
		items := j.takeBack()
		if len(items) == 0 {
			return c.message(http.StatusConflict, "Nothing to undo", "This action has been undone already, or cannot be.")
		}
		j.notify()
		return c.begin(&job{worker: worker{caller: c.caller(), fleet: c.Fleet}, By: c.user.Name, Undoes: j, act: j.act, Items: items})
	}
	return c.message(http.StatusBadRequest, "Do what?", "An action can be stopped and undone.")
}
