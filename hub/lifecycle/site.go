package lifecycle

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// heldSite is why a site without a ready node evicts nothing where it is so wished.
const heldSite = "fully disrupted, and its disruptionPolicy is Hold"

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

// rate returns how many nodes of a site get their NoExecute taint per second, and,
// where that is none, why.
func rate(set Settings, c state.SiteCount, st fleet.SiteState, m *fleet.Maintenance, now time.Time) (float64, string) {
	switch {
	case m != nil && now.Before(m.Until.Time):
		return 0, fmt.Sprintf("maintenance until %s", m.Until.UTC().Format(time.RFC3339))
	case st == fleet.SitePartialDisruption && c.Ready+c.NotReady <= set.LargeSite:
		return 0, fmt.Sprintf("partially disrupted, and not larger than %d nodes", set.LargeSite)
	case st == fleet.SitePartialDisruption:
		return set.SecondaryRate, ""
	case st == fleet.SiteFullDisruption && set.Policy == fleet.Hold:
		return 0, heldSite
	}
	return set.Rate, ""
}

// sites settles the sites: their states and rates, and whose turn it is to get a
// NoExecute taint. s is the fleet with the nodes' health already settled.
func (d Decider) sites(s state.Snapshot, touched []string, now time.Time, plan *state.Plan) {
	all := s.Sites()
	master := all.Counting > 0 && all.Full == all.Counting
	was := all.Master > 0
	if master != was { // it concerns every site
		for name := range s.Counts() {
			touched = append(touched, name)
		}
		for site := range s.All(state.Sites, "") {
			touched = append(touched, site.GetName())
		}
		plan.Forgive = plan.Forgive || was
	}
	slices.Sort(touched)
	for _, name := range slices.Compact(touched) {
		d.site(s, name, verdict{master: master, leaving: was && !master}, now, plan)
	}
}

// A verdict is what the state of all sites together means for each.
type verdict struct{ master, leaving bool }

func (d Decider) site(s state.Snapshot, name string, v verdict, now time.Time, plan *state.Plan) {
	key := state.Key{Kind: state.Sites, Name: name}
	c, old := s.Count(name), s.Site(name)
	owes := d.owes(old) // a site that comes back under its name has its rate already
	if c.Nodes == 0 && (old == nil || old.Spec == (fleet.SiteSpec{})) && !owes.After(now) {
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
	switch maintained := !wake.IsZero(); {
	case v.master:
		perSecond, held = 0, state.HeldMaster
		d.absolve(s, name, held, plan)
	case maintained, held == heldSite: // the nodes that were the first to fall silent, too
		d.absolve(s, name, held, plan)
	}
	if v.leaving || st.Held == heldSite && held != heldSite { // the first one waits its turn like every other
		at := metav1.NewMicroTime(now)
		st.LastEviction = &at
	}

	why := ""
	if st.State != next {
		if st.State != "" || next != fleet.SiteNormal {
			why = fmt.Sprintf("site %s %s: %d of %d nodes ready", name, next, c.Ready, c.Ready+c.NotReady)
		}
		at := metav1.NewTime(now)
		st.State, st.Since = next, &at
	}
	st.Ready, st.NotReady, st.NeverSeen, st.Waiting = int32(c.Ready), int32(c.NotReady), int32(c.NeverSeen), int32(c.Waiting)
	st.EvictionRate = strconv.FormatFloat(perSecond, 'g', -1, 64)
	st.Held, st.NextEviction = "", nil
	if held != "" && (c.Waiting > 0 || v.master) {
		st.Held = held
	}
	if perSecond > 0 && c.Waiting > 0 {
		interval := time.Duration(float64(time.Second) / perSecond)
		turn := now
		if st.LastEviction != nil && st.LastEviction.Add(interval).After(now) {
			turn = st.LastEviction.Add(interval)
		}
		if !turn.After(now) {
			for n := range s.Waiting(name) {
				d.expel(n, now, plan)
				break
			}
			at := metav1.NewMicroTime(now.Truncate(time.Microsecond))
			st.LastEviction = &at
			st.Waiting--
			turn = at.Add(interval)
		}
		if st.Waiting > 0 {
			at := metav1.NewMicroTime(turn)
			st.NextEviction = &at
			wake = earliest(wake, turn)
		}
	}
	if c.Nodes == 0 && owes.After(now) {
		wake = earliest(wake, owes) // to go
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

// owes returns until when a site's rate is used up by its last eviction.
func (d Decider) owes(site *fleet.Site) time.Time {
	perSecond := d.Settings.For(site).Rate
	if site == nil || site.Status.LastEviction == nil || perSecond <= 0 {
		return time.Time{}
	}
	return site.Status.LastEviction.Add(time.Duration(float64(time.Second) / perSecond))
}

// expel gives a node its NoExecute taint.
func (d Decider) expel(n *corev1.Node, now time.Time, plan *state.Plan) {
	n = state.Fork(n)
	t := noExecute(state.ReadyOf(n), metav1.NewTime(now.Truncate(time.Second)))
	n.Spec.Taints = append(n.Spec.Taints, t)
	plan.Do(state.Put(n, fmt.Sprintf("taint %s %s", n.Name, t.ToString())).Warning("NodeTainted"))
}

// absolve takes the NoExecute taints from every node of a site, and with them the
// deadlines of their pods.
func (d Decider) absolve(s state.Snapshot, site, why string, plan *state.Plan) {
	for n := range s.NodesIn(site) {
		t := state.NoExecuteOf(n)
		if t == nil {
			continue
		}
		key := t.ToString()
		n = state.Fork(n)
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
		})
		plan.Do(state.Put(n, fmt.Sprintf("untaint %s %s: %s", n.Name, key, why)).Event("NodeUntainted"))
	}
}

func sameStatus(a, b fleet.SiteStatus) bool {
	same := a.LastEviction.Equal(b.LastEviction) && a.NextEviction.Equal(b.NextEviction) && a.Since.Equal(b.Since)
	a.LastEviction, a.NextEviction, a.Since = nil, nil, nil
	b.LastEviction, b.NextEviction, b.Since = nil, nil, nil
	return same && a == b
}
