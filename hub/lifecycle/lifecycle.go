// Package lifecycle decides which nodes are alive, which taints follow from that,
// and how fast a site may lose its nodes.
//
// It is three deciders, asked one after the other. Flapping: what has happened to a node
// becomes its history, and one whose Ready changes often is called so. Health: a node
// that stays silent longer than the grace period becomes Ready=Unknown, and its
// conditions give it NoSchedule taints at once. Sites: the NoExecute taint, which makes
// pods leave, is given at the rate of the node's site, or not at all while the silence is
// more likely the site's or the hub's than the node's. Moving pods off a tainted node is
// package eviction's decision.
package lifecycle

import (
	"time"

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
	Lease         time.Duration // interval at which devices renew where their sites do not say otherwise
	JudgeDelay    time.Duration // how long after its Ready left True a node gets NoExecute at the earliest, see JudgeAfter
}

func (set Settings) timeouts() state.Timeouts {
	return state.Timeouts{Grace: set.Grace, Startup: set.StartupGrace, Lease: set.Lease}
}

// JudgeAfter returns how long it takes until every node of a site has been heard or is
// silent too, so that a site which was cut in one moment is known for disrupted before
// its first node is given up: the longer of the monitor period and one lease interval
// with its jitter of 4 %, to the next full second, as messages need time too.
func JudgeAfter(monitorPeriod, leaseInterval time.Duration) time.Duration {
	wait := max(monitorPeriod, leaseInterval+leaseInterval/25)
	return wait.Truncate(time.Second) + time.Second
}

// Defaults are Kubernetes' (grace: those of 1.22 and of the documentation).
var Defaults = Settings{
	Grace: 40 * time.Second, StartupGrace: 60 * time.Second,
	Rate: 0.1, SecondaryRate: 0.01, Unhealthy: 0.55, LargeSite: 50, Policy: fleet.Evict,
	Lease: 10 * time.Second, JudgeDelay: JudgeAfter(5*time.Second, 10*time.Second),
}

// For returns the settings of a site, which may be nil. Its graces are state.Silence's.
func (set Settings) For(site *fleet.Site) Settings {
	if site == nil {
		return set
	}
	spec := site.Spec
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

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
