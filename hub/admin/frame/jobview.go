package frame

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/state"
)

// A Done is what a user has just done to the object of a page.
type Done struct {
	Text, ID string
	MayUndo  bool
}

// JustDone returns the job that the address names; nil: it names none.
func JustDone(a *Request) *Done {
	j := a.Jobs.get(a.Query("did"))
	if j == nil || len(j.Items) != 1 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return &Done{ID: j.ID, Text: j.title() + " by " + j.By + ".", MayUndo: len(j.undoable()) > 0 &&
		j.act.allowed(a.May)}
}

// title is the job's title: "Cordon 3 nodes", or for one object that is done "pi-1: cordoned".
func (j *Job) title() string {
	switch {
	case j.Undoes != nil:
		return "Undone: " + j.act.Label + " " + j.what()
	case !j.Ended.IsZero() && len(j.Items) == 1 && j.Items[0].State == "done":
		return j.Items[0].String() + " " + j.act.Done
	}
	return j.act.Label + " " + j.what()
}

func (j *Job) what() string {
	if len(j.Items) == 1 {
		return j.act.One + " " + j.Items[0].String()
	}
	return j.act.many(len(j.Items))
}

// A JobRow is a job in the list of actions.
type JobRow struct {
	ID, Title, By string
	Pill          Pill
	Sum           sum
	Began         *format.Moment
	Took          string
}

func jobRowOf(j *Job, now time.Time) JobRow {
	r := JobRow{ID: j.ID, Title: j.title(), By: j.By, Sum: j.sum(), Began: format.Time(j.Began, now)}
	switch {
	case j.Ended.IsZero():
		r.Pill = Pill{"warn", "In progress"}
	case r.Sum.Failed > 0 && j.Stopped:
		r.Pill = Pill{"warn", "Stopped"}
	case r.Sum.Failed > 0:
		r.Pill = Pill{"bad", "Failed"}
		if r.Sum.Done > 0 {
			r.Pill.Text = "Partly failed"
		}
	default:
		r.Pill = Pill{"ok", "Done"}
	}
	if !j.Ended.IsZero() {
		r.Took = j.Ended.Sub(j.Began).Round(100 * time.Millisecond).String()
	}
	return r
}

// JobRows are all jobs, newest first.
func JobRows(a *Request) (rows []JobRow) {
	for _, j := range a.Jobs.all() {
		j.mu.Lock()
		rows = append(rows, jobRowOf(j, a.Now))
		j.mu.Unlock()
	}
	return rows
}

type jobItem struct {
	Name, Href string
	Pill       Pill
	Text       string
	Parts      []Part
}

type jobData struct {
	JobRow
	Means            string
	Items            []jobItem
	Running          bool
	MayStop, MayUndo bool
	Back, BackText   string
	Shows            []MenuItem // links: all objects, or the failed ones only
	Pager            Pager
}

// jobView shows one job: its objects, how far each is, and why some failed.
func jobView(a *Request) (Page, error) {
	j := a.Jobs.get(a.Param("id"))
	if j == nil {
		return Page{}, MissingError("The hub has forgotten this action: it was restarted, or many others " +
			"have been done since. Its changes are in the fleet, and Actions lists the running drains.")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	undo := len(j.undoable()) > 0
	may := j.act.allowed(a.May)
	d := jobData{JobRow: jobRowOf(j, a.Now), Means: j.act.Means, Running: j.Ended.IsZero(), MayStop: j.Ended.IsZero() &&
		may, MayUndo: undo && may}
	var order []int
	filter := url.Values{}
	if a.Query("show") == "failed" {
		filter.Set("show", "failed")
	}
	for _, failed := range []bool{true, false} { // failures first
		for i, p := range j.Items {
			if (p.State == "failed") == failed && (failed || len(filter) == 0) {
				order = append(order, i)
			}
		}
	}
	var from, to int
	from, to, d.Pager = PageOf(a, len(order), filter)
	for _, i := range order[from:to] {
		d.Items = append(d.Items, j.item(a, j.Items[i]))
	}
	if len(j.Items) > PerPage && d.Sum.Failed > 0 {
		d.Shows = []MenuItem{{Label: fmt.Sprintf("All %d", d.Sum.All), Href: a.Path, Destroy: len(filter) == 0},
			{Label: fmt.Sprintf("%d not done", d.Sum.Failed), Href: a.Path + "?show=failed", Destroy: len(filter) > 0}}
	}
	d.Back, d.BackText = j.act.List, j.act.Listed
	p := Page{Template: "job", Title: j.title(), Watch: []string{JobsTopic + "/" + j.ID}, Data: d}
	if d.Running {
		p.Again = 3
	}
	return p, nil
}

func (j *Job) item(a *Request, p Progress) jobItem {
	r := jobItem{Name: p.String(), Text: p.Text, Parts: p.Parts}
	kind := cmp.Or(p.Kind, j.act.Kind)
	if o := a.Get(state.Key{Kind: kind, Namespace: p.Namespace, Name: p.Name}); o != nil {
		r.Href = ObjectHref(kind, p.Item)
	}
	for _, part := range j.act.each {
		if part.Kind == kind {
			r.Name = part.One + " " + r.Name
		}
	}
	switch p.State {
	case "done":
		r.Pill = Pill{"ok", "Done"}
	case "failed":
		r.Pill = Pill{"bad", cmp.Or(string(p.Why), "Failed")}
		if p.Why == wasGone {
			r.Pill.Kind = "idle"
		}
	case "doing":
		r.Pill = Pill{"warn", "In progress"}
	default:
		r.Pill = Pill{"idle", "Waiting"}
	}
	return r
}

// jobAction stops a job or undoes it.
func (c *Call) jobAction() error {
	j := c.jobs.get(c.Param("id"))
	if j == nil {
		return c.Message(http.StatusNotFound, "Nothing to undo",
			"The hub has forgotten this action: it was restarted, or many others have been done since.")
	}
	if !j.act.allowed(c.may()) {
		return c.Message(http.StatusForbidden, "Not for your role", "Your role “"+string(c.User.Role)+
			"” may not do this. Ask an administrator.")
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
			return c.Message(http.StatusConflict, "Nothing to undo",
				"This action has been undone already, or cannot be.")
		}
		j.notify()
		return c.begin(&Job{Worker: Worker{caller: c.caller(), Fleet: c.Fleet}, By: c.User.Name, Undoes: j, act: j.act,
			Items: items})
	}
	return c.Message(http.StatusBadRequest, "Do what?", "An action can be stopped and undone.")
}
