package frame

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// ObjectURL is the API's path of an object.
func ObjectURL(kind state.Kind, namespace, name string) string {
	gv := kind.GroupVersionKind().GroupVersion()
	root := "/apis/" + gv.String()
	if gv.Group == "" {
		root = "/api/" + gv.Version
	}
	if namespace != "" {
		root += "/namespaces/" + namespace
	}
	return root + "/" + string(kind) + "/" + name
}

// listedHref is where a workload without a page is shown: alone in the list of workloads.
func listedHref(i Item) string {
	return "/workloads?" + url.Values{"namespace": {i.Namespace}, "q": {i.Name}}.Encode()
}

// NodeHref is the page of a node.
func NodeHref(name string) string { return "/nodes/" + url.PathEscape(name) }

// PodHref is the page of a pod.
func PodHref(p *corev1.Pod) string { return PodPath(p.Namespace, p.Name) }

// PodPath is the page of the pod with the name.
func PodPath(namespace, name string) string {
	return "/pods/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// RolloutsPath is the list of boot configuration rollouts.
const RolloutsPath = "/rollouts"

// AgentRolloutsPath is the list of agent rollouts.
const AgentRolloutsPath = "/agents"

// AgentRolloutHref is the page of an agent rollout.
func AgentRolloutHref(name string) string { return AgentRolloutsPath + "/" + url.PathEscape(name) }

// RolloutHref is the page of a rollout.
func RolloutHref(name string) string { return RolloutsPath + "/" + url.PathEscape(name) }

// IncidentHref is the page of an incident.
func IncidentHref(name string) string { return "/incidents/" + url.PathEscape(name) }

// SiteHref is the page of a site.
func SiteHref(name string) string { return "/sites/" + url.PathEscape(name) }

// WaitingPath is the list of devices that wait for approval.
const WaitingPath = "/devices/waiting"

// WorkloadHref is the page of a workload.
func WorkloadHref(kind state.Kind, namespace, name string) string {
	return "/workloads/" + string(kind) + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// OwnerHref is the list of the pods of an owner.
func OwnerHref(namespace, kind, name string) string {
	return "/pods?" + url.Values{"namespace": {namespace}, "owner": {kind + "/" + name}}.Encode()
}
