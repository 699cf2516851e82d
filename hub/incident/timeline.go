package incident

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A Moment is one line of an incident's timeline.
type Moment struct {
	At   time.Time
	Text string
	Of   string // the incident that the line is about, if it is another one
	// Cause is set if the line is about several incidents of one cause.
	Cause fleet.IncidentCause
}

// mostMoments limits the incidents that followed, and the events, in a timeline.
const mostMoments = 50

// Timeline returns the history of an incident, oldest first: its own moments, the incidents that
// followed from it, and the events about its site and its object.
func Timeline(s state.Snapshot, i *fleet.Incident) (all []Moment) {
	add := func(at *metav1.Time, format string, args ...any) {
		if at != nil && !at.IsZero() {
			all = append(all, Moment{At: at.Time, Text: fmt.Sprintf(format, args...)})
		}
	}
	began, last := "it began", "its last node failed"
	if f := diagnose.RuleOf(i.Cause).Family; f == diagnose.FamilyDark || f == diagnose.FamilyFleet {
		began, last = "its first node stopped answering",
			"its last node stopped answering"
	}
	add(&i.Since, "%s", began)
	if latest := metav1.NewTime(i.Latest.Time); i.Most.Nodes > 1 && latest.After(i.Since.Time) {
		add(&latest, "%s", last)
	}
	add(&i.Opened, "the hub opened the incident")
	add(i.Tainted, "its first node was given up: its pods leave when their tolerations end")
	add(i.Moved, "the first pod was told to leave")
	add(i.Back, "its first node was back")
	add(i.QuietSince, "its cause was not seen any more")
	for _, t := range i.Told {
		add(t.Opened, "%s was notified of its opening", t.Whom)
		add(t.Closed, "%s was notified of its end", t.Whom)
	}
	if a := i.Acknowledged; a != nil {
		add(&a.Time, "%s acknowledged it", a.By)
	}
	add(i.Closed, "closed: %s", Cost(i))
	all = append(all, followed(s, i)...)
	all = append(all, eventsAbout(s, i)...)
	slices.SortStableFunc(all, func(a, b Moment) int { return a.At.Compare(b.At) })
	return all
}

// followed returns lines for the incidents that follow from an incident, by the time at which they
// opened. More than Alone incidents of one cause share a line. "open before" begins the line of an
// incident that was open before its cause.
func followed(s state.Snapshot, i *fleet.Incident) (all []Moment) {
	type kind struct {
		cause fleet.IncidentCause
		begin string
	}
	byKind := map[kind][]*fleet.Incident{}
	for f := range state.Each[*fleet.Incident](s, state.Incidents, "") {
		if f.PartOf != i.Name && f.Followed != i.Name {
			continue
		}
		k := kind{f.Cause, "followed: "}
		if f.Opened.Time.Before(i.Since.Time) {
			k.begin = "open before: "
		}
		byKind[k] = append(byKind[k], f)
	}
	for k, list := range byKind {
		slices.SortFunc(list, func(a, b *fleet.Incident) int {
			return cmp.Or(a.Opened.Compare(b.Opened.Time), strings.Compare(a.Name, b.Name))
		})
		if len(list) > Alone {
			all = append(all, Moment{At: list[0].Opened.Time, Text: k.begin + Title(list), Cause: k.cause})
			continue
		}
		for _, f := range list {
			all = append(all, Moment{At: f.Opened.Time, Text: k.begin + f.Message, Of: f.Name})
		}
	}
	return first(all)
}

// eventsAbout returns the events about an incident's site and object while it was open.
func eventsAbout(s state.Snapshot, i *fleet.Incident) (all []Moment) {
	about := []fleet.IncidentObject{i.About}
	if site := state.Sites.Row().Name; i.Site != "" && i.About.Kind != site {
		about = append(about, fleet.IncidentObject{Kind: site, Name: i.Site})
	}
	for _, o := range about {
		namespace, prefix := o.Namespace, o.Name+"."
		if namespace == "" {
			namespace = metav1.NamespaceDefault // the namespace of events about cluster-wide objects
		}
		for e := range s.From(state.Events, namespace, namespace, prefix) {
			if !strings.HasPrefix(e.GetName(), prefix) {
				break
			}
			event, ok := e.(*corev1.Event)
			if !ok || event.InvolvedObject.Kind != o.Kind || event.InvolvedObject.Name != o.Name {
				continue
			}
			at := event.CreationTimestamp.Time
			if at.Before(i.Since.Time) { // it first occurred before the incident
				at = event.LastTimestamp.Time
			}
			if at.Before(i.Since.Time) || i.Closed != nil && at.After(i.Closed.Time) {
				continue
			}
			all = append(all, Moment{At: at, Text: event.Message})
		}
	}
	return first(all)
}

// first returns the first mostMoments moments, sorted by time.
func first(all []Moment) []Moment {
	slices.SortStableFunc(all, func(a, b Moment) int { return a.At.Compare(b.At) })
	return all[:min(len(all), mostMoments)]
}

// Cost says what a closed incident has cost: how long it lasted, what it affected, and the sums of
// their times.
func Cost(i *fleet.Incident) string {
	var parts []string
	if i.Closed != nil {
		parts = append(parts, "lasted "+duration.HumanDuration(i.Closed.Sub(i.Since.Time)))
	}
	if n := Counts(i.Most); n != "" {
		parts = append(parts, n+" at most")
	}
	if i.Evicted > 0 {
		parts = append(parts, plural(i.Evicted, "pod")+" told to leave")
	}
	if i.ShortSeconds > 0 {
		parts = append(parts, "workloads short for "+duration.HumanDuration(time.Duration(i.ShortSeconds)*time.Second))
	}
	for _, n := range []struct {
		seconds int64
		one     string
	}{{i.NodeSeconds, "node-minute"}, {i.PodSeconds, "pod-minute"}} {
		if minutes := (n.seconds + 30) / 60; minutes > 0 {
			parts = append(parts, plural(minutes, n.one))
		}
	}
	return strings.Join(parts, ", ")
}
