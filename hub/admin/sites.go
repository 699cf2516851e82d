package admin

import (
	"fmt"
	"net/url"
	"time"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

type siteRow struct {
	Name, Anchor, Href           string
	Description                  string
	Pill                         pill
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
	Did    *done
	Rows   []siteRow
	MayAdd bool
	HubURL string
}

func siteHref(name string) string { return "/sites#" + url.PathEscape(name) }

func sitePill(s *fleet.Site) pill {
	switch s.Status.State {
	case fleet.SitePartialDisruption:
		return pill{"warn", "Partial disruption"}
	case fleet.SiteFullDisruption:
		return pill{"bad", "Full disruption"}
	}
	return pill{"ok", "Normal"}
}

// siteWhy says in one sentence what happens on a site.
func siteWhy(s *fleet.Site) string {
	st := s.Status
	text := fmt.Sprintf("%d of %d nodes ready", st.Ready, st.Ready+st.NotReady)
	switch {
	case st.HeldReason != "":
		return text + "; evictions are held: " + st.Held + "."
	case st.Waiting > 0 && rateText(st.EvictionRate) == "none":
		return fmt.Sprintf("%s; of %s none is given up: the rate is 0.", text, plural(int(st.Waiting), "node"))
	case st.Waiting > 0:
		return fmt.Sprintf("%s; still to be given up: %s, %s.", text, plural(int(st.Waiting), "node"), rateText(st.EvictionRate))
	}
	return text + "."
}

// sites lists the sites: their disruption state, rate, and what is held and why.
func sites(a *request) (page, error) {
	d := sitesData{Did: justDone(a), MayAdd: a.may("create", "jointokens"), HubURL: a.hubURL}
	for s := range state.Each[*fleet.Site](a.Snapshot, state.Sites, "") {
		st, c := s.Status, a.Count(s.Name)
		r := siteRow{
			Name: s.Name, Anchor: url.PathEscape(s.Name), Href: "/nodes?" + url.Values{"site": {s.Name}}.Encode(),
			Description: join(s.Spec.Description, s.Spec.Location), Pill: sitePill(s),
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
		d.Rows = append(d.Rows, r)
	}
	return page{Template: "sites", Title: "Sites", Watch: []string{"sites", "nodes"}, Data: d}, nil
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
	return "one node every " + (time.Duration(float64(time.Second) / r)).Round(100*time.Millisecond).String()
}
