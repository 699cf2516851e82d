package incidents

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// overPill is the pill of an incident that is over.
var overPill = frame.Pill{Kind: "ok", Text: "Over"}

// A row is one incident in the list.
type row struct {
	Name, Href, Message string
	Pick                string
	Pill                frame.Pill
	Extent              string // what an open incident touches, or a closed one has cost
	Site, SiteHref      string
	Since, Closed       *format.Moment
	TakenUp             string
	Noted               bool
}

type listData struct {
	Search                           string
	Wrong                            string // what is wrong with the search
	Statuses, Causes, Severities, At []frame.Option
	Rows                             []row
	Pager                            frame.Pager
	Open                             int
	Filtered                         bool
	Empty                            bool // there are no incidents at all
	Picks                            *frame.PickBar
}

// List lists the open incidents, the worst first, and then those that closed within a day.
func List(a *frame.Request) (frame.Page, error) {
	text, filter := strings.TrimSpace(a.Query("q")), url.Values{}
	for _, name := range []string{"q", "status", "cause", "severity", "site"} {
		filter.Set(name, strings.TrimSpace(a.Query(name)))
	}
	d := listData{
		Search: text, Wrong: a.WrongSearch(state.Incidents), Empty: a.Len(state.Incidents) == 0,
		Statuses: frame.Options(filter.Get("status"), frame.IncidentStatuses...),
		Causes:   causeOptions(a, filter.Get("cause")), At: frame.SiteOptions(a, filter.Get("site")),
		Severities: frame.Options(filter.Get("severity"), frame.Severities...),
	}
	for _, v := range filter {
		d.Filtered = d.Filtered || v[0] != ""
	}
	found := find(a)
	for _, i := range found {
		if i.State == fleet.IncidentOpen {
			d.Open++
		}
	}
	from, to, pager := frame.PageOf(a, len(found), filter)
	d.Pager = pager
	for _, i := range found[from:to] {
		r := rowOf(a, i)
		r.Pick = a.Pick(i)
		d.Rows = append(d.Rows, r)
	}
	d.Picks = frame.PickBarOf(a, filter, len(found), len(d.Rows), state.Incidents)
	return frame.Page{Template: "incidents", Title: "Incidents", Watch: []string{frame.IncidentsTopic}, Data: d}, nil
}

// causeOptions are the causes of the existing incidents.
func causeOptions(a *frame.Request, chosen string) []frame.Option {
	have := map[string]bool{}
	for i := range state.Each[*fleet.Incident](a.Snapshot, state.Incidents, "") {
		have[string(i.Cause)] = true
	}
	pairs := [][2]string{{"", "Any cause"}}
	for _, cause := range diagnose.Causes() {
		if have[string(cause)] {
			pairs = append(pairs, [2]string{string(cause), string(cause)})
		}
	}
	return frame.WithChosen(frame.Options(chosen, pairs...), chosen)
}

// find returns the incidents under the query's filter, in the list's order.
func find(a *frame.Request) (found []*fleet.Incident) {
	match := finder.Matcher(a, a.Searched(search.Incidents))
	is := func(name, value string) bool { return a.Query(name) == "" || a.Query(name) == value }
	for i := range state.Each[*fleet.Incident](a.Snapshot, state.Incidents, "") {
		if HasStatus(i, a.Query("status")) && is("cause", string(i.Cause)) && is("severity", string(i.Severity)) &&
			is("site", i.Site) && match(i) {
			found = append(found, i)
		}
	}
	slices.SortStableFunc(found, func(x, y *fleet.Incident) int {
		xOpen, yOpen := x.State == fleet.IncidentOpen, y.State == fleet.IncidentOpen
		switch {
		case xOpen != yOpen && xOpen:
			return -1
		case xOpen != yOpen:
			return 1
		case xOpen:
			return incident.Compare(x, y)
		}
		return newestFirst(x, y)
	})
	return found
}

// HasStatus tells whether an incident matches a status of the filter.
func HasStatus(i *fleet.Incident, status string) bool {
	open := i.State == fleet.IncidentOpen
	switch status {
	case "":
		return true
	case "open":
		return open
	case "new":
		return open && i.Acknowledged == nil
	case "acknowledged":
		return open && i.Acknowledged != nil
	}
	return status == "over" && !open
}

// finder searches the list.
var finder = frame.Finder[*fleet.Incident]{List: search.Incidents,
	Has: map[string]func(*frame.Request, search.Term) frame.Match[*fleet.Incident]{
		"": frame.Key(func(i *fleet.Incident, t search.Term) bool {
			return t.In(i.Name, i.Message, i.Detail, i.Note, string(i.Cause), i.About.Kind+" "+i.About.Name, i.Site)
		}),
		"time": func(a *frame.Request, t search.Term) frame.Match[*fleet.Incident] {
			from, until := t.Between(a.Now)
			return func(i *fleet.Incident, _ search.Term) bool {
				return i.Since.Time.Before(until) && (i.Closed == nil || !i.Closed.Time.Before(from))
			}
		},
		"site":      frame.Key(func(i *fleet.Incident, t search.Term) bool { return t.Is(i.Site) }),
		"namespace": frame.Key(func(i *fleet.Incident, t search.Term) bool { return t.Is(i.About.Namespace) }),
		"status": func(_ *frame.Request, t search.Term) frame.Match[*fleet.Incident] {
			return frame.OfStatus(frame.IncidentStatuses, t, HasStatus)
		},
	}}

// pillOf is an open incident's severity.
func pillOf(i *fleet.Incident) frame.Pill {
	if i.State != fleet.IncidentOpen {
		return overPill
	}
	return finding.SeverityPill(i.Severity)
}

func rowOf(a *frame.Request, i *fleet.Incident) row {
	r := row{Name: i.Name, Href: frame.IncidentHref(i.Name), Message: i.Message, Pill: pillOf(i), Site: i.Site,
		Since: format.Time(i.Since.Time, a.Now), Extent: incident.Counts(i.Count), Noted: i.Note != ""}
	if i.Closed != nil {
		r.Closed, r.Extent = format.Time(i.Closed.Time, a.Now), incident.Cost(i)
	}
	if i.Acknowledged != nil {
		r.TakenUp = i.Acknowledged.By
	}
	r.SiteHref = siteHref(a, i.Site)
	return r
}

// siteHref returns the page of a site; "": there is no such site.
func siteHref(a *frame.Request, name string) string {
	if name == "" || a.Site(name) == nil {
		return ""
	}
	return frame.SiteHref(name)
}

// Listings is the list of incidents.
var Listings = map[state.Kind]frame.Listing{state.Incidents: {
	Found: func(a *frame.Request) []state.Object { return frame.Objects(find(a)) },
	Pill:  func(_ *frame.Request, o state.Object) frame.Pill { return pillOf(o.(*fleet.Incident)) },
	Where: func(_ *frame.Request, o state.Object) string {
		return cmp.Or(o.(*fleet.Incident).Message, o.GetName())
	},
}}
