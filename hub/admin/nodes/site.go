package nodes

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/admin/changes"
	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

type siteRow struct {
	Name, Href, NodesHref        string
	Pick                         string
	Description                  string
	Pill                         frame.Pill
	Bar                          bar
	Since                        *format.Moment
	Ready, NotReady, NeverSeen   int
	Total                        int
	Rate                         string // "": no node waits
	Waiting                      int
	Stays                        string // why no pod is evicted; "": pods are evicted
	Next, Last                   *format.Moment
	GivenUp                      bool // all nodes that are not ready are given up
	Now                          bool // the next eviction is due
	Policy                       string
	Maintenance, MaintenanceText string
	Queue                        []finding.Queued
	More                         int // number of waiting nodes that Queue does not have
	Overrides                    []frame.Fact
	Menu                         frame.Menu
}

// shownInQueue is how many of the nodes that wait are shown by name.
const shownInQueue = 5

type sitesData struct {
	Did      *frame.Done
	Search   string
	Wrong    string // what is wrong with the search
	States   []frame.Option
	Empty    bool // there is no site
	Filtered bool
	Pager    frame.Pager
	Rows     []siteRow
	Picks    *frame.PickBar
	Cards    bool
	MayAdd   bool
	HubURL   string
}

// mostCards is how many sites are shown as cards; more are rows.
const mostCards = 9

// SiteHasState tells whether a site has a state of the list of sites.
func SiteHasState(s *fleet.Site, state string, now time.Time) bool {
	switch state {
	case "attention":
		return diagnose.SiteTroubled(s)
	case "held":
		return s.Status.HeldReason != ""
	case "maintenance":
		return s.Spec.Maintenance != nil && s.Spec.Maintenance.Until.After(now)
	case "normal":
		return !diagnose.SiteTroubled(s)
	}
	return true
}

// worse compares sites: the more disrupted first, then the one with more nodes that are not ready,
// then by name.
func worse(x, y *fleet.Site) int {
	return cmp.Or(cmp.Compare(frame.Rank(finding.SitePill(x).Kind), frame.Rank(finding.SitePill(y).Kind)),
		cmp.Compare(y.Status.NotReady, x.Status.NotReady), cmp.Compare(x.Name, y.Name))
}

// Sites lists the sites, the worst first: their state, eviction rate, and why pods stay.
func Sites(a *frame.Request) (frame.Page, error) {
	text, wanted := strings.TrimSpace(a.Query("q")), a.Query("state")
	d := sitesData{
		Did: frame.JustDone(a), Search: text, Wrong: a.WrongSearch(state.Sites),
		States: frame.Options(wanted, frame.SiteStates...), Empty: a.Len(state.Sites) == 0, Filtered: text != "" ||
			wanted != "",
		MayAdd: a.May("create", "jointokens"), HubURL: a.HubURL,
	}
	found := findSites(a)
	from, to, pager := frame.PageOf(a, len(found), url.Values{"q": {text}, "state": {wanted}})
	d.Pager, d.Cards = pager, a.Len(state.Sites) <= mostCards
	for _, s := range found[from:to] {
		r := siteRowOf(a, s)
		r.Pick = a.Pick(s)
		d.Rows = append(d.Rows, r)
	}
	d.Picks = frame.PickBarOf(a, url.Values{"q": {text}, "state": {wanted}}, len(found), len(d.Rows), state.Sites)
	return frame.Page{Template: "sites", Title: "Sites", Watch: []string{"sites", "nodes"}, Data: d}, nil
}

type siteData struct {
	siteRow
	Did       *frame.Done
	Rows      []nodeRow
	MoreNodes int
	Events    []frame.EventRow
	Changes   changes.Shown
}

// Site shows one site with its nodes, those with trouble first.
func Site(a *frame.Request) (frame.Page, error) {
	name := a.Param("name")
	s := a.Site(name)
	if s == nil {
		return frame.Page{}, frame.MissingError(fmt.Sprintf("There is no site %s.", name))
	}
	d := siteData{siteRow: siteRowOf(a, s), Did: frame.JustDone(a),
		Changes: changes.Show(a, changes.SiteSubject(a.Snapshot, s))}
	nodes := slices.Collect(a.NodesIn(name))
	frame.Sort(a, nodes, nodeOrders)
	for _, n := range nodes[:min(len(nodes), frame.PerPage)] {
		d.Rows = append(d.Rows, nodeRowOf(a, n))
	}
	d.MoreNodes = len(nodes) - len(d.Rows)
	for _, e := range frame.EventsOf(a.Snapshot, "Site", "default", name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, frame.EventRowOf(a, e))
	}
	return frame.Page{Template: "site", Title: name, Watch: []string{"sites", "nodes"}, Poll: 10, Data: d}, nil
}

// keepsPods says why no pod is evicted from a site; "": pods are evicted.
func keepsPods(st *fleet.SiteStatus) string {
	switch st.HeldReason {
	case "":
		return ""
	case fleet.HeldForMaintenance:
		return "Pods stay: the site is in maintenance."
	case fleet.HeldByDisruptionPolicy:
		return "Pods stay: this site is on hold."
	case fleet.HeldPartialDisruption:
		return "Pods stay: a large part of this small site is not ready, so its own trouble is more likely than its devices'."
	}
	return "Pods stay: " + strings.TrimSuffix(st.Held, ".") + "."
}

// policyText says what happens when the whole site is cut off.
func policyText(p fleet.DisruptionPolicy) string {
	switch p {
	case fleet.Hold:
		return "keep pods here"
	case fleet.Evict:
		return "move pods to other sites"
	}
	return string(p)
}

// findSites returns the sites that match the query, the worst first.
func findSites(a *frame.Request) (found []*fleet.Site) {
	match := siteFinder.Matcher(a, a.Searched(search.Sites))
	for s := range state.Each[*fleet.Site](a.Snapshot, state.Sites, "") {
		if SiteHasState(s, a.Query("state"), a.Now) && match(s) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, worse)
	return found
}

func siteRowOf(a *frame.Request, s *fleet.Site) siteRow {
	st, c := s.Status, a.Count(s.Name)
	r := siteRow{
		Name: s.Name, Href: frame.SiteHref(s.Name), NodesHref: "/nodes?" + url.Values{"site": {s.Name}}.Encode(),
		Description: format.Join(s.Spec.Description, s.Spec.Location), Pill: finding.SitePill(s),
		Bar:   siteBar(a, s.Name),
		Ready: c.Ready, NotReady: c.NotReady, NeverSeen: c.NeverSeen, Total: c.Nodes,
		Waiting: int(st.Waiting), Stays: keepsPods(&st), Policy: policyText(s.Spec.DisruptionPolicy),
		Menu: frame.MenuOf(a, s),
	}
	r.GivenUp = c.NotReady > 0 && r.Waiting == 0 && r.Stays == ""
	if st.Since != nil {
		r.Since = format.Time(st.Since.Time, a.Now)
	}
	if st.LastEviction != nil {
		r.Last = format.Time(st.LastEviction.Time, a.Now)
	}
	if st.NextEviction != nil {
		r.Next, r.Now = format.Time(st.NextEviction.Time, a.Now), !st.NextEviction.After(a.Now)
	}
	if m := s.Spec.Maintenance; m != nil && m.Until.After(a.Now) {
		r.Maintenance, r.MaintenanceText = format.Stamp(m.Until.Time), m.Reason
	}
	if r.Waiting > 0 && r.Stays == "" {
		r.Rate, r.Queue = format.Rate(st.EvictionRate), finding.QueueOf(a.Snapshot, s, shownInQueue)
	}
	for i := range r.Queue {
		r.Queue[i].When = format.Time(r.Queue[i].At, a.Now)
	}
	r.More = max(0, r.Waiting-len(r.Queue))
	for _, x := range siteSettings {
		if v := x.get(&s.Spec); v != "" {
			r.Overrides = append(r.Overrides, frame.Fact{Name: x.label, Value: v})
		}
	}
	return r
}
