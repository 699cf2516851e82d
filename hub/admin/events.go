package admin

import (
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

type eventRow struct {
	Pill    pill
	Reason  string
	Message string
	About   string
	Href    string
	When    *moment
	Count   int32
}

type eventsData struct {
	Search string
	Wrong  string // what is not understood of the search
	Types  []option
	Rows   []eventRow
	Pager  pager
	Empty  bool
}

// events lists what happened, the newest first.
func events(a *request) (page, error) {
	text, kind, q := strings.TrimSpace(a.query("q")), a.query("type"), a.searched(search.Events)
	match := eventFinder.matcher(a, q)
	d := eventsData{
		Search: text, Wrong: q.Wrong, Types: options(kind, eventTypes...),
		Empty: a.Len(state.Events) == 0,
	}
	var found []*corev1.Event
	for e := range state.Each[*corev1.Event](a.Snapshot, state.Events, "") {
		if (kind == "" || e.Type == kind) && match(e) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, newestFirst)
	from, to, pager := pageOf(a, len(found), url.Values{"q": {text}, "type": {kind}})
	d.Pager = pager
	for _, e := range found[from:to] {
		d.Rows = append(d.Rows, eventRowOf(a, e))
	}
	return page{Template: "events", Title: "Events", Watch: []string{"events"}, Data: d}, nil
}

// eventCount is how often it happened, by an event of either generation.
func eventCount(e *corev1.Event) int32 {
	if e.Series != nil {
		return max(e.Series.Count, 1)
	}
	return max(e.Count, 1)
}

func eventRowOf(a *request, e *corev1.Event) eventRow {
	about := e.InvolvedObject
	r := eventRow{
		Pill: pill{"idle", "Normal"}, Reason: e.Reason, Message: e.Message, About: strings.ToLower(about.Kind) + " " + about.Name,
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
