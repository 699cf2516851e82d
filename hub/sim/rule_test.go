package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// The rules of the specification, as the inspector computes them.

// A tally has the numbers of a site's nodes by the rules of the specification.
type tally struct{ ready, not int }

func (i *inspector) tallies() map[string]tally {
	out := map[string]tally{}
	for _, n := range i.nodes {
		site := siteOf(n)
		c := out[site]
		r := state.NodeCondition(n, corev1.NodeReady)
		switch {
		case r == nil || r.Reason == "NodeStatusNeverUpdated":
		case r.Status == corev1.ConditionTrue:
			c.ready++
		default:
			c.not++
		}
		out[site] = c
	}
	return out
}

func siteOf(n *corev1.Node) string { return n.Labels[corev1.LabelTopologyZone] }

func (i *inspector) isDark() bool {
	some := false
	for _, c := range i.tallies() {
		if c.ready > 0 {
			return false
		}
		some = some || c.not > 0
	}
	return some
}

// ours returns the lifecycle's own NoExecute taint of a node.
func ours(n *corev1.Node) *corev1.Taint {
	for k := range n.Spec.Taints {
		t := &n.Spec.Taints[k]
		if t.Effect == corev1.TaintEffectNoExecute && strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			return t
		}
	}
	return nil
}

// A siteSettings has the effective settings of a site: its own, or the hub's.
type siteSettings struct {
	rate, secondary, unhealthy float64
	large                      int
	policy                     fleet.DisruptionPolicy
	maintained                 time.Time // end of the maintenance
}

func (i *inspector) settingsOf(site string) siteSettings {
	cfg := i.w.cfg
	out := siteSettings{rate: cfg.NodeEvictionRate, secondary: cfg.SecondaryNodeEvictionRate,
		unhealthy: cfg.UnhealthyZoneThreshold, large: cfg.LargeClusterSizeThreshold, policy: cfg.SiteDisruptionPolicy}
	s := i.sites[site]
	if s == nil {
		return out
	}
	for _, own := range []struct{ to, is *float64 }{{&out.rate, s.Spec.NodeEvictionRate},
		{&out.secondary, s.Spec.SecondaryNodeEvictionRate}, {&out.unhealthy, s.Spec.UnhealthyZoneThreshold}} {
		if own.is != nil {
			*own.to = *own.is
		}
	}
	if n := s.Spec.LargeClusterSizeThreshold; n != nil {
		out.large = int(*n)
	}
	if p := s.Spec.DisruptionPolicy; p != "" {
		out.policy = p
	}
	if m := s.Spec.Maintenance; m != nil {
		out.maintained = m.Until.Time
	}
	return out
}

// allowed returns how many nodes of a site may get NoExecute per second, and the reason if that is
// 0.
func (i *inspector) allowed(site string, now time.Time) (float64, string) {
	c, is := i.tallies()[site], i.settingsOf(site)
	partly := c.ready > 0 && c.not > 2 && float64(c.not)/float64(c.not+c.ready) >= is.unhealthy
	switch {
	case i.isDark():
		return 0, "no site has a ready node"
	case now.Before(is.maintained):
		return 0, site + " is under maintenance"
	case c.ready == 0 && is.policy == fleet.Hold:
		return 0, site + " is on hold"
	case partly && c.ready+c.not <= is.large:
		return 0, fmt.Sprintf("%d of %d nodes of %s are not ready", c.not, c.not+c.ready, site)
	case partly:
		return is.secondary, ""
	}
	return is.rate, ""
}

// holds tells whether a site is dark and has the policy Hold.
func (i *inspector) holds(site string) bool {
	c := i.tallies()[site]
	return c.ready == 0 && c.not > 0 && i.settingsOf(site).policy == fleet.Hold
}

// deadline returns until when a pod may stay on a node, if there is a limit: the earliest deadline
// of all NoExecute taints, including users' and replaced ones. A deadline counts from the taint or
// from the pod's binding, both rounded up to whole seconds. The caller holds the inspector's lock.
func (i *inspector) deadline(p *corev1.Pod, n *corev1.Node) (first time.Time, bounded bool) {
	bound := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			bound = c.LastTransitionTime.Time
		}
	}
	for _, t := range slices.Concat(i.before[n.Name], n.Spec.Taints) {
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		until, tolerated := t.TimeAdded.Time, false
		if bound.After(until) {
			until = bound
		}
		matched := false
		for _, tol := range p.Spec.Tolerations {
			if (tol.Key == "" || tol.Key == t.Key) && (tol.Effect == "" || tol.Effect == t.Effect) &&
				(tol.Operator == corev1.TolerationOpExists || tol.Value == t.Value) {
				if tolerated = tol.TolerationSeconds == nil; !tolerated {
					until = until.Add(time.Duration(*tol.TolerationSeconds) * time.Second)
				}
				matched = !tolerated && *tol.TolerationSeconds > 0
				break
			}
		}
		if !tolerated && !matched {
			until = t.TimeAdded.Add(-time.Second) // at once: the taint's time is rounded up
		}
		if !tolerated && (!bounded || until.Before(first)) {
			first, bounded = until, true
		}
	}
	return first, bounded
}
