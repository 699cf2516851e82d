package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

type siteRow struct {
	Name, Href, NodesHref        string
	Pick                         string
	Description                  string
	Pill                         pill
	Bar                          bar
	Since                        *moment
	Ready, NotReady, NeverSeen   int
	Total                        int
	Rate                         string // "": no node waits
	Waiting                      int
	Stays                        string // why no pod is evicted; "": they are
	Next, Last                   *moment
	GivenUp                      bool // all of its nodes that are not ready are
	Now                          bool // the next eviction is due
	Policy                       string
	Maintenance, MaintenanceText string
	Queue                        []queued
	More                         int // that wait beside the queue that is shown
	Overrides                    []Fact
	Menu                         menu
}

// shownInQueue is how many of the nodes that wait are shown by name.
const shownInQueue = 5

type sitesData struct {
	Did      *done
	Search   string
	Wrong    string // what is not understood of the search
	States   []option
	Empty    bool // no site at all
	Filtered bool
	Pager    pager
	Rows     []siteRow
	Picks    *pickBar
	Cards    bool
	MayAdd   bool
	HubURL   string
}

// siteHref is the page of a site.
func siteHref(name string) string { return "/sites/" + url.PathEscape(name) }

// mostCards is how many sites are shown as cards; more are rows.
const mostCards = 9

// sitePill is the status of a site.
func sitePill(s *fleet.Site) pill {
	switch s.Status.State {
	case fleet.SitePartialDisruption:
		return pill{"warn", "Partial disruption"}
	case fleet.SiteFullDisruption:
		return pill{"bad", "Full disruption"}
	}
	return pill{"ok", "Normal"}
}

// siteStates are what the list of sites can be filtered by.
var siteStates = [][2]string{{"", "Any state"}, {"attention", "Needs attention"}, {"held", "Evictions held"}, {"maintenance", "In maintenance"}, {"normal", "Normal"}}

// isSite tells whether a site has a state of the list of sites.
func isSite(s *fleet.Site, state string, now time.Time) bool {
	disrupted := s.Status.State == fleet.SitePartialDisruption || s.Status.State == fleet.SiteFullDisruption
	switch state {
	case "attention":
		return disrupted || s.Status.NotReady > 0
	case "held":
		return s.Status.HeldReason != ""
	case "maintenance":
		return s.Spec.Maintenance != nil && s.Spec.Maintenance.Until.After(now)
	case "normal":
		return !disrupted && s.Status.NotReady == 0
	}
	return true
}

// worse compares sites by how much they need somebody: how disrupted they are, how many
// nodes are not ready, and then by name.
func worse(x, y *fleet.Site) int {
	return cmp.Or(cmp.Compare(rank(sitePill(x).Kind), rank(sitePill(y).Kind)), cmp.Compare(y.Status.NotReady, x.Status.NotReady), cmp.Compare(x.Name, y.Name))
}

// sites lists the sites, the worst first: their disruption state, rate, and what is held and why.
func sites(a *request) (page, error) {
	text, wanted := strings.TrimSpace(a.query("q")), a.query("state")
	d := sitesData{
		Did: justDone(a), Search: text, Wrong: a.wrongSearch(state.Sites), States: options(wanted, siteStates...), Empty: a.Len(state.Sites) == 0, Filtered: text != "" || wanted != "",
		MayAdd: a.may("create", "jointokens"), HubURL: a.hubURL,
	}
	found := findSites(a)
	from, to, pager := pageOf(a, len(found), url.Values{"q": {text}, "state": {wanted}})
	d.Pager, d.Cards = pager, a.Len(state.Sites) <= mostCards
	for _, s := range found[from:to] {
		r := siteRowOf(a, s)
		r.Pick = a.pick(s)
		d.Rows = append(d.Rows, r)
	}
	d.Picks = pickBarOf(a, url.Values{"q": {text}, "state": {wanted}}, len(found), len(d.Rows), state.Sites)
	return page{Template: "sites", Title: "Sites", Watch: []string{"sites", "nodes"}, Data: d}, nil
}

type siteData struct {
	siteRow
	Did       *done
	Rows      []nodeRow
	MoreNodes int
	Events    []eventRow
}

// site shows one site with its nodes, those with trouble first.
func site(a *request) (page, error) {
	name := a.param("name")
	s := a.Site(name)
	if s == nil {
		return page{}, errMissing(fmt.Sprintf("There is no site %s.", name))
	}
	d := siteData{siteRow: siteRowOf(a, s), Did: justDone(a)}
	nodes := slices.Collect(a.NodesIn(name))
	order(a, nodes, nodeOrders)
	for _, n := range nodes[:min(len(nodes), perPage)] {
		d.Rows = append(d.Rows, nodeRowOf(a, n))
	}
	d.MoreNodes = len(nodes) - len(d.Rows)
	for _, e := range eventsOf(a.Snapshot, "Site", "default", name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, eventRowOf(a, e))
	}
	return page{Template: "site", Title: name, Watch: []string{"sites", "nodes"}, Poll: 10, Data: d}, nil
}

// keepsPods says why no pod is evicted from a site, "" where they are.
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

// policyText is what is done when the whole site is cut off.
func policyText(p fleet.DisruptionPolicy) string {
	switch p {
	case fleet.Hold:
		return "keep pods here"
	case fleet.Evict:
		return "move pods to other sites"
	}
	return string(p)
}

// findSites returns the sites that the query is about, the worst first.
func findSites(a *request) (found []*fleet.Site) {
	match := siteFinder.matcher(a, a.searched(search.Sites))
	for s := range state.Each[*fleet.Site](a.Snapshot, state.Sites, "") {
		if isSite(s, a.query("state"), a.now) && match(s) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, worse)
	return found
}

func siteRowOf(a *request, s *fleet.Site) siteRow {
	st, c := s.Status, a.Count(s.Name)
	r := siteRow{
		Name: s.Name, Href: siteHref(s.Name), NodesHref: "/nodes?" + url.Values{"site": {s.Name}}.Encode(),
		Description: join(s.Spec.Description, s.Spec.Location), Pill: sitePill(s), Bar: siteBar(a, s.Name),
		Ready: c.Ready, NotReady: c.NotReady, NeverSeen: c.NeverSeen, Total: c.Nodes,
		Waiting: int(st.Waiting), Stays: keepsPods(&st), Policy: policyText(s.Spec.DisruptionPolicy),
		Menu: menuOf(a, s),
	}
	r.GivenUp = c.NotReady > 0 && r.Waiting == 0 && r.Stays == ""
	if st.Since != nil {
		r.Since = at(st.Since.Time, a.now)
	}
	if st.LastEviction != nil {
		r.Last = at(st.LastEviction.Time, a.now)
	}
	if st.NextEviction != nil {
		r.Next, r.Now = at(st.NextEviction.Time, a.now), !st.NextEviction.After(a.now)
	}
	if m := s.Spec.Maintenance; m != nil && m.Until.After(a.now) {
		r.Maintenance, r.MaintenanceText = stamp(m.Until.Time), m.Reason
	}
	if r.Waiting > 0 && r.Stays == "" {
		r.Rate, r.Queue = rateText(st.EvictionRate), queueOf(a.Snapshot, s, shownInQueue)
	}
	for i := range r.Queue {
		r.Queue[i].When = at(r.Queue[i].at, a.now)
	}
	r.More = max(0, r.Waiting-len(r.Queue))
	for _, x := range siteSettings {
		if v := x.get(&s.Spec); v != "" {
			r.Overrides = append(r.Overrides, Fact{x.label, v})
		}
	}
	return r
}

// rateText says a rate as people think of it: one node every ten seconds.
func rateText(perSecond string) string {
	var r float64
	if _, err := fmt.Sscan(perSecond, &r); err != nil || r <= 0 {
		return "none"
	}
	switch {
	case r == 1:
		return "one node a second"
	case r > 1:
		return fmt.Sprintf("%g nodes a second", r)
	}
	return "one node every " + plainly(timeOf(1, r).Round(100*time.Millisecond).String())
}

// timeOf is how long a rate takes for so many nodes; 100 years are as good as never, to the rate
// itself, too, and more than 292 are none that a time.Duration holds.
func timeOf(nodes int, perSecond float64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return time.Duration(min(float64(nodes)/perSecond*float64(time.Second), float64(most)))
}
