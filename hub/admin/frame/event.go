package frame

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/state"
)

// An EventRow is an event, or several with one reason, in a list.
type EventRow struct {
	Pill    Pill
	Reason  string
	Message string
	About   string
	Href    string
	When    *format.Moment
	Count   int32
	Others  int    // events with the same reason about other objects, folded into this row
	All     string // the list of all of them
}

// did maps the first word of the hub's own events to the participle that the page shows. The log says
// what the hub is about to do, the page says what it has done.
var did = map[string]string{
	"bind": "Bound", "create": "Created", "delete": "Deleted", "evict": "Evicted", "register": "Registered",
	"release": "Released", "scale": "Scaled", "taint": "Tainted",
}

// readiness replaces the API's status of a node with words.
var readiness = strings.NewReplacer(" Ready=Unknown:", " does not answer:", " Ready=False:", " is not ready:",
	" Ready=True:", " is ready:")

// reported turns an event's message into a report.
func reported(message string) string {
	word, rest, ok := strings.Cut(message, " ")
	switch {
	case !ok:
	case word == "node":
		return "Node " + readiness.Replace(rest)
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

// eventCount is how often an event occurred, in the old and the new event API.
func eventCount(e *corev1.Event) int32 {
	if e.Series != nil {
		return max(e.Series.Count, 1)
	}
	return max(e.Count, 1)
}

// EventRowOf is the row of one event.
func EventRowOf(a *Request, e *corev1.Event) EventRow {
	about := e.InvolvedObject
	r := EventRow{
		Pill: Pill{"idle", "Normal"}, Reason: e.Reason, Message: reported(e.Message),
		About: strings.ToLower(about.Kind) + " " + about.Name,
		When:  format.Time(EventTime(e), a.Now), Count: eventCount(e),
	}
	if e.Type == corev1.EventTypeWarning {
		r.Pill = Pill{"warn", "Warning"}
	}
	switch about.Kind {
	case "Node":
		if a.Node(about.Name) != nil {
			r.Href = NodeHref(about.Name)
		}
	case "Pod":
		if p := a.Pod(about.Namespace, about.Name); p != nil {
			r.Href = PodHref(p)
		}
	case "Deployment", "DaemonSet", "StatefulSet":
		kind := state.Kind(strings.ToLower(about.Kind) + "s")
		if a.Get(state.Key{Kind: kind, Namespace: about.Namespace, Name: about.Name}) != nil {
			r.Href = WorkloadHref(kind, about.Namespace, about.Name)
		}
	case "Job":
		if a.Get(state.Key{Kind: state.Jobs, Namespace: about.Namespace, Name: about.Name}) != nil {
			r.Href = OwnerHref(about.Namespace, strings.ToLower(about.Kind), about.Name)
		}
	case "Site":
		r.Href = SiteHref(about.Name)
	}
	return r
}

// EventsOf returns the events about an object, newest first. Events have names that begin with the
// object's name.
func EventsOf(s state.Snapshot, kind, namespace, name string) (found []*corev1.Event) {
	for o := range s.From(state.Events, namespace, namespace, name+".") {
		e := o.(*corev1.Event)
		if !strings.HasPrefix(e.Name, name+".") {
			break
		}
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, NewestFirst)
	return found
}

// NewestFirst orders events.
func NewestFirst(a, b *corev1.Event) int { return EventTime(b).Compare(EventTime(a)) }

// EventTime is when an event last occurred.
func EventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// NewestOf returns the newest event with the reason, nil if there is none.
func NewestOf(events []*corev1.Event, reason string) *corev1.Event {
	for _, e := range events {
		if e.Reason == reason {
			return e
		}
	}
	return nil
}

// NewestWarning returns the newest warning whose reason is not told; nil: there is none.
func NewestWarning(events []*corev1.Event, told string) *corev1.Event {
	for _, e := range events {
		if e.Type == corev1.EventTypeWarning && (told == "" || e.Reason != told) {
			return e
		}
	}
	return nil
}
