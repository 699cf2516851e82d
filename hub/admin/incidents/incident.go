package incidents

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A line is one moment of an incident's timeline.
type line struct {
	At, After string // by the clock, and since it began
	Text      string
	Href      string // of the incident that the line is about; "": of this one
}

type incidentData struct {
	Card
	Name     string
	Open     bool
	Cost     string // of one that is over
	PartOf   entry  // the incident that it follows from; zero: none
	Closed   *format.Moment
	Own      frame.Menu // what can be done to the incident itself
	Did      *frame.Done
	Facts    []frame.Fact
	Timeline []line
	Audit    string // where the audit tells of it; "": the role may not look
}

// Incident shows one incident: what it touches and costs, its timeline, and who takes care of it.
func Incident(a *frame.Request) (frame.Page, error) {
	name := a.Param("name")
	i := named(a, name)
	if i == nil {
		return frame.Page{}, frame.MissingError(fmt.Sprintf(
			"There is no incident %s: one that is over is kept for a day.", name))
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
	d.Facts = factsOf(i)
	d.Timeline = timelineOf(a, i)
	if a.May("list", "audit") {
		d.Audit = "/audit?" + url.Values{"q": {cmp.Or(i.Site, i.About.Name, name)}}.Encode()
	}
	return frame.Page{Template: "incident", Title: i.Message, Watch: []string{frame.IncidentsTopic, "sites", "events"},
		Poll: 10, Data: d}, nil
}

// timelineOf are the lines of an incident's timeline; those of another day have their date.
func timelineOf(a *frame.Request, i *fleet.Incident) (lines []line) {
	today := a.Now.UTC().Format(time.DateOnly)
	for _, m := range incident.Timeline(a.Snapshot, i) {
		at := m.At.UTC()
		l := line{At: strings.TrimPrefix(at.Format(time.DateTime), today+" "), Text: m.Text}
		if i.Acknowledged == nil || !strings.HasPrefix(m.Text, i.Acknowledged.By) { // a name stays as it is
			l.Text = format.Capital(m.Text)
		}
		if after := m.At.Sub(i.Since.Time); after >= time.Second {
			l.After = "+" + duration.HumanDuration(after)
		}
		if m.Of != "" {
			l.Href = frame.IncidentHref(m.Of)
		}
		lines = append(lines, l)
	}
	return lines
}

// named returns an incident, nil if there is none.
func named(a *frame.Request, name string) *fleet.Incident {
	i, _ := a.Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident)
	return i
}

// factsOf are what an incident touches and has cost so far.
func factsOf(i *fleet.Incident) (facts []frame.Fact) {
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, frame.Fact{Name: name, Value: value})
		}
	}
	add("Cause", string(i.Cause))
	add("Site", i.Site)
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
