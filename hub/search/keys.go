package search

import "slices"

// A Key is a word before a colon: it says what of a thing a term is about.
type Key struct {
	Name    string
	How     How
	Lists   []string // that know it
	Value   string   // what a value is
	Example string
}

// How says how a value is compared with what a thing has. Letters' case never matters.
type How int

// The ways to compare.
const (
	Whole   How = iota // the same; a * stands for any text
	Part               // contained; a * stands for any text
	Address            // an IP address, a block such as 10.0.0.0/24, or how one begins, such as 10.0.
	Label              // a label's key, or key=value where a * in the value stands for any text
)

// The lists that can be searched.
const (
	Nodes, Pods, Workloads, Sites, Events, Incidents = "nodes", "pods", "workloads", "sites", "events", "incidents"
)

// Keys are all that there are, in the order in which people are told of them.
var Keys = []Key{
	{"site", Whole, []string{Nodes, Pods, Sites, Events, Incidents}, "a site's name", "site:oslo"},
	{"status", Whole, []string{Nodes, Pods, Workloads, Sites, Events, Incidents},
		"one of the list's status menu; of pods also the word that they show", "status:attention"},
	{"condition", Whole, []string{Nodes, Pods, Workloads}, "a condition that is true, or one with its status",
		"condition:DiskPressure, condition:Ready=Unknown"},
	{"label", Label, []string{Nodes, Pods, Workloads, Sites}, "a label's key (its last part is enough), or key=value",
		"label:room=kitchen"},
	{"ip", Address, []string{Nodes, Pods}, "an address, a block, or how one begins",
		"ip:10.42.3.7, ip:10.42.0.0/16, ip:10.42."},
	{"board", Part, []string{Nodes, Pods}, "a part of the board's name", "board:raspberry"},
	{"image", Part, []string{Nodes, Pods, Workloads}, "a part of an image's name; of nodes, one that a pod there has",
		"image:nginx:1.27"},
	{"namespace", Whole, []string{Pods, Workloads, Events, Incidents}, "a namespace", "namespace:kube-system"},
	{"node", Whole, []string{Nodes, Pods, Events}, "a node's name", "node:pi-1*"},
	{"owner", Whole, []string{Pods, Workloads}, "what made it: its name, or kind/name", "owner:deployment/kiosk"},
}

// KeyNamed returns a key; nil: there is none of the name.
func KeyNamed(name string) *Key {
	if i := slices.IndexFunc(Keys, func(k Key) bool { return k.Name == name }); i >= 0 {
		return &Keys[i]
	}
	return nil
}

// KeysOf lists the names of the keys that a list knows.
func KeysOf(list string) (names []string) {
	for _, k := range Keys {
		if slices.Contains(k.Lists, list) {
			names = append(names, k.Name)
		}
	}
	return names
}
