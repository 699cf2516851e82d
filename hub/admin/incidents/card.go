// Package incidents shows incidents: the cards of the overview, the list, and a page for each with
// its timeline, who takes care of it, and the note.
//
// Package incident makes the cards, orders them and tells what each has been through; here that
// becomes what a template shows. It changes nothing itself: acknowledging and noting go through the API.
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

// A Card is one cause: what has happened, what it touches, what comes next, and what would help.
type Card struct {
	Key, Href string
	Pill      frame.Pill
	Message   string
	Detail    string // what the scheduler or the device says of it, where the message does not
	Counts    string
	About     string // where what it is in is shown; "": the card is of several incidents
	AboutIt   string // what it is in, in words
	Since     *format.Moment
	Outcome
	Provisional bool           // it may become another
	Quiet       *format.Moment // since when it has not been seen
	TakenUp     string         // who takes care of it
	Note        string
	Examples    []exampleLink
	More        int     // examples that are not shown
	Several     []entry // its incidents, where it has more than one
	All, Left   int     // how many those are, and how many of them are not shown
	Parts       []entry // what follows from it
	Following   int     // incidents that do
	Fix         string  // what helps
	Help        string  // where the manual tells of the cause
	Menu        frame.Menu
}

// An Outcome is what becomes of an incident's pods.
type Outcome struct {
	Next    *format.Moment // when they begin to leave
	NextUTC string
	Moving  bool // they have begun to
	None    bool // no pod has to leave, or no other
	Evicted string
	Held    string // why they stay
}

// An entry is a line of a card that leads to an incident, or to several.
type entry struct {
	Key, Href, Message string
	Pill               frame.Pill
	Since              *format.Moment
	Outcome
}

// An exampleLink is one of the nodes or pods that an incident touches.
type exampleLink struct{ Name, Href string }

// An over is a closed incident and what it has cost.
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

// ListPath is where all incidents are listed.
const ListPath = "/incidents"

// Board is what the overview shows of incidents.
type Board struct {
	Cards []Card
	Over  []over
	Ended int // closed in the last day
	Tab   Tab
	// Provisional: a card may become another in a moment, though nothing else changes.
	Provisional bool
}

// A Tab is what the browser's tab shows of the fleet while nobody looks at it.
type Tab struct {
	Open int
	Kind string // bad, warn, or "": all is well
}

// BoardOf are the cards of what is open, the worst first; and the closed ones, the newest first.
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

// closedOf are the incidents that are over, the newest first.
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

// quietTold is how long an incident must not have been seen for its card to say so. What crashes
// again and again runs for some seconds each time: its card would grow and shrink with each.
const quietTold = time.Minute

// cardOf shows a card: of one incident all that is known of it, of several what they have in common.
func cardOf(a *frame.Request, c incident.Card) Card {
	var shown Card
	if len(c.Incidents) == 1 && c.Key != incident.RestKey {
		shown = single(a, c.Incidents[0])
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

// single is the card of one incident.
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
	}
	c.Examples, c.More = examplesOf(i)
	return c
}

// several is the card of incidents of one cause, or of what is left of too many causes.
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
	return shown
}

// outcomeOf says what becomes of an incident's pods: a dark site's always.
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

// menuOf are the actions on an incident's site that would help.
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

// examplesOf are the first nodes, pods or sites that an incident touches, and how many more there are.
func examplesOf(i *fleet.Incident) (links []exampleLink, more int) {
	site := state.Sites.Row().Name
	for _, name := range i.Examples[:min(len(i.Examples), fewExamples)] {
		switch {
		case i.About.Kind == diagnose.KindFleet:
			links = append(links, exampleLink{name, frame.SiteHref(name)})
		case i.About.Kind == site, i.About.Kind == state.FirmwareRollouts.Row().Name:
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

// aboutHref is where what an incident is in is shown.
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

// listHref is the list of the incidents of a cause; "": of all.
func listHref(cause fleet.IncidentCause, status string) string {
	q := url.Values{}
	for key, v := range map[string]string{"cause": string(cause), "status": status} {
		if v != "" {
			q.Set(key, v)
		}
	}
	return strings.TrimSuffix(ListPath+"?"+q.Encode(), "?")
}

// Title puts what is open before a page's title.
func (t Tab) Title(of string) string {
	if t.Open == 0 {
		return of
	}
	return fmt.Sprintf("(%d) %s", t.Open, of)
}
