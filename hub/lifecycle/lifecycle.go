// Package lifecycle decides which nodes are alive, which taints follow from that,
// and how fast a site may lose its nodes.
//
// A node that stays silent longer than the grace period becomes Ready=Unknown. Its
// conditions give it NoSchedule taints at once; the NoExecute taint, which makes
// pods leave, is given at the rate of its site, or not at all while the silence
// is more likely the site's or the hub's than the node's. All of it is one
// decision from one snapshot: health, site states, rates, taints. Moving pods off a
// tainted node is package eviction's decision.
package lifecycle

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Settings are the hub's own; a Site object overrides them for one site.
type Settings struct {
	Grace         time.Duration // silence after which Ready becomes Unknown
	StartupGrace  time.Duration // the same for a node that has never reported
	Rate          float64       // nodes per second that get NoExecute in a healthy site
	SecondaryRate float64       // the same in a partially disrupted site above LargeSite
	Unhealthy     float64       // fraction of not-ready nodes from which a site is partially disrupted
	LargeSite     int           // a site with at most so many nodes stops evicting while partially disrupted
	Policy        fleet.DisruptionPolicy
}

// Defaults are Kubernetes' (grace: those of 1.22 and of the documentation).
var Defaults = Settings{
	Grace: 40 * time.Second, StartupGrace: 60 * time.Second,
	Rate: 0.1, SecondaryRate: 0.01, Unhealthy: 0.55, LargeSite: 50, Policy: fleet.Evict,
}

// For returns the settings of a site, which may be nil.
func (set Settings) For(site *fleet.Site) Settings {
	if site == nil {
		return set
	}
	spec := site.Spec
	if spec.NodeMonitorGracePeriod != nil {
		set.Grace = spec.NodeMonitorGracePeriod.Duration
	}
	if spec.NodeStartupGracePeriod != nil {
		set.StartupGrace = spec.NodeStartupGracePeriod.Duration
	}
	if spec.NodeEvictionRate != nil {
		set.Rate = *spec.NodeEvictionRate
	}
	if spec.SecondaryNodeEvictionRate != nil {
		set.SecondaryRate = *spec.SecondaryNodeEvictionRate
	}
	if spec.UnhealthyZoneThreshold != nil {
		set.Unhealthy = *spec.UnhealthyZoneThreshold
	}
	if spec.LargeClusterSizeThreshold != nil {
		set.LargeSite = int(*spec.LargeClusterSizeThreshold)
	}
	if spec.DisruptionPolicy != "" {
		set.Policy = spec.DisruptionPolicy
	}
	return set
}

// A Decider decides on health, taints and sites.
type Decider struct{ Settings Settings }

// Decide brings conditions, taints and sites in line with who was heard when.
func (d Decider) Decide(s state.Snapshot, now time.Time) (plan state.Plan) {
	due := s.Look.Due
	s.Look.Due, plan.Alarms = nil, make([]state.Alarm, 0, len(due))
	for _, k := range due {
		if !d.lives(s, k, now, &plan) {
			s.Look.Due = append(s.Look.Due, k)
		}
	}
	nodes, sites := subjects(s)
	for _, name := range nodes {
		if n := s.Node(name); n != nil {
			before := len(plan.Changes)
			if d.node(s, n, now, &plan); s.Look.All || len(plan.Changes) > before {
				sites = append(sites, state.SiteOf(n))
			}
		} else {
			plan.Wake(state.Key{Kind: state.Nodes, Name: name}, time.Time{})
		}
	}
	d.flapping(s, now, &plan)
	if len(sites) > 0 {
		after, _ := state.Apply(s, plan.Changes)
		d.sites(after, sites, now, &plan)
	}
	return plan
}

// lives tells whether a node whose deadline has come has been heard of in between, and
// there is nothing else to it: then it gets a new one, and that is all. Of ten thousand
// nodes that are due, as a grace after the hub's start, almost all are such.
func (d Decider) lives(s state.Snapshot, k state.Key, now time.Time, plan *state.Plan) bool {
	if k.Kind != state.Nodes {
		return false
	}
	n := s.Node(k.Name)
	if n == nil || state.NodeCondition(n, fleet.ConditionFlapping) != nil {
		return false
	}
	deadline := d.Deadline(s, n)
	if now.After(deadline) {
		return false
	}
	plan.Wake(k, deadline.Add(1))
	return true
}

// Deadline returns the moment after which a silent node is not alive any more.
func (d Decider) Deadline(s state.Snapshot, n *corev1.Node) time.Time {
	set := d.Settings.For(s.Site(state.SiteOf(n)))
	seen := s.Seen(n.Name)
	if state.ReadyOf(n) == "" {
		if n.CreationTimestamp.After(seen) {
			seen = n.CreationTimestamp.Time
		}
		return seen.Add(set.StartupGrace)
	}
	return seen.Add(set.Grace)
}

// subjects returns the nodes and the sites that need be looked at.
func subjects(s state.Snapshot) (nodes, sites []string) {
	if s.Look.All {
		for n := range s.Nodes() {
			nodes = append(nodes, n.Name)
		}
		for site := range s.All(state.Sites, "") {
			sites = append(sites, site.GetName())
		}
		return nodes, sites
	}
	for _, a := range s.Look.Recent {
		switch a.Key.Kind {
		case state.Nodes:
			nodes = append(nodes, a.Key.Name)
			for _, o := range []state.Object{a.Old, a.New} {
				if n, ok := o.(*corev1.Node); ok && n != nil {
					sites = append(sites, state.SiteOf(n))
				}
			}
		case state.Sites:
			sites = append(sites, a.Key.Name)
			if overridesChanged(a) {
				for n := range s.NodesIn(a.Key.Name) {
					nodes = append(nodes, n.Name)
				}
			}
		}
	}
	for _, k := range s.Look.Due {
		if k.Kind == state.Sites {
			sites = append(sites, k.Name)
		} else {
			nodes = append(nodes, k.Name)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), sites
}

// overridesChanged tells whether a change of a site may move its nodes' deadlines.
func overridesChanged(a state.Applied) bool {
	old, _ := a.Old.(*fleet.Site)
	new, _ := a.New.(*fleet.Site)
	if old == nil || new == nil {
		return true
	}
	return !sameDuration(old.Spec.NodeMonitorGracePeriod, new.Spec.NodeMonitorGracePeriod) ||
		!sameDuration(old.Spec.NodeStartupGracePeriod, new.Spec.NodeStartupGracePeriod)
}

func sameDuration(a, b *metav1.Duration) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Duration == b.Duration
}

// watched are the conditions that a silent node does not keep.
var watched = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// node settles the conditions and the taints of one node.
func (d Decider) node(s state.Snapshot, n *corev1.Node, now time.Time, plan *state.Plan) {
	deadline := d.Deadline(s, n)
	key := state.KeyOf(n)
	next := n
	why, reason := "", ""
	if now.After(deadline) {
		if silent := silence(n, now); silent != nil {
			next = silent
			if state.ReadyOf(n) != corev1.ConditionUnknown {
				why = fmt.Sprintf("node %s Ready=Unknown: no heartbeat for %s", n.Name, now.Sub(s.Seen(n.Name)).Truncate(time.Second))
				reason = "NodeNotReady"
				if state.ReadyOf(n) == "" {
					why = fmt.Sprintf("node %s Ready=Unknown: it has never reported", n.Name)
				}
			}
		}
		plan.Wake(key, d.flapEnd(s, n, now))
	} else {
		// One nanosecond later: the node lives as long as now is not after its deadline.
		plan.Wake(key, earliest(deadline.Add(1), d.flapEnd(s, n, now)))
	}
	taints := taintsFor(next, now)
	if !sameTaints(n.Spec.Taints, taints) {
		if next == n {
			next = state.Fork(n)
		}
		next.Spec.Taints = taints
	}
	if next == n {
		return
	}
	c := state.Put(next, why)
	if reason != "" {
		c = c.Warning(reason)
	}
	plan.Do(c)
	if why != "" {
		for p := range s.PodsOn(n.Name) {
			if ready := state.PodCondition(p, corev1.PodReady); ready != nil && ready.Status == corev1.ConditionTrue {
				p = p.DeepCopy()
				state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}, now)
				plan.Do(state.Put(p, ""))
			}
		}
	}
}

// silence returns the node with its watched conditions Unknown, nil if they are.
func silence(n *corev1.Node, now time.Time) *corev1.Node {
	var out *corev1.Node
	change := func() *corev1.Node {
		if out == nil {
			out = state.Fork(n)
		}
		return out
	}
	at := metav1.NewTime(now)
	for _, t := range watched {
		switch have := state.NodeCondition(n, t); {
		case have == nil:
			o := change()
			o.Status.Conditions = append(o.Status.Conditions, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
				Message:           "Kubelet never posted node status.",
				LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: at,
			})
		case have.Status != corev1.ConditionUnknown:
			c := state.NodeCondition(change(), t)
			c.Status, c.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
			c.Message = "Kubelet stopped posting node status."
			c.LastTransitionTime = at
		}
	}
	return out
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
