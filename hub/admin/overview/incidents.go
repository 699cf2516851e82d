package overview

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A card is one open incident: what has happened, what it touches, what comes next, and what
// would help.
type card struct {
	Key, Href string
	Pill      frame.Pill
	Message   string
	Detail    string // what the scheduler or the device says of it, where the message does not
	Counts    string
	Since     *format.Moment
	Next      *format.Moment // when its pods begin to leave
	NextUTC   string
	Moving    bool // they have begun to
	None      bool // no pod has to leave, or no other
	Evicted   string
	Held      string
	Quiet     *format.Moment // since when it has not been seen
	Examples  []exampleLink
	More      int // examples that are not shown
	Parts     []string
	Fix       string // what helps
	Help      string // where the manual tells of the cause
	Menu      frame.Menu
}

// An exampleLink is one of the nodes or pods that an incident touches.
type exampleLink struct{ Name, Href string }

// An over is a closed incident and what it has cost.
type over struct {
	Key, Message, Cost string
	Closed             *format.Moment
}

const (
	// fewCards is how many open incidents the overview shows, and fewOver how many closed ones.
	fewCards, fewOver = 30, 20
	// fewExamples is how many nodes or pods a card links to.
	fewExamples = 5
)

// incidentsData is what the overview shows of incidents.
type incidentsData struct {
	Cards []card
	More  int
	Over  []over
	Ended int // closed in the last day
	Tab   tab
}

// A tab is what the browser's tab shows of the fleet while nobody looks at it.
type tab struct {
	Open int
	Kind string // bad, warn, or "": all is well
}

// incidents are the open ones, the worst first; and the closed ones, the newest first.
func incidents(a *frame.Request) (d incidentsData) {
	var closed []*fleet.Incident
	parts := map[string][]string{}
	var open []*fleet.Incident
	for i := range state.Each[*fleet.Incident](a.Snapshot, state.Incidents, "") {
		switch {
		case i.State != fleet.IncidentOpen:
			closed = append(closed, i)
		case i.PartOf != "" && a.Get(state.Key{Kind: state.Incidents, Name: i.PartOf}) != nil:
			parts[i.PartOf] = append(parts[i.PartOf], i.Message)
		default:
			open = append(open, i)
		}
	}
	slices.SortFunc(open, worseFirst)
	shown := open[:min(len(open), fewCards)]
	for _, i := range open {
		if i.Severity != fleet.SeverityInfo {
			d.Tab.Open++
			if kind := finding.SeverityPill(i.Severity).Kind; d.Tab.Kind == "" ||
				frame.Rank(kind) < frame.Rank(d.Tab.Kind) {
				d.Tab.Kind = kind
			}
		}
	}
	explained := 0
	for _, i := range shown {
		c := cardOf(a, i, parts[i.Name])
		if i.Cause == diagnose.CannotBePlaced && explained < finding.MostExplained {
			explained++
			c.Message = placeless(a, i)
		}
		d.Cards = append(d.Cards, c)
	}
	d.More = len(open) - len(shown)
	slices.SortStableFunc(closed, func(x, y *fleet.Incident) int { return y.Closed.Compare(x.Closed.Time) })
	d.Ended = len(closed)
	for _, i := range closed[:min(len(closed), fewOver)] {
		d.Over = append(d.Over, over{i.Name, i.Message, costOf(i), format.Time(i.Closed.Time, a.Now)})
	}
	return d
}

// worseFirst orders open incidents: what the whole fleet has, then sites that are dark, then the
// rest; of these the more severe, then the older, so that a new one moves only those below it.
func worseFirst(x, y *fleet.Incident) int {
	return cmp.Or(reach(x)-reach(y), frame.Rank(finding.SeverityPill(x.Severity).Kind)-frame.Rank(finding.SeverityPill(y.Severity).Kind), x.Opened.Compare(y.Opened.Time), strings.Compare(x.Name, y.Name))
}

// reach is 0 for an incident of the whole fleet, 1 for one of a whole site.
func reach(i *fleet.Incident) int {
	switch {
	case i.About.Kind == diagnose.KindFleet:
		return 0
	case i.Cause == diagnose.SiteDark:
		return 1
	}
	return 2
}

// quietTold is how long an incident must not have been seen for its card to say so. What crashes
// again and again runs for some seconds each time: its card would grow and shrink with each.
const quietTold = time.Minute

func cardOf(a *frame.Request, i *fleet.Incident, parts []string) card {
	c := card{
		Key: i.Name, Href: AboutHref(i), Pill: finding.SeverityPill(i.Severity), Message: i.Message,
		Counts: incident.Counts(i.Count), Since: format.Time(i.Since.Time, a.Now), Held: i.Held, Parts: parts,
		Fix: diagnose.RuleOf(i.Cause).Fix, Help: frame.HelpURL("incidents", string(i.Cause)),
	}
	if diagnose.RuleOf(i.Cause).Raw {
		c.Detail = i.Detail
	}
	if i.NextMove != nil {
		c.Next, c.NextUTC, c.Moving = format.Time(i.NextMove.Time, a.Now), i.NextMove.UTC().Format(time.TimeOnly),
			!i.NextMove.After(a.Now)
	}
	if i.Evicted > 0 {
		c.Evicted = format.Plural(int(i.Evicted), "pod")
	}
	if i.QuietSince != nil && a.Now.Sub(i.QuietSince.Time) >= quietTold {
		c.Quiet = format.Time(i.QuietSince.Time, a.Now)
	}
	for _, name := range i.Examples[:min(len(i.Examples), fewExamples)] {
		switch {
		case i.About.Kind == diagnose.KindFleet:
			c.Examples = append(c.Examples, exampleLink{name, frame.SiteHref(name)})
		case i.About.Kind == state.Sites.Row().Name, i.About.Kind == state.FirmwareRollouts.Row().Name:
			c.Examples = append(c.Examples, exampleLink{name, frame.NodeHref(name)})
		case i.About.Namespace != "":
			c.Examples = append(c.Examples, exampleLink{name, "/pods/" + url.PathEscape(i.About.Namespace) + "/" +
				url.PathEscape(name)})
		}
	}
	if all := int(max(i.Count.Nodes, i.Count.Pods)); len(c.Examples) > 0 && i.About.Kind != diagnose.KindFleet {
		if i.About.Kind == state.Sites.Row().Name {
			all = int(i.Count.Nodes)
		}
		c.More = max(0, all-len(c.Examples))
	}
	site := a.Site(i.Site)
	if site != nil && diagnose.RuleOf(i.Cause).Family == diagnose.FamilyDark && i.NextMove == nil && i.Held == "" {
		if st := site.Status; st.Waiting > 0 && st.NextEviction == nil {
			c.Held = "the eviction rate of the site is 0"
		} else {
			c.None = true
		}
	}
	if site != nil {
		if c.Held != "" && site.Status.HeldReason == fleet.HeldByDisruptionPolicy {
			c.Held = "the site is on hold"
		}
		offered := frame.MenuOf(a, site)
		for _, m := range slices.Concat(offered.First, offered.More) {
			if slices.Contains(i.Actions, fleet.IncidentAction(m.Label)) {
				c.Menu.First = append(c.Menu.First, m)
			}
		}
	}
	return c
}

// placeless is an incident's message with why the first of its pods has no node.
func placeless(a *frame.Request, i *fleet.Incident) string {
	for _, name := range i.Examples {
		if p := a.Pod(i.About.Namespace, name); p != nil && finding.WaitsForNode(p) {
			if f := diagnose.Pod(a.Snapshot, p); f.Reason != "" {
				if why := finding.ShortReason(a.Snapshot, p, a.Now); why != finding.SoonPlaced {
					return i.Message + ": " + why
				}
			}
		}
	}
	return i.Message
}

// AboutHref is where what an incident is in is shown.
func AboutHref(i *fleet.Incident) string {
	switch k := state.KindNamed(i.About.Kind); {
	case i.About.Kind == diagnose.KindFleet:
		return "/sites"
	case k == state.Sites:
		return "/nodes?" + url.Values{"site": {i.About.Name}, "status": {"attention"}}.Encode()
	case k == "":
		return "/pods?status=attention"
	default:
		return frame.ObjectHref(k, frame.Item{Namespace: i.About.Namespace, Name: i.About.Name})
	}
}

// costOf says what an incident has cost that is over.
func costOf(i *fleet.Incident) string {
	parts := []string{"lasted " + duration.HumanDuration(i.Closed.Sub(i.Since.Time))}
	if n := incident.Counts(i.Most); n != "" {
		parts = append(parts, n+" at most")
	}
	if i.Evicted > 0 {
		parts = append(parts, format.Plural(int(i.Evicted), "pod")+" told to leave")
	}
	if i.ShortSeconds > 0 {
		parts = append(parts, "workloads short for "+duration.HumanDuration(time.Duration(i.ShortSeconds)*time.Second))
	}
	return strings.Join(parts, ", ")
}

// title puts what is open before a page's title.
func (t tab) title(of string) string {
	if t.Open == 0 {
		return of
	}
	return fmt.Sprintf("(%d) %s", t.Open, of)
}
