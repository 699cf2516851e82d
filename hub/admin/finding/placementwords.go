package finding

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/schedule"
)

// needed is an obstacle with the number of nodes that have it.
type needed struct {
	schedule.Obstacle
	nodes int
	all   bool
	some  string // "3 of 40 nodes"
	on    string // " on 3 nodes", " on every node"
}

func neededOf(o schedule.Obstacle, nodes int) needed {
	n := needed{o, nodes, o.Nodes == nodes,
		fmt.Sprintf("%s of %s nodes", format.Thousands(o.Nodes), format.Thousands(nodes)),
		" on " + format.Plural(o.Nodes, "node")}
	if nodes == 1 {
		n.some = "the only node"
	}
	if n.all {
		n.on = " on every node"
	}
	return n
}

// verb is a verb for the number of nodes.
func (n needed) verb(one, many string) string {
	if n.Nodes == 1 {
		return one
	}
	return many
}

func (n needed) are() string { return n.some + " " + n.verb("is", "are") }

func (n needed) have() string { return n.some + " " + n.verb("has", "have") }

// reasonWords are the page's words for each reason why nodes do not take a pod: in a sentence about
// all nodes, for one node, and in a few words for a list.
var reasonWords = map[schedule.Reason]struct {
	need    func(needed) string
	against func(*corev1.Node, schedule.Objection) string
	short   func(needed) string
}{
	schedule.NodeUnschedulable: {
		func(n needed) string { return format.Capital(n.are()) + " cordoned." }, same("cordoned"),
		func(n needed) string { return everyOr(n, "every node is cordoned", "cordoned") },
	},
	schedule.NodeNotReady: {
		func(n needed) string {
			return format.Capital(n.are()) + " not ready, or " + n.verb("does", "do") + " not answer."
		},
		func(_ *corev1.Node, o schedule.Objection) string {
			if o.Taint.Key == corev1.TaintNodeUnreachable {
				return "does not answer"
			}
			return "not ready"
		},
		func(n needed) string { return everyOr(n, "no node is ready", "not ready") },
	},
	schedule.NodePressure: {
		func(n needed) string {
			return fmt.Sprintf("%s the taint %s, which is removed when the trouble there is over.",
				format.Capital(n.have()), n.Taint.ToString())
		}, taintAgainst, taintShort,
	},
	schedule.UntoleratedTaint: {
		func(n needed) string {
			return fmt.Sprintf("Does not tolerate the taint %s, which %s.", n.Taint.ToString(), n.have())
		}, taintAgainst, taintShort,
	},
	schedule.NodeAffinity: {affinityNeed, affinityAgainst, affinityShort},
	schedule.NodeName: {
		func(n needed) string { return "Is for " + format.List(n.Where, 5) + " only, by name." }, same("another name"),
		func(n needed) string { return "only for " + format.List(n.Where, 2) },
	},
	schedule.NodePorts: {
		func(n needed) string {
			return fmt.Sprintf("Needs port %s of the device: it is taken on %s.", portText(n.Port), n.some)
		},
		func(_ *corev1.Node, o schedule.Objection) string { return "port " + portText(o.Port) + " is taken" },
		func(n needed) string { return "port " + portText(n.Port) + " taken" + n.on },
	},
	schedule.TooManyPods: {
		func(n needed) string { return format.Capital(n.have()) + " as many pods as it may have." },
		same("as many pods as it may have"),
		func(n needed) string { return "too many pods" + n.on },
	},
	schedule.InsufficientResource: {
		resourceNeed,
		func(_ *corev1.Node, o schedule.Objection) string {
			if o.None {
				return "has no " + string(o.Resource)
			}
			return fmt.Sprintf("%s: %s free, %s needed", o.Resource, freeText(o.Resource, o.Free), o.Want.String())
		},
		func(n needed) string {
			if n.all {
				return "no node has " + ofResource(n.Want.String(), n.Resource) + " free"
			}
			return "too little " + string(n.Resource) + n.on
		},
	},
	schedule.TopologySpread: {
		func(n needed) string {
			return fmt.Sprintf("Must be spread evenly over %s: %s where too many such pods are already.", n.Key, n.are())
		}, byKey("too many such pods"), spreadShort,
	},
	schedule.TopologyLabel: {
		func(n needed) string {
			return fmt.Sprintf("Must be spread over %s: %s no such label.", n.Key, n.have())
		},
		func(_ *corev1.Node, o schedule.Objection) string { return "no label " + o.Key }, spreadShort,
	},
	schedule.PodAffinity: {
		func(n needed) string {
			return fmt.Sprintf("Must be near other pods, by %s: they are not where %s.", n.Key, n.are())
		}, byKey("no pod there that it must be near"), always("must be near other pods"),
	},
	schedule.PodAntiAffinity: {
		func(n needed) string {
			return fmt.Sprintf("Must be away from other pods, by %s: they are where %s.", n.Key, n.are())
		}, byKey("pods there that it must be away from"), always("must be away from other pods"),
	},
	schedule.Repelled: {
		func(n needed) string {
			return fmt.Sprintf("Other pods must be away from it, by %s: they are where %s.", n.Key, n.are())
		}, byKey("pods there that must be away from it"), always("must be away from other pods"),
	},
	schedule.VolumeElsewhere: {
		func(n needed) string {
			return "Its volume is on " + format.List(n.Where, 5) + ", and can be used nowhere else."
		},
		func(_ *corev1.Node, o schedule.Objection) string {
			return "its volume is on " + format.List(o.Where, 2)
		},
		func(n needed) string { return "its volume is on " + format.List(n.Where, 2) },
	},
	schedule.VolumeInUse: {
		always("Its volume is used by another pod, and may be used by one alone."),
		same("its volume is in use there"), always("its volume is in use"),
	},
}

func same(text string) func(*corev1.Node, schedule.Objection) string {
	return func(*corev1.Node, schedule.Objection) string { return text }
}

func always(text string) func(needed) string { return func(needed) string { return text } }

func byKey(text string) func(*corev1.Node, schedule.Objection) string {
	return func(_ *corev1.Node, o schedule.Objection) string { return text + ", by " + o.Key }
}

func taintAgainst(_ *corev1.Node, o schedule.Objection) string { return "taint " + o.Taint.ToString() }

func taintShort(n needed) string { return "taint " + n.Taint.Key + n.on }

func spreadShort(n needed) string { return "must be spread over " + n.Key }

func everyOr(n needed, every, some string) string {
	if n.all {
		return every
	}
	return format.IsAre(n.Nodes, "node") + " " + some
}

func resourceNeed(n needed) string {
	needs := "Needs " + ofResource(n.Want.String(), n.Resource)
	switch {
	case n.Node == "" && n.all:
		return needs + ": no node has any."
	case n.Node == "":
		return needs + ": " + n.have() + " none."
	case n.all && n.nodes > 1:
		return fmt.Sprintf("%s: %s has the most free, %s.", needs, n.Node, freeText(n.Resource, n.Free))
	case n.all:
		return fmt.Sprintf("%s: %s has %s free.", needs, n.Node, freeText(n.Resource, n.Free))
	}
	return fmt.Sprintf("%s: %s less free, the most of them %s with %s.", needs, n.have(), n.Node,
		freeText(n.Resource, n.Free))
}

func affinityNeed(n needed) string {
	if n.Label.Key == "" {
		return "Has a node affinity that no node can match: its terms are empty."
	}
	text := "Needs " + LabelText(n.Label)
	switch negative := n.Label.Operator == corev1.NodeSelectorOpNotIn ||
		n.Label.Operator == corev1.NodeSelectorOpDoesNotExist; {
	case n.all && negative:
		return text + ": every node has it."
	case n.all && len(n.Others) > 0 && n.Label.Operator == corev1.NodeSelectorOpIn:
		return text + ": no node has it; there is " + n.Label.Key + "=" + strings.Join(n.Others, ", ") + "."
	case n.all:
		return text + ": no node has it."
	case negative:
		return fmt.Sprintf("%s: %s it.", text, n.have())
	}
	return fmt.Sprintf("%s: %s %s not have it.", text, n.some, n.verb("does", "do"))
}

func affinityAgainst(n *corev1.Node, o schedule.Objection) string {
	v, has := n.Labels[o.Label.Key]
	switch {
	case o.Label.Key == "":
		return "no node matches its affinity"
	case has && v == "":
		return "has the label " + o.Label.Key
	case has:
		return o.Label.Key + " is " + v
	}
	return "no label " + o.Label.Key
}

func affinityShort(n needed) string {
	switch {
	case n.Label.Key == "":
		return "an affinity that no node matches"
	case n.all && (n.Label.Operator == corev1.NodeSelectorOpIn || n.Label.Operator == corev1.NodeSelectorOpExists):
		return "no node has " + LabelText(n.Label)
	}
	return "needs " + LabelText(n.Label)
}
