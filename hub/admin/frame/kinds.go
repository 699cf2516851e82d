package frame

import (
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

// IncidentsTopic is watched by pages that show incidents.
const IncidentsTopic = string(state.Incidents)

// A shownKind is how the page shows objects of a kind. Other kinds are shown as YAML only.
type shownKind struct {
	topic    string            // watched by the pages that show the kind
	list     string            // the list with the kind's objects; "": none
	statuses [][2]string       // of that list
	href     func(Item) string // the page of an object
}

// A Listing is the list of a kind.
type Listing struct {
	Found func(*Request) []state.Object       // the objects under the query's filter, on all pages
	Pill  func(*Request, state.Object) Pill   // an object's status
	Where func(*Request, state.Object) string // a note that tells objects with one name apart; nil: none
	Sorts []string                            // the columns by which the list can be sorted
}

// shownAs returns how the page shows a kind. Every kind that makes pods is a workload.
func shownAs(kind state.Kind) shownKind {
	switch kind {
	case state.Nodes:
		return shownKind{topic: "nodes", list: search.Nodes, statuses: NodeStatuses,
			href: func(i Item) string { return NodeHref(i.Name) }}
	case state.Pods:
		return shownKind{topic: "pods", list: search.Pods, statuses: PodStatuses,
			href: func(i Item) string { return PodPath(i.Namespace, i.Name) }}
	case state.Sites:
		return shownKind{topic: "sites", list: search.Sites, statuses: SiteStates,
			href: func(i Item) string { return SiteHref(i.Name) }}
	case state.Events:
		return shownKind{topic: "events", list: search.Events, statuses: EventTypes}
	case state.Incidents:
		return shownKind{topic: IncidentsTopic, list: search.Incidents, statuses: IncidentStatuses,
			href: func(i Item) string { return IncidentHref(i.Name) }}
	case state.BoardProfiles:
		return shownKind{topic: "boards"}
	case state.FirmwareRollouts:
		return shownKind{topic: RolloutsTopic, href: func(i Item) string { return RolloutHref(i.Name) }}
	case state.AgentRollouts:
		return shownKind{topic: RolloutsTopic, href: func(i Item) string { return AgentRolloutHref(i.Name) }}
	case state.JoinRequests:
		return shownKind{topic: "requests", href: func(Item) string { return WaitingPath }}
	}
	if !diagnose.IsWork(kind) {
		return shownKind{}
	}
	return shownKind{topic: "workloads", list: search.Workloads, statuses: WorkloadStatuses, href: func(i Item) string {
		if HasPage(kind) {
			return WorkloadHref(kind, i.Namespace, i.Name)
		}
		return listedHref(i)
	}}
}

// ListedWorkloads are the kinds in the list of workloads, in its order.
var ListedWorkloads = []struct {
	Kind        state.Kind
	Title, Note string
}{
	{state.Deployments, "Deployments", ""}, {state.DaemonSets, "Daemon sets", ""},
	{state.StatefulSets, "Stateful sets", ""},
	{state.ReplicaSets, "Replica sets", ", of no deployment"}, {state.Controllers, "Replication controllers", ""},
	{state.CronJobs, "Cron jobs", ""}, {state.Jobs, "Jobs", ", the newest first"},
}

// HasPage tells whether a workload of the kind has a page.
func HasPage(kind state.Kind) bool {
	return kind == state.Deployments || kind == state.DaemonSets || kind == state.StatefulSets
}

// Objects converts a list of one kind to a list of objects.
func Objects[T state.Object](list []T) (all []state.Object) {
	for _, o := range list {
		all = append(all, o)
	}
	return all
}

// ObjectHref is the page of an object; "": it has none.
func ObjectHref(kind state.Kind, i Item) string {
	if href := shownAs(kind).href; href != nil {
		return href(i)
	}
	return ""
}

// shownUnder returns the objects of a kind under the query's filter, on all pages.
func shownUnder(a *Request, kind state.Kind) []state.Object {
	if found := a.listings[kind].Found; found != nil {
		return found(a)
	}
	return nil
}

// EventTypes are the choices of the events' filter.
var EventTypes = [][2]string{{"", "All"}, {corev1.EventTypeWarning, "Warnings"}, {corev1.EventTypeNormal, "Normal"}}

// IncidentStatuses are the choices of the incidents' filter.
var IncidentStatuses = [][2]string{{"", "Open and over"}, {"open", "Open"}, {"new", "Open, not acknowledged"},
	{"acknowledged", "Open, acknowledged"}, {"over", "Over in the last day"}}

// NodeStatuses are the choices of the nodes' filter.
var NodeStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"ready", "Ready"}, {"notready", "Not ready"},
	{"unknown", "Unknown"},
	{"never", "Never seen"}, {"cordoned", "Cordoned"}, {"hot", "Hot"},
}

// PodStatuses are the choices of the pods' filter.
var PodStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"pending", "Pending"}, {"running", "Running"},
	{"failed", "Failed"},
	{"succeeded", "Succeeded"}, {"terminating", "Terminating"},
}

// RolloutsTopic is watched by pages that show rollouts.
const RolloutsTopic = "rollouts"

// SiteStates are the choices of the sites' filter.
var SiteStates = [][2]string{{"", "Any state"}, {"attention", "Needs attention"}, {"held", "Evictions held"},
	{"maintenance", "In maintenance"}, {"normal", "Normal"}}

// WorkloadStatuses are the choices of the workloads' filter.
var WorkloadStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"complete", "Complete"}, {"paused", "Paused or suspended"},
}

// IsListed tells whether a workload stands in the list: a Deployment's ReplicaSets do not.
func IsListed(o state.Object) bool {
	return state.KindOf(o) != state.ReplicaSets || diagnose.IsKnown(o)
}

// pagesBehind are the entries under More, each with the permission that it needs.
var pagesBehind = []struct {
	navLink
	verb, resource string
}{
	{navLink{"Incidents", "/incidents"}, "list", IncidentsTopic}, {navLink{"Actions", "/actions"}, "list", "nodes"},
	{navLink{"Boards", "/boards"}, "list", "boardprofiles"},
	{navLink{"Boot configurations", RolloutsPath}, "list", "firmwarerollouts"},
	{navLink{"Agents", AgentRolloutsPath}, "list", "agentrollouts"},
	{navLink{"Audit", "/audit"}, "list", "audit"}, {navLink{"Settings", "/settings"}, "get", "settings"},
}
