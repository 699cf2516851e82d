package incident

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A member is a node of an incident, with the reason. A dark site may have thousands.
type member struct {
	node   *corev1.Node
	cause  fleet.IncidentCause
	since  time.Time
	detail string
}

// A group holds the nodes of one incident.
type group struct {
	cause   fleet.IncidentCause
	old     *fleet.Incident
	since   time.Time
	latest  time.Time
	members []member
}

// takes tells whether a node that failed at a moment belongs to the group: it failed soon after the
// others.
func (g *group) takes(at time.Time) bool {
	return !at.Before(g.since.Add(-time.Second)) && !at.After(g.latest.Add(gap)) && !at.After(g.since.Add(span))
}

func newestFirst(a, b *group) int { return b.since.Compare(a.since) }

// groups puts nodes of a site that failed together into groups. The groups of open incidents are
// first. A node that restarts is checked again when it should be back.
func (p *pass) groups(site string) (all []*group, wake time.Time) {
	byFamily := map[diagnose.Family][]*group{}
	for _, i := range p.open[aboutSite(site)] {
		f := diagnose.RuleOf(i.Cause).Family
		byFamily[f] = append(byFamily[f], &group{cause: i.Cause, old: i, since: i.Since.Time, latest: i.Latest.Time})
	}
	found := map[diagnose.Family][]member{}
	for n := range p.s.NodesIn(site) {
		for x := range diagnose.Node(n) {
			if x.Pending(p.now) {
				wake = earliest(wake, x.Due)
				continue
			}
			if x.Since.After(p.now) {
				x.Since = p.now
			}
			f := diagnose.RuleOf(x.Cause).Family
			found[f] = append(found[f], member{n, x.Cause, x.Since, x.Detail()})
		}
	}
	for _, f := range slices.Sorted(maps.Keys(found)) {
		sort.SliceStable(found[f], func(i, j int) bool { return found[f][i].since.Compare(found[f][j].since) < 0 })
		groups := byFamily[f]
		slices.SortStableFunc(groups, newestFirst)
		for _, e := range found[f] {
			i := slices.IndexFunc(groups, func(g *group) bool { return g.takes(e.since) })
			if i < 0 {
				groups = slices.Insert(groups, 0, &group{since: e.since, latest: e.since})
				i = 0
			}
			g := groups[i]
			if len(g.members) == 0 || diagnose.RuleOf(e.cause).Rank < diagnose.RuleOf(g.cause).Rank {
				g.cause = e.cause
			}
			if g.members = append(g.members, e); e.since.After(g.latest) {
				g.latest = e.since
			}
		}
		groups = slices.DeleteFunc(groups, func(g *group) bool { return len(g.members) == 0 })
		slices.SortStableFunc(groups, newestFirst)
		for i, g := range groups {
			// the newest group has the node that was ready last
			if dark := diagnose.Site(p.s, site).Cause; f == diagnose.FamilyDark && g.cause == diagnose.NodeDark && i == 0 &&
				dark != "" {
				g.cause = dark
			}
			all = append(all, g)
		}
	}
	return all, wake
}

// site finds the incidents of a site's nodes.
func (p *pass) site(name string) (f findings) {
	site := p.s.Site(name)
	groups, wake := p.groups(name)
	f.wake = wake
	for _, g := range groups {
		i := fleet.Incident{
			Cause: g.cause, Site: name, About: fleet.IncidentObject{Kind: state.Sites.Row().Name, Name: name},
			Since: metav1.NewTime(g.since), Latest: metav1.NewMicroTime(g.latest.Truncate(time.Microsecond)),
		}
		sort.Slice(g.members, func(i, j int) bool { return g.members[i].node.Name < g.members[j].node.Name })
		touched := map[state.Key]bool{}
		out := found{old: g.old, works: touched}
		fam := diagnose.RuleOf(g.cause).Family
		i.Count.Nodes = int32(len(g.members)) //nolint:gosec // a site has no more nodes than that
		i.Detail = g.members[0].detail
		for n, m := range g.members {
			if n < examples {
				i.Examples = append(i.Examples, m.node.Name)
			}
			out.evicted += p.evicted[m.node.Name]
			out.back = out.back || diagnose.Ready(m.node)
			if fam == diagnose.FamilyDark || fam == diagnose.FamilyFlaps && !diagnose.Ready(m.node) {
				i.Count.Pods += p.podsAt(m.node, touched)
			}
		}
		for key := range touched {
			if diagnose.WorkOf(p.s.Get(key)).Short {
				i.Count.Workloads++
			}
		}
		if fam == diagnose.FamilyDark || fam == diagnose.FamilyFlaps {
			p.outlook(&i, site, g.members)
			if m := maintenanceOf(site); m.After(p.now) {
				f.wake = earliest(f.wake, m)
			}
		}
		if fam == diagnose.FamilyDark {
			i.PartOf = p.outageOf(&i)
		}
		i.Message = sentence(&i)
		out.Incident = i
		f.all = append(f.all, out)
	}
	p.underDark(&f)
	return f
}

// outageOf names the fleet's incident from which an incident of dark nodes follows; "" if there is
// none.
func (p *pass) outageOf(i *fleet.Incident) string {
	all := p.openOf(theFleet, diagnose.FamilyFleet)
	switch {
	case all == nil:
	case i.Cause == diagnose.SiteDark && all.Cause == diagnose.FleetDark:
		return all.Name
	case !i.Latest.Time.Before(all.Since.Time) && !i.Latest.After(all.Latest.Add(gap)):
		return all.Name
	}
	return ""
}

// underDark makes incidents of flapping links part of a site's or the fleet's outage while all
// their nodes are dark.
func (p *pass) underDark(f *findings) {
	var dark *found
	for n := range f.all {
		if f.all[n].Cause == diagnose.SiteDark {
			dark = &f.all[n]
		}
	}
	for n := range f.all {
		i := &f.all[n]
		if diagnose.RuleOf(i.Cause).Family != diagnose.FamilyFlaps || i.back {
			continue
		}
		switch all := p.openOf(theFleet, diagnose.FamilyFleet); {
		case dark != nil && dark.old != nil:
			i.PartOf = dark.old.Name
		case dark != nil:
			f.wake = earliest(f.wake, p.now.Add(rest)) // the new incident of the outage has no name yet
		case all != nil:
			i.PartOf = all.Name
		}
	}
}

// podsAt counts the pods of a node that should run, and adds their workloads to touched.
func (p *pass) podsAt(n *corev1.Node, touched map[state.Key]bool) (pods int32) {
	for pod := range p.s.PodsOn(n.Name) {
		if state.Terminated(pod) {
			continue
		}
		if pod.DeletionTimestamp == nil {
			pods++
		}
		touched[p.workloadOfPod(pod)] = true
	}
	return pods
}

// outlook says when the first pods of nodes that are not ready will be evicted, or why no pod will
// be, and which actions help.
func (p *pass) outlook(i *fleet.Incident, site *fleet.Site, members []member) {
	if site == nil {
		return
	}
	st := site.Status
	i.Held = st.Held
	if !maintenanceOf(site).After(p.now) {
		switch {
		case st.State != fleet.SiteFullDisruption:
		case site.Spec.DisruptionPolicy == fleet.Hold:
			i.Actions = append(i.Actions, fleet.ActionRelease)
		case st.HeldReason != fleet.HeldByDisruptionPolicy: // the policy Hold may be the hub's default
			i.Actions = append(i.Actions, fleet.ActionHold)
		}
		i.Actions = append(i.Actions, fleet.ActionMaintenance)
	}
	if p.LeaveBy == nil {
		return
	}
	var first time.Time
	waits := false
	type tainted struct {
		*corev1.Node
		at time.Time
	}
	var given []tainted
	for _, m := range members {
		switch t := state.NoExecuteOf(m.node); {
		case diagnose.Ready(m.node):
		case t == nil:
			waits = true
		case t.TimeAdded == nil:
			given = append(given, tainted{Node: m.node})
		default:
			given = append(given, tainted{m.node, t.TimeAdded.Time})
		}
	}
	sort.SliceStable(given, func(i, j int) bool { return given[i].at.Compare(given[j].at) < 0 })
	for _, n := range given {
		if i.Tainted == nil && !n.at.IsZero() {
			i.Tainted = new(metav1.NewTime(n.at))
		}
		if !first.IsZero() && !n.at.Before(first) {
			if o := state.OutageOf(n.Node); o == nil || len(o.TaintPeriods) == 0 {
				break // pods are evicted only after the taint
			}
		}
		first = earliest(first, p.leaves(n.Node))
	}
	if waits && st.NextEviction != nil && st.HeldReason == "" {
		first = earliest(first, p.nextLeaves(site, members))
	}
	if !first.IsZero() {
		i.NextMove = new(metav1.NewTime(first))
	}
}

// maintenanceOf returns the end of a site's maintenance, zero if there is none.
func maintenanceOf(site *fleet.Site) (until time.Time) {
	if site != nil && site.Spec.Maintenance != nil {
		until = site.Spec.Maintenance.Until.Time
	}
	return until
}

// nextLeaves returns when the first pod will be evicted from nodes that wait for their taint, zero
// if none will be. The site's eviction rate gives taints in the order of the queue.
func (p *pass) nextLeaves(site *fleet.Site, members []member) (first time.Time) {
	var rate float64
	_, _ = fmt.Sscan(site.Status.EvictionRate, &rate)
	at := site.Status.NextEviction.Time
	for n := range p.s.Waiting(site.Name) {
		if !first.IsZero() && !at.Before(first) {
			break // pods are evicted only after the taint
		}
		if _, is := sort.Find(len(members), func(i int) int { return strings.Compare(n.Name, members[i].node.Name) }); is {
			given := state.Fork(n)
			key := corev1.TaintNodeUnreachable
			if state.ReadyOf(n) == corev1.ConditionFalse {
				key = corev1.TaintNodeNotReady
			}
			added := state.Ceil(at)
			given.Spec.Taints = append(slices.Clip(given.Spec.Taints),
				corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added})
			if leaves := p.leaves(given); !leaves.IsZero() && leaves.Before(at) {
				first = earliest(first, at)
			} else {
				first = earliest(first, leaves)
			}
		}
		if rate <= 0 {
			break
		}
		at = at.Add(time.Duration(min(float64(time.Second)/rate, float64(100*365*24*time.Hour))))
	}
	return first
}

// leaves returns when the first pod of a node must leave it; zero if no pod must.
func (p *pass) leaves(n *corev1.Node) (first time.Time) {
	for pod := range p.s.PodsOn(n.Name) {
		if pod.DeletionTimestamp != nil || state.Terminated(pod) {
			continue
		}
		if at, must := p.LeaveBy(n, pod); must {
			if t := state.NoExecuteOf(n); at.IsZero() && t != nil && t.TimeAdded != nil {
				at = t.TimeAdded.Time // the pod tolerates nothing, so it leaves at once
			}
			first = earliest(first, at)
		}
	}
	return first
}
