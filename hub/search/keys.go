package search

import "slices"

// A Key is the word before a colon. It names the property that a term compares.
type Key struct {
	Name    string
	How     How
	Lists   []string // lists that support the key
	Value   string   // description of its values
	Example string
}

// How is the way to compare a value with a property. All comparisons ignore case.
type How int

// The ways to compare.
const (
	Whole   How = iota // equal; * stands for any text
	Part               // contains; * stands for any text
	Address            // an IP address, a block such as 10.0.0.0/24, or a prefix such as 10.0.
	Label              // a label's key, or key=value where a * in the value stands for any text
	Clock              // two times of the day, such as 01:00-02:00
)

// The lists of the page with a search.
const (
	Nodes, Pods, Workloads, Sites, Events, Incidents = "nodes", "pods", "workloads", "sites", "events", "incidents"
)

// Keys has all keys in the order in which the page offers them.
var Keys = []Key{
	{"site", Whole, []string{Nodes, Pods, Sites, Events, Incidents}, "a site's name", "site:oslo"},
	{"status", Whole, []string{Nodes, Pods, Workloads, Sites, Events, Incidents},
		"a status of the menu; for pods also the status that is shown", "status:attention"},
	{"condition", Whole, []string{Nodes, Pods, Workloads}, "a condition that is True, or a condition=status",
		"condition:DiskPressure, condition:Ready=Unknown"},
	{"label", Label, []string{Nodes, Pods, Workloads, Sites}, "a label's key (its last part is enough), or key=value",
		"label:room=kitchen"},
	{"ip", Address, []string{Nodes, Pods}, "an address, a block, or the beginning of an address",
		"ip:10.42.3.7, ip:10.42.0.0/16, ip:10.42."},
	{"board", Part, []string{Nodes, Pods}, "part of the board's name", "board:raspberry"},
	{"agent", Part, []string{Nodes}, "part of the agent's version", "agent:0.1.0"},
	{"image", Part, []string{Nodes, Pods, Workloads}, "part of an image's name; for nodes, of a pod's image",
		"image:nginx:1.27"},
	{"namespace", Whole, []string{Pods, Workloads, Events, Incidents}, "a namespace", "namespace:kube-system"},
	{"node", Whole, []string{Nodes, Pods, Events}, "a node's name", "node:pi-1*"},
	{"owner", Whole, []string{Pods, Workloads}, "name of the owner, or kind/name", "owner:deployment/kiosk"},
	{"time", Clock, []string{Events, Incidents}, "two times of the last 24 hours, in UTC", "time:01:00-02:30, time:23-4"},
}

// KeyNamed returns a key by its name, or nil.
func KeyNamed(name string) *Key {
	if i := slices.IndexFunc(Keys, func(k Key) bool { return k.Name == name }); i >= 0 {
		return &Keys[i]
	}
	return nil
}

// KeysOf returns the names of the keys that a list supports.
func KeysOf(list string) (names []string) {
	for _, k := range Keys {
		if slices.Contains(k.Lists, list) {
			names = append(names, k.Name)
		}
	}
	return names
}
