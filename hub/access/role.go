package access

import (
	"fmt"
	"slices"

	"flotilla.dev/hub/state"
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
	return "", fmt.Errorf("%w: unknown role %q; use admin, operator or viewer", ErrInvalid, text)
}

// A Rule allows roles some verbs on some resources, all in Kubernetes' words: a
// subresource is "pods/log". "*" is every one. What no rule allows is forbidden.
type Rule struct {
	Roles     []Role
	Verbs     []string
	Resources []string
}

// rules is the whole table: what the rows of the kinds say, and the resources of the hub itself,
// which have one word: users, jointokens, apitokens, audit, settings, metrics, backups,
// joinrenewals, podsecurity (a namespace's level below the default); account is everybody's own:
// their password and their API tokens.
var rules = append(ofKinds(),
	Rule{[]Role{Admin}, []string{"*"}, []string{"*"}},
	Rule{[]Role{Operator, Viewer}, []string{"get", "list", "watch"}, []string{"metrics"}},
	Rule{[]Role{Operator, Viewer}, []string{"get", "update"}, []string{"account"}},
	Rule{[]Role{Device}, []string{"create"}, []string{"joinrenewals"}},
)

// ofKinds makes rules of what stands in the rows of the kinds.
func ofKinds() (all []Rule) {
	add := func(resource string, viewer, operator []string) {
		if len(viewer) > 0 {
			all = append(all, Rule{[]Role{Operator, Viewer}, viewer, []string{resource}})
		}
		if len(operator) > 0 {
			all = append(all, Rule{[]Role{Operator}, operator, []string{resource}})
		}
	}
	for _, r := range state.Served() {
		if r.In != r.Group {
			continue // another shape of the same
		}
		add(string(r.Kind), r.Viewer, r.Operator)
		for _, s := range r.Subs {
			add(string(r.Kind)+"/"+s.Name, s.Viewer, s.Operator)
		}
	}
	return all
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
