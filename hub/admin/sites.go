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
	Name, Anchor, Href           string
	Pick                         string
	Description                  string
	Pill                         pill
	Bar                          bar
	Since                        *moment
	Ready, NotReady, NeverSeen   int
	Total                        int
	Rate                         string
	Waiting                      int
	Held                         string
	Next, Last                   *moment
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
	MayAdd   bool
	HubURL   string
}

// siteHref is the page of the list on which a site is, wherever that is by now.
func siteHref(name string) string {
	return "/sites?" + url.Values{"at": {name}}.Encode() + "#" + url.PathEscape(name)
}

func sitePill(s *fleet.Site) pill {
	switch s.Status.State {
	case fleet.SitePartialDisruption:
		return pill{"warn", "Partial disruption"}
	case fleet.SiteFullDisruption:
		return pill{"bad", "Full disruption"}
	}
	return pill{"ok", "Normal"}
}

var siteStates = [][2]string{{"", "Any state"}, {"attention", "Needs attention"}, {"held", "Evictions held"}, {"maintenance", "In maintenance"}, {"normal", "Normal"}}

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
	number := pageNumber(a)
	if at := slices.IndexFunc(found, func(s *fleet.Site) bool { return s.Name == a.query("at") }); at >= 0 {
		number = at/perPage + 1
	}
	from, to, pager := pageAt(a, number, len(found), url.Values{"q": {text}, "state": {wanted}})
	d.Pager = pager
	for _, s := range found[from:to] {
		r := siteRowOf(a, s)
		r.Pick = a.pick(s)
		d.Rows = append(d.Rows, r)
	}
	d.Picks = pickBarOf(a, url.Values{"q": {text}, "state": {wanted}}, len(found), len(d.Rows), state.Sites)
	return page{Template: "sites", Title: "Sites", Watch: []string{"sites", "nodes"}, Data: d}, nil
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
		Name: s.Name, Anchor: url.PathEscape(s.Name), Href: "/nodes?" + url.Values{"site": {s.Name}}.Encode(),
		Description: join(s.Spec.Description, s.Spec.Location), Pill: sitePill(s), Bar: siteBar(a, s.Name),
		Ready: c.Ready, NotReady: c.NotReady, NeverSeen: c.NeverSeen, Total: c.Nodes,
		Rate: rateText(st.EvictionRate), Waiting: int(st.Waiting), Held: st.Held, Policy: string(s.Spec.DisruptionPolicy),
		Menu: menuOf(a, s),
	}
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
	r.Queue = queueOf(a.Snapshot, s, shownInQueue)
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
