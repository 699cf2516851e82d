// Package changes lists what changed about a node, a site or a workload in the last day, on one
// time axis: versions, boot configurations, drains, what people did, links, crashes, incidents.
//
// Of is a pure function of a snapshot, audit records and the time. The pages of nodes, sites and
// workloads show its list; an incident's page adds the audit records to its timeline.
package changes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// Window is how far back changes are listed.
const Window = 24 * time.Hour

// A Kind is a sort of change. Each has its own line on the time axis.
type Kind string

// The kinds, in the order of their lines.
const (
	Version  Kind = "Version"
	Scaling  Kind = "Scaling"
	Boot     Kind = "Boot configuration"
	Drain    Kind = "Cordon or drain"
	People   Kind = "User change"
	Link     Kind = "Readiness"
	Crash    Kind = "Crash"
	Incident Kind = "Incident"
)

var kinds = []Kind{Version, Scaling, Boot, Drain, People, Link, Crash, Incident}

// An Entry is one change.
type Entry struct {
	At   time.Time
	Kind Kind
	Text string
	Href string // the page of the changed object; "": none
	Bad  bool   // the change is a failure

	name, what string // entries with equal what within a minute become one entry with all names
}

// A Subject is what a list of changes is about: an object, and the objects that belong to it.
type Subject struct {
	Object    state.Object
	Site      string
	Nodes     []*corev1.Node
	Pods      []*corev1.Pod
	Workloads []state.Object
}

// NodeSubject is a node with its pods and their workloads.
func NodeSubject(s state.Snapshot, n *corev1.Node) Subject {
	sub := Subject{Object: n, Site: state.SiteOf(n), Nodes: []*corev1.Node{n}}
	sub.addPods(s)
	return sub
}

// SiteSubject is a site with its nodes, their pods and the pods' workloads.
func SiteSubject(s state.Snapshot, site *fleet.Site) Subject {
	sub := Subject{Object: site, Site: site.Name, Nodes: slices.Collect(s.NodesIn(site.Name))}
	sub.addPods(s)
	return sub
}

// addPods adds the pods of the subject's nodes, and the workloads of these pods.
func (sub *Subject) addPods(s state.Snapshot) {
	known := map[state.Key]bool{}
	for _, n := range sub.Nodes {
		for p := range s.PodsOn(n.Name) {
			sub.Pods = append(sub.Pods, p)
			owners := frame.OwnersOf(s, p)
			if len(owners) == 0 {
				continue
			}
			o := owners[len(owners)-1]
			if key := state.KeyOf(o); !known[key] {
				known[key] = true
				sub.Workloads = append(sub.Workloads, o)
			}
		}
	}
}

// Of returns what changed about a subject in the last day, the newest first.
func Of(s state.Snapshot, sub Subject, audits []store.Audit, now time.Time) []Entry {
	since := now.Add(-Window)
	l := list{s: s, since: since, now: now}
	for _, n := range sub.Nodes {
		l.readiness(n)
		l.cordonAndDrain(n)
		l.events(state.Nodes, n)
	}
	for _, p := range sub.Pods {
		l.crashes(p)
	}
	for _, o := range sub.Workloads {
		l.versions(o)
	}
	switch state.KindOf(sub.Object) {
	case state.Nodes:
	case state.Sites:
		l.events(state.Sites, sub.Object)
	default:
		l.events(state.KindOf(sub.Object), sub.Object)
	}
	l.bootBatches(sub)
	l.incidents(sub)
	l.add(Audits(sub, audits, since)...)
	return fold(l.entries)
}

// A list collects the entries of one subject.
type list struct {
	s          state.Snapshot
	since, now time.Time
	entries    []Entry
}

// add keeps the entries of the window.
func (l *list) add(entries ...Entry) {
	for _, e := range entries {
		if !e.At.Before(l.since) && !e.At.After(l.now) {
			l.entries = append(l.entries, e)
		}
	}
}

// From flaps changes of readiness on, each within flapGap of the one before, they are one entry.
const (
	flaps   = 4
	flapGap = 10 * time.Minute
)

// readiness adds the changes of a node's condition Ready and of its NoExecute taint, and the pods
// that had to leave it.
func (l *list) readiness(n *corev1.Node) {
	rec := l.s.Record(n.Name)
	if rec == nil {
		return
	}
	turns := rec.History
	for len(turns) > 0 {
		end := 1
		for end < len(turns) && turns[end].At.Sub(turns[end-1].At.Time) < flapGap {
			end++
		}
		if end >= flaps {
			first, last := turns[0], turns[end-1]
			l.add(Entry{At: last.At.Time, Kind: Link, Href: frame.NodeHref(n.Name), Bad: true,
				Text: fmt.Sprintf("%s: Ready changed %d times in %s, at last to %s", n.Name, end,
					format.Duration(last.At.Sub(first.At.Time)), became(last))})
		} else {
			for _, t := range turns[:end] {
				l.add(Entry{At: t.At.Time, Kind: Link, Href: frame.NodeHref(n.Name), what: ": " + became(t), name: n.Name,
					Bad: t.Ready != corev1.ConditionTrue})
			}
		}
		turns = turns[end:]
	}
	for _, e := range rec.Evicted {
		l.add(Entry{At: e.At.Time, Kind: Link, Bad: true, what: " had to leave " + n.Name,
			name: strings.TrimPrefix(e.Pod, metav1.NamespaceDefault+"/")})
	}
}

// became names the health that a node got.
func became(t state.HealthChange) string {
	switch {
	case t.Out:
		return "given up, pods leave"
	case t.Ready == corev1.ConditionTrue:
		return "ready"
	case t.Ready == corev1.ConditionFalse:
		return "not ready"
	}
	return "silent"
}

// cordonAndDrain adds when a node was cordoned, and when its last drain began and ended.
func (l *list) cordonAndDrain(n *corev1.Node) {
	entry := func(at time.Time, what string) {
		l.add(Entry{At: at, Kind: Drain, Href: frame.NodeHref(n.Name), what: ": " + what, name: n.Name})
	}
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeUnschedulable && t.TimeAdded != nil {
			entry(t.TimeAdded.Time, "cordoned")
		}
	}
	st := state.DrainStatusOf(n)
	if st == nil {
		return
	}
	by := ""
	if st.By != "" {
		by = " by " + st.By
	}
	entry(st.Began, "drain started"+by)
	switch {
	case st.Going():
	case st.State == state.Drained:
		entry(st.Ended, "drained")
	default:
		entry(st.Ended, "drain ended early: "+st.Why)
	}
}

// crashes adds the last failure of each of a pod's containers.
func (l *list) crashes(p *corev1.Pod) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		for _, st := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			if st == nil || st.ExitCode == 0 {
				continue
			}
			text := fmt.Sprintf("%s: container %s failed with exit code %d", frame.ItemOf(p), c.Name, st.ExitCode)
			if st.Reason != "" && st.Reason != "Error" {
				text += " (" + st.Reason + ")"
			}
			if c.RestartCount > 0 {
				text += ", restarted " + format.Times(c.RestartCount)
			}
			l.add(Entry{At: st.FinishedAt.Time, Kind: Crash, Text: text, Href: frame.PodHref(p), Bad: true})
		}
	}
}

// incidents adds when incidents of the subject opened and closed.
func (l *list) incidents(sub Subject) {
	kind, o := state.KindOf(sub.Object), sub.Object
	for i := range state.Each[*fleet.Incident](l.s, state.Incidents, "") {
		about := state.KindNamed(i.About.Kind) == kind && i.About.Name == o.GetName() &&
			i.About.Namespace == o.GetNamespace()
		of := kind == state.Sites && i.Site == o.GetName() ||
			kind == state.Nodes && i.Site == sub.Site && slices.Contains(i.Examples, o.GetName())
		if !about && !of {
			continue
		}
		l.add(Entry{At: i.Opened.Time, Kind: Incident, Text: i.Message, Href: frame.IncidentHref(i.Name), Bad: true})
		if i.Closed != nil {
			l.add(Entry{At: i.Closed.Time, Kind: Incident, Text: "Over: " + i.Message, Href: frame.IncidentHref(i.Name)})
		}
	}
}

// fold merges entries that say the same about several objects within a minute. The newest is first.
func fold(entries []Entry) (folded []Entry) {
	slices.SortStableFunc(entries, func(x, y Entry) int { return x.At.Compare(y.At) })
	last := map[string]int{} // index of the newest entry, by its what
	var names [][]string
	for _, e := range entries {
		i, known := last[e.what]
		if known = known && e.what != "" && e.At.Sub(folded[i].At) < time.Minute; !known {
			i = len(folded)
			last[e.what] = i
			folded, names = append(folded, e), append(names, nil)
		}
		if e.what != "" {
			names[i] = append(names[i], e.name)
			folded[i].Text = format.List(names[i], 3) + e.what
		}
		if known {
			folded[i].Href = ""
		}
	}
	slices.Reverse(folded)
	return folded
}
