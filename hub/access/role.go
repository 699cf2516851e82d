package access

import (
	"fmt"
	"slices"

	"flotilla.dev/hub/state"
)

// A Role is a set of rights.
type Role string

// The roles.
const (
	Admin    Role = "admin"    // all rights
	Operator Role = "operator" // workloads and nodes; not users, tokens or firmware
	Viewer   Role = "viewer"   // reads everything except secrets, users and tokens
	Device   Role = "device"   // renews its own certificate
)

// ParseRole parses the role of a user.
func ParseRole(text string) (Role, error) {
	switch r := Role(text); r {
	case Admin, Operator, Viewer:
		return r, nil
	}
	return "", fmt.Errorf("%w: unknown role %q; use admin, operator or viewer", ErrInvalid, text)
}

// A Rule allows roles some verbs on some resources, in Kubernetes' words: "pods/log" is a
// subresource, and "*" stands for all. All other requests are forbidden.
type Rule struct {
	Roles     []Role
	Verbs     []string
	Resources []string
}

// rules is the whole table: the rules of the kinds, then those of the hub's own resources: users,
// jointokens, apitokens, audit, settings, metrics, backups, joinrenewals, images, podsecurity (a
// namespace's level below the default) and account (a user's own password and API tokens).
var rules = append(ofKinds(),
	Rule{[]Role{Admin}, []string{"*"}, []string{"*"}},
	Rule{[]Role{Operator, Viewer}, []string{"get", "list", "watch"}, []string{"metrics"}},
	Rule{[]Role{Operator, Viewer}, []string{"get", "update"}, []string{"account"}},
	Rule{[]Role{Device}, []string{"create"}, []string{"joinrenewals"}},
	Rule{[]Role{Operator, Viewer, Device}, []string{"get"}, []string{"images"}},
	Rule{[]Role{Operator}, []string{"update"}, []string{"images"}},
)

// ofKinds converts the rules in the rows of the kinds.
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
			continue // the same kind in another version
		}
		add(string(r.Kind), r.Viewer, r.Operator)
		for _, s := range r.Subs {
			add(string(r.Kind)+"/"+s.Name, s.Viewer, s.Operator)
		}
	}
	return all
}

// Allow reports whether a role may do verb on resource.
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

// Rules lists the rights of a role.
func Rules(role Role) []Rule {
	var mine []Rule
	for _, r := range rules {
		if slices.Contains(r.Roles, role) {
			mine = append(mine, r)
		}
	}
	return mine
}
