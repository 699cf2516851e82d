package diagnose

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Fleet returns the problems of the fleet as a whole: the hub's disk is full, all sites are dark,
// or most of the fleet became silent at once. The likely cause of the last two is the hub's own
// link. A fleet with one site has the site's problem instead.
func Fleet(s state.Snapshot) (all []Finding) {
	about := fleet.IncidentObject{Kind: KindFleet}
	if s.DiskFull() {
		all = append(all, Finding{Cause: HubDiskFull, About: about})
	}
	switch sites, o := s.Sites(), FleetOutage(s); {
	case sites.Counting < 2:
	case sites.Master != 0:
		since := o.Since
		for name, c := range s.Counts() {
			if site := s.Site(name); o.Nodes == 0 && c.Full() && site != nil && site.Status.Since != nil &&
				site.Status.Since.After(since) {
				since = site.Status.Since.UTC()
			}
		}
		all = append(all, Finding{Cause: FleetDark, About: about, Since: since})
	case o.Nodes > 0:
		text := fmt.Sprintf("%d of %d nodes within %d s", o.Nodes, o.Of, o.Latest.Sub(o.Since)/time.Second+1)
		all = append(all, Finding{Cause: FleetMostlyDark, About: about, Args: Args{Message: text}, Since: o.Since})
	}
	return all
}

// outageSpan is the time within which the nodes of one outage become silent. Their grace periods
// are about equal.
const outageSpan = time.Minute

// An Outage means that most of the fleet became silent at once.
type Outage struct {
	Nodes, Of     int // silent nodes, and all nodes that have ever reported
	Sites         []string
	Since, Latest time.Time // when the first and the last of them became silent
}

// FleetOutage returns the outage in which more than half of the nodes, on more than half of the
// sites, became silent within a minute. Without an outage Nodes is 0. It walks the nodes only while
// more than half of them are not ready.
func FleetOutage(s state.Snapshot) (o Outage) {
	away := 0
	for _, c := range s.Counts() {
		o.Of, away = o.Of+c.Ready+c.NotReady, away+c.NotReady
	}
	if away*2 <= o.Of || s.Sites().Counting < 2 {
		return o
	}
	type silent struct {
		at   time.Time
		site string
	}
	var all []silent
	for n := range s.Nodes() {
		if state.ReadyOf(n) == corev1.ConditionUnknown && !state.NeverReported(n) {
			all = append(all, silent{state.FailedAt(n), state.SiteOf(n)})
		}
	}
	slices.SortStableFunc(all, func(a, b silent) int { return a.at.Compare(b.at) })
	from, to := 0, 0 // bounds of the span with the most nodes
	for first, last := 0, 0; last < len(all); last++ {
		for all[last].at.Sub(all[first].at) > outageSpan {
			first++
		}
		if last+1-first > to-from {
			from, to = first, last+1
		}
	}
	if all = all[from:to]; len(all)*2 <= o.Of {
		return o
	}
	for _, n := range all {
		o.Sites = append(o.Sites, n.site)
	}
	slices.Sort(o.Sites)
	if o.Sites = slices.Compact(o.Sites); len(o.Sites)*2 > s.Sites().Counting {
		o.Nodes, o.Since, o.Latest = len(all), all[0].at.UTC(), all[len(all)-1].at.UTC()
	}
	return o
}

// Site returns the finding of a dark site: none of its nodes is ready.
func Site(s state.Snapshot, name string) Finding {
	if !s.Count(name).Full() {
		return Finding{}
	}
	return Finding{Cause: SiteDark, About: fleet.IncidentObject{Kind: state.Sites.Row().Name, Name: name}}
}

// Disrupted tells whether so many nodes of a site are not ready that the site itself has a problem.
func Disrupted(s *fleet.Site) bool {
	return s.Status.State == fleet.SitePartialDisruption || s.Status.State == fleet.SiteFullDisruption
}

// SiteTroubled tells whether a site needs attention: it is disrupted, or one of its nodes is not
// ready.
func SiteTroubled(s *fleet.Site) bool { return Disrupted(s) || s.Status.NotReady > 0 }
