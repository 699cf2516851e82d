package access

import (
	"fmt"
	"slices"
)

// A Role is what somebody may do.
type Role string

// The roles.
const (
	Admin    Role = "admin"    // everything
	Operator Role = "operator" // workloads and nodes; no users, tokens, firmware
	Viewer   Role = "viewer"   // sees everything but secrets, users and tokens
	Device   Role = "device"   // renews its own certificate
)

// ParseRole reads the role of a person.
func ParseRole(text string) (Role, error) {
	switch r := Role(text); r {
	case Admin, Operator, Viewer:
		return r, nil
	}
	return "", fmt.Errorf("%w: %q is no role; use admin, operator or viewer", ErrInvalid, text)
}

// A Rule allows roles some verbs on some resources, all in Kubernetes' words: a
// subresource is "pods/log". "*" is every one. What no rule allows is forbidden.
type Rule struct {
	Roles     []Role
	Verbs     []string
	Resources []string
}

var (
	read = []string{"get", "list", "watch"}
	edit = []string{"create", "update", "patch", "delete", "deletecollection"}
)

// rules is the whole table. Resources of the hub itself have one word: users,
// jointokens, apitokens, audit, settings, metrics, backups, joinrenewals; account
// is everybody's own: their password and their API tokens.
var rules = []Rule{
	{[]Role{Admin}, []string{"*"}, []string{"*"}},

	{[]Role{Operator, Viewer}, read, []string{
		"nodes", "nodes/status", "pods", "pods/status", "deployments", "deployments/status", "deployments/scale",
		"daemonsets", "daemonsets/status", "replicasets", "replicasets/status", "replicasets/scale", "controllerrevisions",
		"configmaps", "namespaces", "namespaces/status", "events", "leases", "poddisruptionbudgets", "poddisruptionbudgets/status",
		"services", "customresourcedefinitions",
		"sites", "sites/status", "boardprofiles", "boardprofiles/status", "firmwarerollouts", "firmwarerollouts/status", "metrics",
	}},
	{[]Role{Operator, Viewer}, []string{"get"}, []string{"pods/log", "nodes/proxy"}}, // behind the proxy is the log of the node's agent
	{[]Role{Operator, Viewer}, []string{"create"}, []string{"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}},

	{[]Role{Operator, Viewer}, []string{"get", "update"}, []string{"account"}},

	{[]Role{Operator}, read, []string{"secrets"}},
	{[]Role{Operator}, edit, []string{
		"nodes", "pods", "deployments", "deployments/scale", "daemonsets", "replicasets", "replicasets/scale",
		"configmaps", "secrets", "namespaces", "poddisruptionbudgets", "events", "leases",
	}},
	{[]Role{Operator}, []string{"update", "patch"}, []string{"nodes/status", "pods/status"}},
	{[]Role{Operator}, []string{"create", "get"}, []string{"pods/exec", "pods/attach", "pods/portforward", "pods/eviction", "pods/binding"}},
	{[]Role{Operator}, []string{"update", "patch"}, []string{"sites"}}, // maintenance, policy

	{[]Role{Device}, []string{"create"}, []string{"joinrenewals"}},
}

// Allow tells whether a role may do verb to resource.
func Allow(role Role, verb, resource string) bool {
	for _, r := range rules {
		if slices.Contains(r.Roles, role) && has(r.Verbs, verb) && has(r.Resources, resource) {
			return true
		}
	}
	return false
}

func has(list []string, word string) bool {
	return word != "" && (slices.Contains(list, word) || list[0] == "*")
}

// Rules lists what a role may do.
func Rules(role Role) []Rule {
	var mine []Rule
	for _, r := range rules {
		if slices.Contains(r.Roles, role) {
			mine = append(mine, r)
		}
	}
	return mine
}
