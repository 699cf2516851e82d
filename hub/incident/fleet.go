package incident

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// fleet finds the incidents of the whole fleet.
func (p *pass) fleet() (f findings) {
	for _, x := range diagnose.Fleet(p.s) {
		out := found{old: p.openOf(theFleet, diagnose.RuleOf(x.Cause).Family)}
		i := &out.Incident
		i.Cause, i.About, i.Since = x.Cause, x.About, metav1.NewTime(x.Since)
		switch {
		case !x.Since.IsZero():
		case out.old != nil:
			i.Since = out.old.Since
		default:
			i.Since = metav1.NewTime(p.now)
		}
		if out.old != nil && out.old.Since.Before(&i.Since) {
			i.Since = out.old.Since
		}
		i.Latest, i.Detail = metav1.NewMicroTime(i.Since.Time), x.Detail()
		if diagnose.RuleOf(x.Cause).Family == diagnose.FamilyFleet {
			p.outage(i)
			if out.old == nil || !out.old.Since.Equal(&i.Since) || !out.old.Latest.Equal(&i.Latest) {
				p.wakeDark()
			}
		}
		i.Message = sentence(i)
		f.all = append(f.all, out)
	}
	return f
}

// wakeDark checks the dark sites again, because their incidents may follow from the fleet's
// incident.
func (p *pass) wakeDark() {
	for q := range p.open {
		if q.Kind == state.Sites && q != theFleet &&
			(p.openOf(q, diagnose.FamilyDark) != nil || p.openOf(q, diagnose.FamilyFlaps) != nil) {
			p.plan.WakeFor(q, p.now.Add(time.Millisecond))
		}
	}
}

// outage counts dark nodes and sites when most of the fleet is dark.
func (p *pass) outage(i *fleet.Incident) {
	o := diagnose.FleetOutage(p.s)
	if !o.Latest.IsZero() {
		i.Latest = metav1.NewMicroTime(o.Latest.Truncate(time.Microsecond))
	}
	i.Count.Nodes = int32(o.Nodes) //nolint:gosec // a fleet has no more nodes than that
	sites := o.Sites
	if i.Cause == diagnose.FleetDark {
		i.Count.Nodes, sites = 0, nil
		for name, c := range p.s.Counts() {
			if c.Full() {
				i.Count.Nodes += int32(c.NotReady) //nolint:gosec // as above
				sites = append(sites, name)
			}
			if site := p.s.Site(name); site != nil && site.Status.HeldReason == fleet.HeldInMasterDisruption {
				i.Held = site.Status.Held
			}
		}
	}
	i.Examples = sites[:min(len(sites), examples)]
	for _, name := range sites {
		for _, o := range p.open[aboutSite(name)] {
			if diagnose.RuleOf(o.Cause).Family == diagnose.FamilyDark {
				i.Count.Pods += o.Count.Pods
			}
		}
	}
	for _, k := range state.Kinds() {
		if !diagnose.IsWork(k) {
			continue
		}
		for o := range p.s.All(k, "") {
			if p.owns(o) && diagnose.WorkOf(o).Short {
				i.Count.Workloads++
			}
		}
	}
}

// openOf returns the subject's open incident of a family of causes, nil if there is none.
func (p *pass) openOf(q state.Subject, f diagnose.Family) *fleet.Incident {
	for _, i := range p.open[q] {
		if diagnose.RuleOf(i.Cause).Family == f {
			return i
		}
	}
	return nil
}
