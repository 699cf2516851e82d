package lifecycle

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Sites decides the states of sites, their eviction rates, and which node gets the next NoExecute
// taint.
type Sites struct{ Settings Settings }

// Touches returns the site of a change, or the old and new site of a node.
func (Sites) Touches(c state.Applied) (sites []state.Subject) {
	switch c.Key.Kind {
	case state.Sites:
		return []state.Subject{{Key: c.Key}}
	case state.Nodes:
		for _, o := range []state.Object{c.Old, c.New} {
			if n, ok := o.(*corev1.Node); ok {
				sites = append(sites, aboutSite(state.SiteOf(n)))
			}
		}
	}
	return sites
}

func aboutSite(name string) state.Subject {
	return state.About(state.Key{Kind: state.Sites, Name: name})
}

// Subjects returns all sites: those with nodes, and those that exist only as Site objects.
func (Sites) Subjects(s state.Snapshot) (all []state.Subject) {
	for name := range s.Counts() {
		all = append(all, aboutSite(name))
	}
	for site := range s.All(state.Sites, "") {
		if s.Count(site.GetName()).Nodes == 0 {
			all = append(all, aboutSite(site.GetName()))
		}
	}
	return all
}

// Decide updates sites. Health has run before it in the same pass.
func (d Sites) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	all := s.Sites()
	master := all.Counting > 0 && all.Full == all.Counting
	was := all.Master > 0
	if master != was { // every site depends on master disruption
		subjects = append(slices.Clip(subjects), d.Subjects(s)...)
		plan.ResetSeen = was
	}
	var names []string
	for _, q := range subjects {
		names = append(names, q.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		d.site(s, name, master, now, &plan)
	}
	return plan
}

// An evictionHold is the reason why a site does not evict; zero: it evicts.
type evictionHold struct {
	reason      fleet.SiteHold
	why         string // a sentence
	clearTaints bool   // also remove the NoExecute taints of its nodes
}

// stateTexts name a site's states in events.
var stateTexts = map[fleet.SiteState]string{fleet.SiteFullDisruption: "is dark",
	fleet.SitePartialDisruption: "is partly disrupted", fleet.SiteNormal: "is back to normal"}

// StateOf returns the disruption state of a site.
func StateOf(c state.SiteCount, unhealthy float64) fleet.SiteState {
	switch {
	case c.Full():
		return fleet.SiteFullDisruption
	case c.NotReady > 2 && float64(c.NotReady)/float64(c.NotReady+c.Ready) >= unhealthy:
		return fleet.SitePartialDisruption
	}
	return fleet.SiteNormal
}

// rate returns how many nodes of a site get NoExecute per second, and the reason if that is 0.
func rate(set Settings, c state.SiteCount, st fleet.SiteState, m *fleet.Maintenance,
	now time.Time) (float64, evictionHold) {
	switch {
	case m != nil && now.Before(m.Until.Time):
		return 0, evictionHold{fleet.HeldForMaintenance, "maintenance until " + m.Until.UTC().Format(time.RFC3339), true}
	case st == fleet.SitePartialDisruption && c.Ready+c.NotReady <= set.LargeSite:
		return 0, evictionHold{fleet.HeldPartialDisruption,
			fmt.Sprintf("partially disrupted, and not larger than %d nodes", set.LargeSite), false}
	case st == fleet.SitePartialDisruption:
		return set.SecondaryRate, evictionHold{}
	case st == fleet.SiteFullDisruption && set.Policy == fleet.Hold:
		return 0, evictionHold{fleet.HeldByDisruptionPolicy, "fully disrupted, and its disruptionPolicy is Hold", true}
	}
	return set.Rate, evictionHold{}
}

// site updates one site. master: no site has a ready node.
func (d Sites) site(s state.Snapshot, name string, master bool, now time.Time, plan *state.Plan) {
	key := state.Key{Kind: state.Sites, Name: name}
	c, old := s.Count(name), s.Site(name)
	rateUsed := d.rateUsedUntil(old) // a recreated site continues with the rate that it has used up
	if c.Nodes == 0 && !configured(old) && !rateUsed.After(now) {
		plan.Wake(key, time.Time{})
		if old != nil {
			plan.Do(state.Remove(old, ""))
		}
		return
	}
	site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)}}
	if old != nil {
		site = old.DeepCopy()
	}
	st := &site.Status
	set := d.Settings.For(site)
	next := StateOf(c, set.Unhealthy)
	perSecond, held := rate(set, c, next, site.Spec.Maintenance, now)
	var wake time.Time
	if m := site.Spec.Maintenance; m != nil && now.Before(m.Until.Time) {
		wake = m.Until.Time
	}
	if master {
		perSecond, held = 0, evictionHold{fleet.HeldInMasterDisruption,
			"no site has a ready node: the hub itself may be cut off", true}
	}
	if held.clearTaints {
		d.removeNoExecute(s, name, held.why, plan)
	}
	if old != nil {
		d.emptyBucket(old, st, perSecond, now)
	}

	why := ""
	if st.State != next {
		if st.State != "" || next != fleet.SiteNormal {
			why = fmt.Sprintf("site %s %s: %d of %d nodes ready", name, stateTexts[next], c.Ready, c.Ready+c.NotReady)
		}
		at := metav1.NewTime(now)
		st.State, st.Since = next, &at
		st.Turn(fleet.SiteTurn{Time: at, State: next, Ready: int32(c.Ready), NotReady: int32(c.NotReady)})
	}
	st.Ready, st.NotReady, st.NeverSeen, st.Waiting = int32(c.Ready), int32(c.NotReady), int32(c.NeverSeen),
		int32(c.Waiting)
	st.EvictionRate = strconv.FormatFloat(perSecond, 'g', -1, 64)
	st.HeldReason, st.Held, st.NextEviction = "", "", nil
	if c.Waiting > 0 || master {
		st.HeldReason, st.Held = held.reason, held.why
	}
	if perSecond > 0 && c.Waiting > 0 {
		interval := interval(perSecond)
		turn := now
		if st.LastEviction != nil && st.LastEviction.Add(interval).After(now) {
			turn = st.LastEviction.Add(interval)
		}
		for n := range s.Waiting(name) {
			if at := judgeAt(s, set, n); at.After(turn) {
				turn = at
			}
			if !turn.After(now) {
				d.addNoExecute(n, now, plan)
				at := metav1.NewMicroTime(now.Truncate(time.Microsecond))
				st.LastEviction = &at
				st.Waiting--
				if last := len(st.History) - 1; last >= 0 {
					st.History[last].Given++
				}
				turn = at.Add(interval) // nodes that must still wait come in a later call of the loop
				continue
			}
			break
		}
		if st.Waiting > 0 {
			at := metav1.NewMicroTime(turn.Truncate(time.Microsecond)) // rounded like in the store
			st.NextEviction = &at
			wake = earliest(wake, turn)
		}
	}
	if c.Nodes == 0 && rateUsed.After(now) {
		wake = earliest(wake, rateUsed) // when the site can be removed
	}
	plan.Wake(key, wake)
	if old == nil || !sameStatus(old.Status, *st) {
		ch := state.Put(site, why)
		switch {
		case why != "" && next != fleet.SiteNormal:
			ch = ch.Warning("SiteDisrupted")
		case why != "":
			ch = ch.Event("SiteNormal")
		}
		plan.Do(ch)
	}
}

// configured tells whether a user has written a field of a site, which may be nil. Such a site
// stays even without nodes. The hub writes only its status.
func configured(site *fleet.Site) bool {
	return site != nil && (site.Spec != (fleet.SiteSpec{}) ||
		len(site.Labels)+len(site.Annotations)+len(site.Finalizers) > 0)
}

// interval returns the time between two nodes at a rate. It is at most 100 years, because a
// time.Duration ends at 292.
func interval(perSecond float64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return time.Duration(min(float64(time.Second)/perSecond, float64(most)))
}

// rateUsedUntil returns until when the last eviction uses up the site's rate.
func (d Sites) rateUsedUntil(site *fleet.Site) time.Time {
	if site == nil || site.Status.LastEviction == nil {
		return time.Time{}
	}
	perSecond, err := strconv.ParseFloat(site.Status.EvictionRate, 64)
	if err != nil || perSecond <= 0 {
		perSecond = d.Settings.For(site).Rate
	}
	if perSecond <= 0 {
		return time.Time{}
	}
	return site.Status.LastEviction.Add(interval(perSecond))
}

// judgeAt returns the earliest moment at which a waiting node may get NoExecute. By then every
// other node of its site has sent a heartbeat since, or is silent too. After a start or a
// standstill the hub knows that only after the node's own grace period.
func judgeAt(s state.Snapshot, set Settings, n *corev1.Node) time.Time {
	at := state.FailedAt(n)
	if unseen := set.timeouts().UnseenUntil(s, n); unseen.After(at) {
		at = unseen
	}
	wait := set.JudgeDelay
	if lease := state.Lease(s.Record(n.Name), set.Lease); lease > set.Lease {
		wait = max(wait, JudgeAfter(0, lease))
	}
	return at.Add(wait)
}

// emptyBucket empties the token bucket of a site whose rate changes, unless it was full. The next
// node then follows after 1/rate. A rate of 0 fills no bucket.
func (d Sites) emptyBucket(old *fleet.Site, st *fleet.SiteStatus, perSecond float64, now time.Time) {
	was, err := strconv.ParseFloat(old.Status.EvictionRate, 64)
	if err != nil || was == perSecond {
		return
	}
	full := was > 0 && (st.LastEviction == nil || !st.LastEviction.Add(interval(was)).After(now))
	if !full {
		at := metav1.NewMicroTime(now)
		st.LastEviction = &at
	}
}

// addNoExecute adds the NoExecute taint to a node.
func (d Sites) addNoExecute(n *corev1.Node, now time.Time, plan *state.Plan) {
	n = state.Fork(n)
	t := noExecute(state.ReadyOf(n), state.Ceil(now))
	n.Spec.Taints = append(n.Spec.Taints, t)
	plan.Do(state.Put(n, fmt.Sprintf("taint %s %s", n.Name, t.ToString())).Warning("NodeTainted"))
}

// removeNoExecute removes the NoExecute taints from every node of a site. That also ends the
// deadlines of their pods.
func (d Sites) removeNoExecute(s state.Snapshot, site, why string, plan *state.Plan) {
	for n := range s.NodesIn(site) {
		t := state.NoExecuteOf(n)
		if t == nil {
			continue
		}
		key := t.ToString()
		n = state.Fork(n)
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoExecute &&
				(t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
		})
		if o := state.OutageOf(n); o != nil {
			o.TaintPeriods = nil
			state.SetOutage(n, o)
		}
		plan.Do(state.Put(n, fmt.Sprintf("untaint %s %s: %s", n.Name, key, why)).Event("NodeUntainted"))
	}
}

func sameStatus(a, b fleet.SiteStatus) bool {
	return equality.Semantic.DeepEqual(a, b)
}
