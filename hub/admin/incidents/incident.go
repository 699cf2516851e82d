package incidents

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/admin/changes"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A line is one line of an incident's timeline.
type line struct {
	At, After string // the time, and how long after the incident began
	Text      string
	Href      string // the page of another incident or object; "": the line is about this incident

	moment time.Time
}

type incidentData struct {
	Card
	Name     string
	Open     bool
	Cost     string // what a closed incident has cost
	PartOf   entry  // the incident that it follows from; zero: none
	Closed   *format.Moment
	Own      frame.Menu // actions on the incident itself
	Did      *frame.Done
	Facts    []frame.Fact
	Timeline []line
	Audit    string // the link to the audit; "": the role may not read it
	Place    string // the page of its object
}

// Incident shows one incident: what it touches and costs, its timeline, and who acknowledged it.
func Incident(a *frame.Request) (frame.Page, error) {
	name := a.Param("name")
	i := named(a, name)
	if i == nil {
		return frame.Page{}, frame.MissingError(fmt.Sprintf(
			"There is no incident %s: an incident is kept for a day after its end.", name))
	}
	d := incidentData{Card: single(a, i), Name: name, Open: i.State == fleet.IncidentOpen, Own: frame.MenuOf(a, i),
		Did: frame.JustDone(a)}
	d.Pill = pillOf(i)
	if i.Closed != nil {
		d.Closed = format.Time(i.Closed.Time, a.Now)
		d.Cost, d.Menu = incident.Cost(i), frame.Menu{}
	}
	if i.Cause == diagnose.CannotBePlaced && d.Open {
		d.Message = placeless(a, i)
	}
	if of := named(a, cmp.Or(i.PartOf, i.Followed)); of != nil {
		d.PartOf = entry{Href: frame.IncidentHref(of.Name), Message: of.Message, Pill: pillOf(of)}
	}
	d.Facts = factsOf(a, i)
	d.Timeline = timelineOf(a, i)
	if d.Place = d.About; state.KindNamed(i.About.Kind) == state.Sites {
		d.Place = frame.SiteHref(i.About.Name)
	}
	if a.May("list", "audit") {
		d.Audit = "/audit?" + url.Values{"q": {cmp.Or(i.Site, i.About.Name, name)}}.Encode()
	}
	return frame.Page{Template: "incident", Title: i.Message, Watch: []string{frame.IncidentsTopic, "sites", "events"},
		Poll: 10, Data: d}, nil
}

// before is how long before the incident its timeline starts: an earlier change may be the cause.
const before = time.Hour

// timelineOf merges an incident's history with the versions, drains, boot configurations and user
// changes of that time. Lines of another day show the date.
func timelineOf(a *frame.Request, i *fleet.Incident) (lines []line) {
	today := a.Now.UTC().Format(time.DateOnly)
	add := func(at time.Time, text, href string) {
		l := line{moment: at, At: strings.TrimPrefix(at.UTC().Format(time.DateTime), today+" "), Text: text, Href: href}
		switch after := at.Sub(i.Since.Time); {
		case after >= time.Second:
			l.After = "+" + duration.HumanDuration(after)
		case after <= -time.Second:
			l.After = "−" + duration.HumanDuration(-after)
		}
		lines = append(lines, l)
	}
	for _, m := range incident.Timeline(a.Snapshot, i) {
		text, href := m.Text, ""
		if i.Acknowledged == nil || !strings.HasPrefix(text, i.Acknowledged.By) { // a user's name is not capitalised
			text = format.Capital(text)
		}
		switch {
		case m.Of != "":
			href = frame.IncidentHref(m.Of)
		case m.Cause != "":
			href = listHref(m.Cause, "")
		}
		add(m.At, text, href)
	}
	end := a.Now
	if i.Closed != nil {
		end = i.Closed.Time
	}
	if r := replacedBy(a.Snapshot, i, end); r.made > 0 {
		add(r.at, r.text(), r.href)
	}
	for _, e := range changesOf(a, i) {
		switch e.Kind {
		case changes.Version, changes.Boot, changes.Drain, changes.People:
			if !e.At.Before(i.Since.Add(-before)) && !e.At.After(end) {
				add(e.At, e.Text, e.Href)
			}
		}
	}
	slices.SortStableFunc(lines, func(x, y line) int { return x.moment.Compare(y.moment) })
	return lines
}

// changesOf returns the changes of an incident's object, or of its site.
func changesOf(a *frame.Request, i *fleet.Incident) []changes.Entry {
	var sub changes.Subject
	o := a.Get(state.Key{Kind: state.KindNamed(i.About.Kind), Namespace: i.About.Namespace, Name: i.About.Name})
	site := a.Site(i.Site)
	switch {
	case o != nil && state.KindOf(o) != state.Sites:
		sub = changes.Subject{Object: o, Workloads: []state.Object{o}}
	case site != nil:
		sub = changes.SiteSubject(a.Snapshot, site)
	default:
		return nil
	}
	audits, _ := a.Audits() // the page links to the audit, which says why it cannot be read
	return changes.Of(a.Snapshot, sub, audits, a.Now)
}

// named returns an incident, nil if there is none.
func named(a *frame.Request, name string) *fleet.Incident {
	i, _ := a.Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident)
	return i
}

// factsOf returns what an incident touches and has cost so far.
func factsOf(a *frame.Request, i *fleet.Incident) (facts []frame.Fact) {
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, frame.Fact{Name: name, Value: value})
		}
	}
	facts = append(facts, frame.Fact{Name: "Cause", Value: string(i.Cause), Href: listHref(i.Cause, "")})
	if i.Site != "" {
		facts = append(facts, frame.Fact{Name: "Site", Value: i.Site, Href: siteHref(a, i.Site)})
	}
	add("Began", format.Stamp(i.Since.Time))
	if i.Closed != nil {
		add("Over", format.Stamp(i.Closed.Time))
	}
	if i.Most != i.Count {
		add("Touched at most", incident.Counts(i.Most))
	}
	if i.Evicted > 0 {
		add("Told to leave", format.Plural(int(i.Evicted), "pod"))
	}
	if i.ShortSeconds > 0 {
		add("Workloads were short for", format.Duration(time.Duration(i.ShortSeconds)*time.Second))
	}
	return facts
}
