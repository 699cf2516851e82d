package admin

import (
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

// An eventRow is an event, or several of one reason, as the page lists them.
type eventRow struct {
	Pill    pill
	Reason  string
	Message string
	About   string
	Href    string
	When    *moment
	Count   int32
	Others  int    // events of the reason about other things, which this one stands for
	All     string // the list of all of them
}

type eventsData struct {
	Search string
	Wrong  string // what is not understood of the search
	Types  []option
	Sinces []option
	Reason string // the only one that is listed
	Rows   []eventRow
	Pager  pager
	Folded bool
	Total  int
	Empty  bool
}

// eventSinces are how far back events are listed.
var eventSinces = [][2]string{{"", "However old"}, {"10m", "Last 10 minutes"}, {"1h", "Last hour"}, {"24h", "Last 24 hours"}}

// events lists what happened, the newest first. Unless somebody looks for something, those of one
// reason about things of one kind are one row: thousands of pods that start must not hide
// the one that does not.
func events(a *request) (page, error) {
	text, kind, q := strings.TrimSpace(a.query("q")), a.query("type"), a.searched(search.Events)
	reason, since := a.query("reason"), a.query("since")
	var from0 time.Time
	if d, err := time.ParseDuration(since); err == nil {
		from0 = a.now.Add(-d)
	}
	match := eventFinder.matcher(a, q)
	d := eventsData{
		Search: text, Wrong: q.Wrong, Types: options(kind, eventTypes...), Sinces: withChosen(options(since, eventSinces...), since), Reason: reason,
		Empty: a.Len(state.Events) == 0,
	}
	var found []*corev1.Event
	for e := range state.Each[*corev1.Event](a.Snapshot, state.Events, "") {
		if (kind == "" || e.Type == kind) && (reason == "" || e.Reason == reason) && !eventTime(e).Before(from0) && match(e) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, newestFirst)
	d.Total = len(found)
	filter := url.Values{"q": {text}, "type": {kind}, "since": {since}, "reason": {reason}}
	others := map[eventFold]int{}
	if d.Folded = text == "" && reason == ""; d.Folded {
		found = foldEvents(found, others)
	}
	from, to, pager := pageOf(a, len(found), filter)
	d.Pager = pager
	for _, e := range found[from:to] {
		r := eventRowOf(a, e)
		if r.Others = others[foldOf(e)]; r.Others > 0 {
			r.All = "/events?" + url.Values{"reason": {e.Reason}}.Encode()
		}
		d.Rows = append(d.Rows, r)
	}
	return page{Template: "events", Title: "Events", Watch: []string{"events"}, Data: d}, nil
}

// An eventFold is what events have in common that are one row.
type eventFold struct{ reason, kind, of string }

func foldOf(e *corev1.Event) eventFold { return eventFold{e.Reason, e.Type, e.InvolvedObject.Kind} }

// foldEvents keeps the newest of each, and counts the others.
func foldEvents(found []*corev1.Event, others map[eventFold]int) (kept []*corev1.Event) {
	for _, e := range found {
		n, seen := others[foldOf(e)]
		if seen {
			others[foldOf(e)] = n + 1
			continue
		}
		others[foldOf(e)] = 0
		kept = append(kept, e)
	}
	return kept
}

// did are the words with which the hub's own events begin, and what the page says for them: the log says
// what the hub is about to do, the page what has been done.
var did = map[string]string{
	"bind": "Bound", "create": "Created", "delete": "Deleted", "evict": "Evicted", "register": "Registered", "release": "Released", "scale": "Scaled", "taint": "Tainted",
}

// reported is an event's message as a report.
func reported(message string) string {
	word, rest, ok := strings.Cut(message, " ")
	switch {
	case !ok:
	case word == "create" && strings.HasPrefix(rest, "no "):
		return "Could not create a" + strings.TrimPrefix(rest, "no")
	case did[word] != "":
		return did[word] + " " + rest
	case word == "hold":
		what, after, isHeld := strings.Cut(rest, " back for ")
		if wait, _, ok := strings.Cut(after, ": "); isHeld && ok {
			return "Waiting " + wait + " before making more pods of " + what + ": each is lost at once"
		}
	}
	return message
}

// eventCount is how often it happened, by an event of either generation.
func eventCount(e *corev1.Event) int32 {
	if e.Series != nil {
		return max(e.Series.Count, 1)
	}
	return max(e.Count, 1)
}

// eventRowOf is the row of one event.
func eventRowOf(a *request, e *corev1.Event) eventRow {
	about := e.InvolvedObject
	r := eventRow{
		Pill: pill{"idle", "Normal"}, Reason: e.Reason, Message: reported(e.Message), About: strings.ToLower(about.Kind) + " " + about.Name,
		When: at(eventTime(e), a.now), Count: eventCount(e),
	}
	if e.Type == corev1.EventTypeWarning {
		r.Pill = pill{"warn", "Warning"}
	}
	switch about.Kind {
	case "Node":
		if a.Node(about.Name) != nil {
			r.Href = nodeHref(about.Name)
		}
	case "Pod":
		if p := a.Pod(about.Namespace, about.Name); p != nil {
			r.Href = podHref(p)
		}
	case "Deployment", "DaemonSet", "StatefulSet":
		kind := state.Kind(strings.ToLower(about.Kind) + "s")
		if a.Get(state.Key{Kind: kind, Namespace: about.Namespace, Name: about.Name}) != nil {
			r.Href = workloadHref(kind, about.Namespace, about.Name)
		}
	case "Job":
		if a.Get(state.Key{Kind: state.Jobs, Namespace: about.Namespace, Name: about.Name}) != nil {
			r.Href = ownerHref(about.Namespace, strings.ToLower(about.Kind), about.Name)
		}
	case "Site":
		r.Href = siteHref(about.Name)
	}
	return r
}
