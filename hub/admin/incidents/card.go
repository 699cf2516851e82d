// Package incidents shows incidents: the cards of the overview, the list, and a page for each with
// its timeline, its acknowledgement and its note.
//
// Package incident makes and orders the cards; this package turns them into template data. It
// changes nothing itself: acknowledging and noting go through the API.
package incidents

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A Card shows one cause: what happened, what it touches, what comes next, and what helps.
type Card struct {
	Key, Href string
	Pill      frame.Pill
	Message   string
	Detail    string // the scheduler's or device's own text, if the message does not contain it
	Counts    string
	About     string // the page of its object; "": the card is of several incidents
	AboutIt   string // its object, in words
	Since     *format.Moment
	Outcome
	Provisional bool           // no notification is sent yet: it may become another incident
	Quiet       *format.Moment // since when the cause has not been seen
	Settles     string         // how long the cause must stay away until the incident is over
	TakenUp     string         // who acknowledged it
	Note        string
	Examples    []exampleLink
	More        int     // examples that are not shown
	Several     []entry // its incidents, if there are several
	All, Left   int     // number of incidents, and how many of them are not shown
	Parts       []entry // its consequences
	Following   int     // number of incidents that follow from it
	Fix         string  // what helps
	Help        string  // the manual's page about the cause
	Menu        frame.Menu
}

// An Outcome is what happens to an incident's pods.
type Outcome struct {
	Next    *format.Moment // when the first pods leave
	NextUTC string
	Moving  bool // pods are leaving
	None    bool // no pod, or no other pod, has to leave
	Evicted string
	Held    string // why they stay
}

// An entry is a line of a card, with a link to one or several incidents.
type entry struct {
	Key, Href, Message string
	Pill               frame.Pill
	Since              *format.Moment
	Outcome
}

// An exampleLink links a node or pod that an incident touches.
type exampleLink struct{ Name, Href string }

// An over is a closed incident with what it has cost.
type over struct {
	Key, Href, Message, Cost string
	Closed                   *format.Moment
}

const (
	// fewOver is how many closed incidents the overview shows.
	fewOver = 20
	// fewExamples is how many nodes or pods a card links to, and fewEntries how many incidents.
	fewExamples, fewEntries = 5, 12
)

// ListPath is the path of the list of incidents.
const ListPath = "/incidents"

// A Board is the incidents on the overview.
type Board struct {
	Cards []Card
	Over  []over
	Ended int // closed in the last day
	Tab   Tab
	// Provisional: a card may change by time alone, so the page asks again.
	Provisional bool
}

// A Tab is what the browser's tab shows while another tab is open.
type Tab struct {
	Open int
	Kind string // bad, warn, or "": all is well
}

// BoardOf returns the cards of open incidents, the worst first, and the closed incidents, newest
// first.
func BoardOf(a *frame.Request) (d Board) {
	explained := 0
	for _, c := range incident.Cards(state.Each[*fleet.Incident](a.Snapshot, state.Incidents, "")) {
		for _, i := range c.Incidents {
			if i.Severity == fleet.SeverityInfo {
				continue
			}
			d.Tab.Open++
			if kind := finding.SeverityPill(i.Severity).Kind; d.Tab.Kind == "" ||
				frame.Rank(kind) < frame.Rank(d.Tab.Kind) {
				d.Tab.Kind = kind
			}
		}
		shown := cardOf(a, c)
		if c.Cause == diagnose.CannotBePlaced && len(c.Incidents) == 1 && explained < finding.MostExplained {
			explained++
			shown.Message = placeless(a, c.Incidents[0])
		}
		d.Provisional = d.Provisional || shown.Provisional
		d.Cards = append(d.Cards, shown)
	}
	closed := closedOf(a)
	d.Ended = len(closed)
	for _, i := range closed[:min(len(closed), fewOver)] {
		d.Over = append(d.Over, over{i.Name, frame.IncidentHref(i.Name), i.Message, incident.Cost(i),
			format.Time(i.Closed.Time, a.Now)})
	}
	return d
}

// closedOf are the closed incidents, newest first.
func closedOf(a *frame.Request) (closed []*fleet.Incident) {
	for i := range state.Each[*fleet.Incident](a.Snapshot, state.Incidents, "") {
		if i.State != fleet.IncidentOpen {
			closed = append(closed, i)
		}
	}
	slices.SortStableFunc(closed, newestFirst)
	return closed
}

func newestFirst(x, y *fleet.Incident) int { return y.Closed.Compare(x.Closed.Time) }

// quietTold is how long a cause must not have been seen before its card says so. A crash loop runs
// for some seconds each time, and its card must not grow and shrink with each crash.
const quietTold = time.Minute

// cardOf returns the template data of a card.
func cardOf(a *frame.Request, c incident.Card) Card {
	var shown Card
	if len(c.Incidents) == 1 && c.Key != incident.RestKey {
		shown = single(a, c.Incidents[0])
		if more := len(shown.Examples) - 1; more > 0 && c.Incidents[0].About.Namespace != "" {
			// One pod is enough to read its log; the incident's page names more.
			shown.Examples, shown.More = shown.Examples[:1], shown.More+more
		}
	} else {
		shown = several(a, c)
	}
	shown.Provisional = c.Incidents[0].About.Kind == diagnose.KindFleet && c.Provisional(a.Now)
	for _, f := range c.Follows {
		shown.Following += len(f.Incidents)
		e := entry{Key: f.Key, Href: listHref(f.Cause, "open"), Message: f.Title, Pill: finding.SeverityPill(f.Severity),
			Since: format.Time(f.Since, a.Now)}
		if len(f.Incidents) == 1 {
			e.Href = frame.IncidentHref(f.Incidents[0].Name)
		}
		shown.Parts = append(shown.Parts, e)
	}
	return shown
}

// single returns the card of one incident.
func single(a *frame.Request, i *fleet.Incident) Card {
	c := Card{
		Key: i.Name, Href: frame.IncidentHref(i.Name), About: aboutHref(i), Pill: finding.SeverityPill(i.Severity),
		Message: i.Message, Counts: incident.Counts(i.Count), Since: format.Time(i.Since.Time, a.Now),
		Outcome: outcomeOf(a, i), Note: i.Note, Fix: diagnose.RuleOf(i.Cause).Fix,
		Help: frame.HelpURL("incidents", string(i.Cause)), Menu: menuOf(a, i),
		AboutIt: i.About.Kind + " " + frame.Item{Namespace: i.About.Namespace, Name: i.About.Name}.String(),
	}
	if i.About.Kind == diagnose.KindFleet {
		c.AboutIt = "All sites"
	}
	if diagnose.RuleOf(i.Cause).Raw {
		c.Detail = i.Detail
	}
	if i.Acknowledged != nil {
		c.TakenUp = i.Acknowledged.By
	}
	if i.QuietSince != nil && a.Now.Sub(i.QuietSince.Time) >= quietTold {
		c.Quiet = format.Time(i.QuietSince.Time, a.Now)
		c.Settles = format.Duration(diagnose.RuleOf(i.Cause).Settle)
	}
	c.Examples, c.More = examplesOf(i)
	c.Fix += keepAdvice(c.Outcome, i)
	return c
}

// keepAdvice says how to keep an incident's pods on their nodes; "": no pod is about to move, or no
// action keeps it.
func keepAdvice(o Outcome, of ...*fleet.Incident) string {
	may := slices.ContainsFunc(of, func(i *fleet.Incident) bool { return slices.Contains(i.Actions, fleet.ActionHold) })
	if !may || o.Next == nil || o.Moving || o.Held != "" {
		return ""
	}
	return " To keep its pods, hold the site or put it into maintenance before they move."
}

// several returns the card of several incidents of one cause, or of all remaining causes.
func several(a *frame.Request, c incident.Card) Card {
	shown := Card{
		Key: c.Key, Href: listHref(c.Cause, "open"), Pill: finding.SeverityPill(c.Severity), Message: c.Title,
		Counts: incident.Counts(c.Count), Since: format.Time(c.Since, a.Now),
	}
	if c.Cause != "" {
		shown.Fix, shown.Help = diagnose.RuleOf(c.Cause).Fix, frame.HelpURL("incidents", string(c.Cause))
	}
	held, none, evicted := 0, 0, int32(0)
	var menus []frame.Menu
	for n, i := range c.Incidents {
		o := outcomeOf(a, i)
		evicted += i.Evicted
		if o.Held != "" {
			held++
		} else if o.None {
			none++
		}
		if n < fewEntries {
			menus = append(menus, menuOf(a, i))
			shown.Several = append(shown.Several, entry{Key: i.Name, Href: frame.IncidentHref(i.Name), Message: i.Message,
				Pill: finding.SeverityPill(i.Severity), Since: format.Time(i.Since.Time, a.Now), Outcome: o})
		}
	}
	shown.All, shown.Left = len(c.Incidents), len(c.Incidents)-len(shown.Several)
	if shown.Left == 0 {
		shown.Menu = frame.Together(menus)
	}
	switch all := len(c.Incidents); {
	case held == all:
		shown.Held = "each of these sites keeps them"
	case !c.NextMove.IsZero():
		shown.Next, shown.NextUTC = format.Time(c.NextMove, a.Now), c.NextMove.UTC().Format(time.TimeOnly)
		shown.Moving = !c.NextMove.After(a.Now)
	case none == all:
		shown.None = true
	}
	if evicted > 0 {
		shown.Evicted = format.Plural(int(evicted), "pod")
	}
	shown.Fix += keepAdvice(shown.Outcome, c.Incidents...)
	return shown
}

// outcomeOf says what happens to an incident's pods. For a dark site the outcome is never empty.
func outcomeOf(a *frame.Request, i *fleet.Incident) Outcome {
	o := Outcome{Held: i.Held}
	if i.NextMove != nil {
		o.Next, o.NextUTC, o.Moving = format.Time(i.NextMove.Time, a.Now), i.NextMove.UTC().Format(time.TimeOnly),
			!i.NextMove.After(a.Now)
	}
	if i.Evicted > 0 {
		o.Evicted = format.Plural(int(i.Evicted), "pod")
	}
	site := a.Site(i.Site)
	if site == nil || i.State != fleet.IncidentOpen {
		return o
	}
	if diagnose.RuleOf(i.Cause).Family == diagnose.FamilyDark && i.NextMove == nil && i.Held == "" {
		if st := site.Status; st.Waiting > 0 && st.NextEviction == nil {
			o.Held = "the eviction rate of the site is 0"
		} else {
			o.None = true
		}
	}
	if o.Held != "" && site.Status.HeldReason == fleet.HeldByDisruptionPolicy {
		o.Held = "the site is on hold"
	}
	return o
}

// menuOf returns the actions on the incident's site that help.
func menuOf(a *frame.Request, i *fleet.Incident) (m frame.Menu) {
	site := a.Site(i.Site)
	if site == nil {
		return m
	}
	offered := frame.MenuOf(a, site)
	for _, item := range slices.Concat(offered.First, offered.More) {
		if slices.Contains(i.Actions, fleet.IncidentAction(item.Label)) {
			m.First = append(m.First, item)
		}
	}
	return m
}

// examplesOf links the first nodes, pods or sites that an incident touches, and counts the others.
func examplesOf(i *fleet.Incident) (links []exampleLink, more int) {
	site := state.Sites.Row().Name
	for _, name := range i.Examples[:min(len(i.Examples), fewExamples)] {
		switch {
		case i.About.Kind == diagnose.KindFleet:
			links = append(links, exampleLink{name, frame.SiteHref(name)})
		case i.About.Kind == site, i.About.Kind == state.FirmwareRollouts.Row().Name,
			i.About.Kind == state.AgentRollouts.Row().Name:
			links = append(links, exampleLink{name, frame.NodeHref(name)})
		case i.About.Namespace != "":
			links = append(links, exampleLink{name, frame.PodPath(i.About.Namespace, name)})
		}
	}
	if len(links) == 0 || i.About.Kind == diagnose.KindFleet {
		return links, 0
	}
	all := max(i.Count.Nodes, i.Count.Pods)
	if i.About.Kind == site {
		all = i.Count.Nodes
	}
	return links, max(0, int(all)-len(links))
}

// placeless returns an incident's message, followed by why its first pod has no node.
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

// aboutHref returns the page of an incident's object.
func aboutHref(i *fleet.Incident) string {
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

// listHref returns the list of the incidents of a cause; "": of all causes.
func listHref(cause fleet.IncidentCause, status string) string {
	q := url.Values{}
	for key, v := range map[string]string{"cause": string(cause), "status": status} {
		if v != "" {
			q.Set(key, v)
		}
	}
	return strings.TrimSuffix(ListPath+"?"+q.Encode(), "?")
}

// Title puts the number of open incidents before a page's title.
func (t Tab) Title(of string) string {
	if t.Open == 0 {
		return of
	}
	return fmt.Sprintf("(%d) %s", t.Open, of)
}
