package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
)

// A placement is why a pod waits for a node, which nodes come nearest, and what would help.
type placement struct {
	Why   string // in a sentence
	Needs []string
	Rows  []candidateRow
	More  string // "and 4,980 more nodes"; "": all are shown
	Fixes []fix
}

// A candidateRow is a node that comes near.
type candidateRow struct {
	Name, Href, Site string
	Pill             pill
	CPU, Memory      string // free
	Against          []string
}

type podLink struct {
	Name, Href string
	Scale      *menuItem
}

// waitsForNode tells whether it is the scheduler that a pod waits for.
func waitsForNode(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !state.Terminated(p)
}

// placementOf explains why a pod has no node.
func placementOf(a *request, p *corev1.Pod) *placement {
	f := diagnose.Pod(a.Snapshot, p)
	if foreign := p.Spec.SchedulerName != "" && p.Spec.SchedulerName != schedule.Name; foreign || f.Cause == diagnose.PodGated {
		return &placement{Why: podWhy(a.Snapshot, p, f)}
	}
	e := schedule.Why(a.Snapshot, p, a.now)
	d := &placement{Why: unplacedWhy(e), Needs: needsOf(e)}
	if at := p.Status.NominatedNodeName; at != "" {
		d.Needs = append(d.Needs, "Room is being made for it on "+at+": pods of a lower priority leave.")
	}
	for _, c := range e.Candidates {
		r := candidateRow{Name: c.Node.Name, Href: nodeHref(c.Node.Name), Site: state.SiteOf(c.Node), Pill: nodePill(c.Node), CPU: freeText(corev1.ResourceCPU, c.FreeCPU), Memory: freeText(corev1.ResourceMemory, c.FreeMem)}
		for _, o := range c.Against {
			r.Against = append(r.Against, againstText(c.Node, o))
		}
		d.Rows = append(d.Rows, r)
	}
	if more := e.Nodes - len(d.Rows); more > 0 && len(d.Rows) > 0 {
		d.More = "and " + thousands(more) + " more"
	}
	d.Fixes = fixesOf(a, p, e.Candidates)
	return d
}

func unplacedWhy(e schedule.Explanation) string {
	switch {
	case e.Wrong != "":
		return "No node can take it: " + e.Wrong + "."
	case e.Nodes == 0:
		return "There is no node yet that could take it."
	case len(e.Obstacles) == 0:
		return "It is about to be placed: nothing speaks against it any more."
	case e.Nodes == 1:
		return "The only node cannot take it."
	}
	return fmt.Sprintf("None of the %s nodes can take it.", thousands(e.Nodes))
}

func needsOf(e schedule.Explanation) (needs []string) {
	for _, o := range e.Obstacles {
		needs = append(needs, needText(o, e.Nodes))
	}
	return needs
}

// needText says what is needed and what there is.
func needText(o schedule.Obstacle, nodes int) string {
	all := o.Nodes == nodes
	some := fmt.Sprintf("%s of %s nodes", thousands(o.Nodes), thousands(nodes))
	if nodes == 1 {
		some = "the only node"
	}
	are := "are"
	have := "have"
	if o.Nodes == 1 {
		are, have = "is", "has"
	}
	switch o.Kind {
	case schedule.NodeUnschedulable:
		return capital(some) + " " + are + " cordoned."
	case schedule.NodeNotReady:
		return capital(some) + " " + are + " not ready, or " + map[bool]string{true: "does", false: "do"}[o.Nodes == 1] + " not answer."
	case schedule.NodePressure:
		return fmt.Sprintf("%s %s the taint %s, which goes by itself when what is wrong there is over.", capital(some), have, o.Taint.ToString())
	case schedule.UntoleratedTaint:
		return fmt.Sprintf("Does not tolerate the taint %s, which %s %s.", o.Taint.ToString(), some, have)
	case schedule.NodeAffinity:
		return affinityNeed(o, all, some, have)
	case schedule.NodeName:
		return "Is for " + listed(o.Where, 5) + " only, by name."
	case schedule.NodePorts:
		return fmt.Sprintf("Needs port %s of the device: it is taken on %s.", portText(o.Port), some)
	case schedule.TooManyPods:
		return fmt.Sprintf("%s %s as many pods as it may have.", capital(some), have)
	case schedule.InsufficientResource:
		needs := "Needs " + ofResource(o.Want.String(), o.Resource)
		switch {
		case o.Node == "" && all:
			return needs + ": no node has any."
		case o.Node == "":
			return needs + ": " + some + " " + have + " none."
		case all && nodes > 1:
			return fmt.Sprintf("%s: %s has the most free, %s.", needs, o.Node, freeText(o.Resource, o.Free))
		case all:
			return fmt.Sprintf("%s: %s has %s free.", needs, o.Node, freeText(o.Resource, o.Free))
		}
		return fmt.Sprintf("%s: %s %s less free, the most of them %s with %s.", needs, some, have, o.Node, freeText(o.Resource, o.Free))
	case schedule.TopologySpread:
		return fmt.Sprintf("Must be spread evenly over %s: %s %s where too many of its like are.", o.Key, some, are)
	case schedule.TopologyLabel:
		return fmt.Sprintf("Must be spread over %s: %s %s no such label.", o.Key, some, have)
	case schedule.PodAffinity:
		return fmt.Sprintf("Must be near other pods, by %s: they are not where %s %s.", o.Key, some, are)
	case schedule.PodAntiAffinity:
		return fmt.Sprintf("Must be away from other pods, by %s: they are where %s %s.", o.Key, some, are)
	case schedule.Repelled:
		return fmt.Sprintf("Other pods must be away from it, by %s: they are where %s %s.", o.Key, some, are)
	case schedule.VolumeElsewhere:
		return "Its volume is on " + listed(o.Where, 5) + ", and can be used nowhere else."
	case schedule.VolumeInUse:
		return "Its volume is used by another pod, and may be used by one alone."
	}
	return string(o.Kind) + ": " + some + "."
}

func affinityNeed(o schedule.Obstacle, all bool, some, have string) string {
	if o.Label.Key == "" {
		return "Has a node affinity that no node can match: it asks for nothing that could hold."
	}
	text := "Needs " + labelText(o.Label)
	switch negative := o.Label.Operator == corev1.NodeSelectorOpNotIn || o.Label.Operator == corev1.NodeSelectorOpDoesNotExist; {
	case all && negative:
		return text + ": every node has it."
	case all && len(o.Others) > 0 && o.Label.Operator == corev1.NodeSelectorOpIn:
		return text + ": no node has it; there is " + o.Label.Key + "=" + strings.Join(o.Others, ", ") + "."
	case all:
		return text + ": no node has it."
	case negative:
		return fmt.Sprintf("%s: %s %s it.", text, some, have)
	}
	return fmt.Sprintf("%s: %s %s not have it.", text, some, map[bool]string{true: "does", false: "do"}[o.Nodes == 1])
}

// labelText writes what is asked of a label as kubectl writes selectors.
func labelText(r corev1.NodeSelectorRequirement) string {
	values := "(" + listed(r.Values, 5) + ")"
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		if len(r.Values) == 1 {
			return r.Key + "=" + r.Values[0]
		}
		return r.Key + " in " + values
	case corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 1 {
			return r.Key + "!=" + r.Values[0]
		}
		return r.Key + " notin " + values
	case corev1.NodeSelectorOpExists:
		return "the label " + r.Key
	case corev1.NodeSelectorOpDoesNotExist:
		return "no label " + r.Key
	case corev1.NodeSelectorOpGt:
		return r.Key + " > " + strings.Join(r.Values, ", ")
	case corev1.NodeSelectorOpLt:
		return r.Key + " < " + strings.Join(r.Values, ", ")
	}
	return r.Key + " " + string(r.Operator) + " " + values
}

// againstText says in a few words what a node has against a pod.
func againstText(n *corev1.Node, o schedule.Objection) string {
	switch o.Kind {
	case schedule.NodeUnschedulable:
		return "cordoned"
	case schedule.NodeNotReady:
		if o.Taint.Key == corev1.TaintNodeUnreachable {
			return "does not answer"
		}
		return "not ready"
	case schedule.NodePressure, schedule.UntoleratedTaint:
		return "taint " + o.Taint.ToString()
	case schedule.NodeAffinity:
		v, has := n.Labels[o.Label.Key]
		switch {
		case o.Label.Key == "":
			return "its affinity holds nowhere"
		case has && v == "":
			return "has the label " + o.Label.Key
		case has:
			return o.Label.Key + " is " + v
		}
		return "no label " + o.Label.Key
	case schedule.NodeName:
		return "another name"
	case schedule.NodePorts:
		return "port " + portText(o.Port) + " is taken"
	case schedule.TooManyPods:
		return "as many pods as it may have"
	case schedule.InsufficientResource:
		if o.None {
			return "has no " + string(o.Resource)
		}
		return fmt.Sprintf("%s: %s free, %s needed", o.Resource, freeText(o.Resource, o.Free), o.Want.String())
	case schedule.TopologySpread:
		return "too many of its like, by " + o.Key
	case schedule.TopologyLabel:
		return "no label " + o.Key
	case schedule.PodAffinity:
		return "nobody there whom it must be near, by " + o.Key
	case schedule.PodAntiAffinity:
		return "pods there that it must be away from, by " + o.Key
	case schedule.Repelled:
		return "pods there that must be away from it, by " + o.Key
	case schedule.VolumeElsewhere:
		return "its volume is on " + listed(o.Where, 2)
	case schedule.VolumeInUse:
		return "its volume is in use there"
	}
	return string(o.Kind)
}

// ---- words

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// thousands writes a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// listed joins the first of names, and says how many more there are.
func listed(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func portText(p state.HostPort) string {
	if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
		return fmt.Sprint(p.Port)
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
}

func ofResource(amount string, name corev1.ResourceName) string {
	switch name {
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage:
		return amount + " of " + string(name)
	}
	return amount + " " + string(name)
}

// freeText writes what is free as a quantity that can be asked for: never more than there is.
func freeText(name corev1.ResourceName, q resource.Quantity) string {
	if q.Sign() <= 0 {
		return "0"
	}
	switch name {
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage:
	case corev1.ResourceCPU:
		return amount(name, q)
	default:
		return q.String()
	}
	n := q.Value()
	if n >= 1<<59 {
		return q.String()
	}
	for shift, unit := range []string{"", "Ki", "Mi", "Gi", "Ti"} {
		if tenths := n * 10 >> (10 * shift); shift == 4 || n>>(10*shift) < 1024 {
			if shift == 0 || tenths%10 == 0 || tenths >= 1000 {
				return fmt.Sprintf("%d%s", tenths/10, unit)
			}
			return fmt.Sprintf("%d.%d%s", tenths/10, tenths%10, unit)
		}
	}
	return q.String()
}

// shortly is why a pod has no node in a few words, as a list tells it.
func shortly(s state.Snapshot, p *corev1.Pod, now time.Time) string {
	e := schedule.Why(s, p, now)
	switch {
	case e.Wrong != "":
		return e.Wrong
	case e.Nodes == 0:
		return "no node yet"
	case len(e.Obstacles) == 0:
		return "about to be placed"
	}
	var parts []string
	for _, o := range e.Obstacles {
		parts = append(parts, shortNeed(o, e.Nodes))
		if o.Nodes == e.Nodes || len(parts) == 2 {
			break
		}
	}
	return strings.Join(slices.Compact(parts), ", ")
}

func shortNeed(o schedule.Obstacle, nodes int) string {
	on := " on " + plural(o.Nodes, "node")
	if o.Nodes == nodes {
		on = " on every node"
	}
	switch o.Kind {
	case schedule.NodeAffinity:
		switch {
		case o.Label.Key == "":
			return "an affinity that holds nowhere"
		case o.Nodes == nodes && (o.Label.Operator == corev1.NodeSelectorOpIn || o.Label.Operator == corev1.NodeSelectorOpExists):
			return "no node has " + labelText(o.Label)
		}
		return "needs " + labelText(o.Label)
	case schedule.InsufficientResource:
		if o.Nodes == nodes {
			return "no node has " + ofResource(o.Want.String(), o.Resource) + " free"
		}
		return "too little " + string(o.Resource) + on
	case schedule.NodeUnschedulable:
		if o.Nodes == nodes {
			return "every node is cordoned"
		}
		return isAre(o.Nodes, "node") + " cordoned"
	case schedule.NodeNotReady:
		if o.Nodes == nodes {
			return "no node is ready"
		}
		return isAre(o.Nodes, "node") + " not ready"
	case schedule.NodeName:
		return "only for " + listed(o.Where, 2)
	case schedule.NodePressure, schedule.UntoleratedTaint:
		return "taint " + o.Taint.Key + on
	case schedule.NodePorts:
		return "port " + portText(o.Port) + " taken" + on
	case schedule.TooManyPods:
		return "too many pods" + on
	case schedule.VolumeElsewhere:
		return "its volume is on " + listed(o.Where, 2)
	case schedule.VolumeInUse:
		return "its volume is in use"
	case schedule.PodAffinity:
		return "must be near other pods"
	case schedule.PodAntiAffinity, schedule.Repelled:
		return "must be away from other pods"
	}
	return "must be spread over " + o.Key
}
