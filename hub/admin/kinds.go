package admin

import (
	"maps"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

// A shownKind is how the page shows the objects of a kind. Those of a kind without one are shown
// as YAML only.
type shownKind struct {
	topic    string            // that pages which show them watch
	list     string            // the list in which they are searched; "": none
	statuses [][2]string       // of that list
	href     func(item) string // where one is shown
}

// A listing is what the list of a kind shows.
type listing struct {
	found func(*request) []state.Object       // what it shows under the filter of the query, on all its pages
	pill  func(*request, state.Object) pill   // the status of one
	where func(*request, state.Object) string // what tells it from others of its name; nil: nothing
}

// shownAs returns how the page shows a kind. Whatever makes pods is a workload.
func shownAs(kind state.Kind) shownKind {
	switch kind {
	case state.Nodes:
		return shownKind{topic: "nodes", list: search.Nodes, statuses: nodeStatuses, href: func(i item) string { return nodeHref(i.Name) }}
	case state.Pods:
		return shownKind{topic: "pods", list: search.Pods, statuses: podStatuses, href: func(i item) string { return podPath(i.Namespace, i.Name) }}
	case state.Sites:
		return shownKind{topic: "sites", list: search.Sites, statuses: siteStates, href: func(i item) string { return siteHref(i.Name) }}
	case state.Events:
		return shownKind{topic: "events", list: search.Events, statuses: eventTypes}
	case state.Incidents:
		return shownKind{topic: incidentsTopic}
	case state.BoardProfiles:
		return shownKind{topic: "boards"}
	case state.FirmwareRollouts:
		return shownKind{topic: rolloutsTopic, href: func(i item) string { return rolloutHref(i.Name) }}
	case state.JoinRequests:
		return shownKind{topic: "requests", href: func(item) string { return waitingPath }}
	}
	if !diagnose.IsWork(kind) {
		return shownKind{}
	}
	return shownKind{topic: "workloads", list: search.Workloads, statuses: workloadStatuses, href: func(i item) string {
		if hasPage(kind) {
			return workloadHref(kind, i.Namespace, i.Name)
		}
		return listedHref(i)
	}}
}

// listings are those of all kinds that have a list.
func listings() map[state.Kind]listing {
	all := map[state.Kind]listing{}
	for _, some := range []map[state.Kind]listing{nodeListings, workloadListings, rolloutListings} {
		maps.Copy(all, some)
	}
	return all
}

// listedWorkloads are the kinds in the list of workloads, in its order.
var listedWorkloads = []struct {
	kind        state.Kind
	title, note string
}{
	{state.Deployments, "Deployments", ""}, {state.DaemonSets, "Daemon sets", ""}, {state.StatefulSets, "Stateful sets", ""},
	{state.ReplicaSets, "Replica sets", ", of no deployment"}, {state.Controllers, "Replication controllers", ""},
	{state.CronJobs, "Cron jobs", ""}, {state.Jobs, "Jobs", ", the newest first"},
}

// hasPage tells whether workloads of a kind have a page of their own.
func hasPage(kind state.Kind) bool {
	return kind == state.Deployments || kind == state.DaemonSets || kind == state.StatefulSets
}

// objects are a list of one kind as one of any.
func objects[T state.Object](list []T) (all []state.Object) {
	for _, o := range list {
		all = append(all, o)
	}
	return all
}

// objectHref is the page of an object; "": it has none.
func objectHref(kind state.Kind, i item) string {
	if href := shownAs(kind).href; href != nil {
		return href(i)
	}
	return ""
}

// shownUnder returns what a list of a kind shows under the filter that is in the query,
// on all its pages.
func shownUnder(a *request, kind state.Kind) []state.Object {
	if found := a.listings[kind].found; found != nil {
		return found(a)
	}
	return nil
}
