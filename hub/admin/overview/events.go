package overview

import (
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

type eventsData struct {
	Search string
	Wrong  string // what is wrong with the search
	Types  []frame.Option
	Sinces []frame.Option
	Reason string // only events with this reason are listed
	Rows   []frame.EventRow
	Pager  frame.Pager
	Folded bool
	Total  int
	Empty  bool
}

// eventSinces are the choices of the filter by age.
var eventSinces = [][2]string{{"", "However old"}, {"10m", "Last 10 minutes"}, {"1h", "Last hour"},
	{"24h", "Last 24 hours"}}

// Events lists events, newest first. Without a search, events with one reason about one kind share
// a row, so that thousands of starting pods do not hide the one that fails.
func Events(a *frame.Request) (frame.Page, error) {
	text, kind, q := strings.TrimSpace(a.Query("q")), a.Query("type"), a.Searched(search.Events)
	reason, since := a.Query("reason"), a.Query("since")
	var from0 time.Time
	if d, err := time.ParseDuration(since); err == nil {
		from0 = a.Now.Add(-d)
	}
	match := eventFinder.Matcher(a, q)
	d := eventsData{
		Search: text, Wrong: q.Wrong, Types: frame.Options(kind, frame.EventTypes...),
		Sinces: frame.WithChosen(frame.Options(since, eventSinces...), since), Reason: reason,
		Empty: a.Len(state.Events) == 0,
	}
	var found []*corev1.Event
	for e := range state.Each[*corev1.Event](a.Snapshot, state.Events, "") {
		if (kind == "" || e.Type == kind) && (reason == "" || e.Reason == reason) &&
			!frame.EventTime(e).Before(from0) && match(e) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, frame.NewestFirst)
	d.Total = len(found)
	filter := url.Values{"q": {text}, "type": {kind}, "since": {since}, "reason": {reason}}
	others := map[eventFold]int{}
	if d.Folded = text == "" && reason == ""; d.Folded {
		found = foldEvents(found, others)
	}
	from, to, pager := frame.PageOf(a, len(found), filter)
	d.Pager = pager
	for _, e := range found[from:to] {
		r := frame.EventRowOf(a, e)
		if r.Others = others[foldOf(e)]; r.Others > 0 {
			r.All = "/events?" + url.Values{"reason": {e.Reason}}.Encode()
		}
		d.Rows = append(d.Rows, r)
	}
	return frame.Page{Template: "events", Title: "Events", Watch: []string{"events"}, Data: d}, nil
}

// An eventFold is what all events of one row have in common.
type eventFold struct{ reason, kind, of string }

func foldOf(e *corev1.Event) eventFold { return eventFold{e.Reason, e.Type, e.InvolvedObject.Kind} }

// foldEvents keeps the newest event of each fold and counts the others.
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

var eventFinder = frame.Finder[*corev1.Event]{List: search.Events,
	Has: map[string]func(*frame.Request, search.Term) frame.Match[*corev1.Event]{
		"": frame.Key(func(e *corev1.Event, t search.Term) bool {
			return t.In(e.InvolvedObject.Kind+" "+e.InvolvedObject.Name, e.Reason, e.Message)
		}),
		"namespace": frame.Key(func(e *corev1.Event, t search.Term) bool { return t.Is(e.InvolvedObject.Namespace) }),
		"status":    frame.Key(func(e *corev1.Event, t search.Term) bool { return t.Is(e.Type) }),
		"node": func(a *frame.Request, _ search.Term) frame.Match[*corev1.Event] {
			return func(e *corev1.Event, t search.Term) bool {
				node := eventNode(a, e)
				return node != "" && t.Is(node)
			}
		},
		"time": func(a *frame.Request, t search.Term) frame.Match[*corev1.Event] {
			from, until := t.Between(a.Now)
			return func(e *corev1.Event, _ search.Term) bool {
				at := frame.EventTime(e)
				return !at.Before(from) && at.Before(until)
			}
		},
		"site": func(a *frame.Request, t search.Term) frame.Match[*corev1.Event] {
			in := frame.NodesLike(a, func(n *corev1.Node) bool { return t.Is(state.SiteOf(n)) })
			return func(e *corev1.Event, t search.Term) bool {
				return in[eventNode(a, e)] || e.InvolvedObject.Kind == state.Sites.Row().Name &&
					t.Is(e.InvolvedObject.Name)
			}
		},
	}}

// eventNode returns the node of an event's object; "": it has no node.
func eventNode(a *frame.Request, e *corev1.Event) string {
	switch e.InvolvedObject.Kind {
	case "Node":
		return e.InvolvedObject.Name
	case "Pod":
		if p := a.Pod(e.InvolvedObject.Namespace, e.InvolvedObject.Name); p != nil {
			return p.Spec.NodeName
		}
	}
	return ""
}
