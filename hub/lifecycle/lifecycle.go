// Package lifecycle decides which nodes are alive, their taints, and how fast a site may evict.
//
// It has three deciders that run in this order. Flapping stores the nodes' histories and sets their
// condition Flapping. Health sets Ready=Unknown on nodes without a heartbeat for the grace period,
// and adds the NoSchedule taints of conditions at once. Sites adds the NoExecute taint, at the rate
// of the node's site. It waits while a network outage of the site or the hub is the likelier cause.
// The package never evicts a pod: package eviction does.
package lifecycle

import (
	"time"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Settings are the hub's settings; a Site object overrides them for one site.
type Settings struct {
	Grace         time.Duration // time without a heartbeat until Ready becomes Unknown
	StartupGrace  time.Duration // Grace of a node that has never reported
	Rate          float64       // nodes per second that get NoExecute in a healthy site
	SecondaryRate float64       // Rate in a partially disrupted site above LargeSite
	Unhealthy     float64       // fraction of not-ready nodes from which a site is partially disrupted
	LargeSite     int           // up to this size a site stops evicting while partially disrupted
	Policy        fleet.DisruptionPolicy
	Lease         time.Duration // default lease interval of devices
	JudgeDelay    time.Duration // minimum time from the loss of Ready to NoExecute, see JudgeAfter
}

func (set Settings) timeouts() state.Timeouts {
	return state.Timeouts{Grace: set.Grace, Startup: set.StartupGrace, Lease: set.Lease}
}

// JudgeAfter returns the time in which every node of a site has either sent a heartbeat or become
// silent too. So a site that is cut off at one moment counts as disrupted before its first node
// gets NoExecute. It is the longer of the monitor period and one lease interval with its jitter of
// 4 %, rounded up to the next full second, because messages take time.
func JudgeAfter(monitorPeriod, leaseInterval time.Duration) time.Duration {
	wait := max(monitorPeriod, leaseInterval+leaseInterval/25)
	return wait.Truncate(time.Second) + time.Second
}

// Defaults are the values of Kubernetes. The grace period is that of 1.22 and of the documentation.
var Defaults = Settings{
	Grace: 40 * time.Second, StartupGrace: 60 * time.Second,
	Rate: 0.1, SecondaryRate: 0.01, Unhealthy: 0.55, LargeSite: 50, Policy: fleet.Evict,
	Lease: 10 * time.Second, JudgeDelay: JudgeAfter(5*time.Second, 10*time.Second),
}

// For returns the settings of a site, which may be nil. The grace periods come from state.Timeouts.
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
