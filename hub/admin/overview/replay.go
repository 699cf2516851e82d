package overview

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/nodes"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

const (
	// replayed is how far back the fleet's picture can be replayed at most, in steps of replayStep.
	replayed   = 12 * time.Hour
	replayStep = 10 * time.Minute
)

// A replay is the slider over the fleet's picture, and the moment that it stands at.
type replay struct {
	Span             string // how far back it goes; "": nothing is known of the past
	Past             bool   // the slider stands before now
	Min, Value, Step int    // the slider's values, in minutes after now
	At, Ago          string // the moment in words
	Here             string // the address of the moment
	Earlier, Later   string // the addresses of the steps before and after; "": none
	Open             []openIncident

	at time.Time
}

// An openIncident is an incident that was open at the moment.
type openIncident struct {
	Key, Href, Message, Since string
	Pill                      frame.Pill
}

// knownSpan is how far back the fleet can be replayed: to when the oldest node joined.
func knownSpan(a *frame.Request) (span time.Duration) {
	for n := range a.Nodes() {
		if age := a.Now.Sub(n.CreationTimestamp.Time); age >= replayed {
			return replayed
		} else if age > span {
			span = age
		}
	}
	if span >= 2*time.Hour {
		return span.Truncate(time.Hour) // as format.Duration says it
	}
	return span.Truncate(replayStep)
}

// replayOf reads the query's moment: the slider's minutes after now, or an RFC 3339 time.
func replayOf(a *frame.Request) (r replay, err error) {
	known := knownSpan(a)
	r = replay{Min: -int(known / time.Minute), Step: int(replayStep / time.Minute), at: a.Now}
	if known > 0 {
		r.Span = format.Duration(known)
	}
	text := strings.TrimSpace(a.Query("at"))
	if text == "" {
		return r, nil
	}
	if text == "0" {
		return r, nil
	}
	if known == 0 {
		return r, frame.InputError("The past of this fleet can be replayed when its first node is 10 minutes old.")
	}
	if minutes, err := strconv.Atoi(text); err == nil && minutes >= r.Min && minutes < 0 {
		r.at = a.Now.Add(time.Duration(minutes) * time.Minute).Truncate(replayStep)
	} else if r.at, err = time.Parse(time.RFC3339, text); err != nil {
		return r, frame.InputError(fmt.Sprintf("at=%s is not a moment of the last %s. Use for example at=%s.",
			bound.Text(text, 40), r.Span, momentText(a.Now.Add(-replayStep).Truncate(replayStep))))
	}
	first := a.Now.Add(-known).Truncate(replayStep)
	if r.at.Before(first) || r.at.After(a.Now) {
		return r, frame.InputError(fmt.Sprintf("at=%s is outside of the last %s. Use a moment from %s on.",
			bound.Text(text, 40), r.Span, momentText(first)))
	}
	r.Past, r.Value = true, -int(a.Now.Sub(r.at)/time.Minute)
	r.At, r.Ago = r.at.UTC().Format("15:04 UTC"), format.Duration(a.Now.Sub(r.at).Truncate(time.Minute))
	r.Here = momentHref(r.at)
	if earlier := r.at.Add(-replayStep); !earlier.Before(first) {
		r.Earlier = momentHref(earlier)
	}
	if later := r.at.Add(replayStep); later.Before(a.Now) {
		r.Later = momentHref(later)
	}
	r.Open = openAt(a, r.at)
	return r, nil
}

func momentText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func momentHref(t time.Time) string { return "/?" + url.Values{"at": {momentText(t)}}.Encode() }

// openAt lists the incidents that were open at a moment, the worst first. Incidents that closed more
// than a day ago are not kept.
func openAt(a *frame.Request, at time.Time) (open []openIncident) {
	var found []*fleet.Incident
	for i := range state.Each[*fleet.Incident](a.Snapshot, state.Incidents, "") {
		if !i.Opened.After(at) && (i.Closed == nil || i.Closed.After(at)) && i.Severity != fleet.SeverityInfo {
			found = append(found, i)
		}
	}
	slices.SortStableFunc(found, incident.Compare)
	for _, i := range found {
		open = append(open, openIncident{Key: i.Name, Href: frame.IncidentHref(i.Name), Message: i.Message,
			Since: i.Since.UTC().Format("15:04"), Pill: finding.SeverityPill(i.Severity)})
	}
	return open
}

// lookAt is how a node looked at a moment. Only its readiness is kept.
func lookAt(a *frame.Request, n *corev1.Node, at time.Time) markKind {
	switch nodes.StateAt(a, n, at) {
	case "ok":
		return markOK
	case "bad":
		return markBad
	case "unknown", "out":
		return markDark
	}
	return markNever
}

// tilesAt returns the tiles for an earlier moment. They count nodes and sites whose state was known.
func tilesAt(f *fleetPicture) []tile {
	up, known, sites, dark := f.RestReady, f.RestNodes, f.Rest, 0
	for _, s := range f.Sites {
		up, known = up+s.Ready, known+s.Known
		if s.Known == 0 {
			continue
		}
		if sites++; s.Ready == 0 {
			dark++
		}
	}
	notKept := func(label, href string) tile {
		return tile{Label: label, Value: "–", Note: "not kept", Href: href, Kind: "idle"}
	}
	if known == 0 {
		return []tile{notKept("Nodes", "/nodes"), notKept("Sites", "/sites"), notKept("Workloads", "/workloads"),
			notKept("Pods", "/pods")}
	}
	return []tile{countTile("Nodes", "ready then", "/nodes", "bad", up, known),
		countTile("Sites", "answered then", "/sites", "bad", sites-dark, sites),
		notKept("Workloads", "/workloads"), notKept("Pods", "/pods")}
}
