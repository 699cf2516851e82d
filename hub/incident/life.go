package incident

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// findings are the incidents found for a subject, and when to check it again; zero: never.
type findings struct {
	all  []found
	wake time.Time
	gone bool // the subject no longer exists, so its incidents are closed at once
}

// A found is an incident by the present snapshot. old is the stored incident, nil for a new one.
type found struct {
	fleet.Incident
	old     *fleet.Incident
	evicted int32              // pods evicted since the last pass
	back    bool               // some of the incident's nodes are ready again
	works   map[state.Key]bool // workloads with pods on its nodes
}

// settle updates a subject's stored incidents from its findings.
func (p *pass) settle(q state.Subject, f findings) {
	wake := f.wake
	var now []*fleet.Incident
	met := map[*fleet.Incident]bool{}
	for i := range f.all {
		met[f.all[i].old] = true
		now = append(now, p.remember(&f.all[i]))
		p.lead(now[i], &f.all[i])
	}
	for _, i := range p.open[q] {
		if met[i] {
			continue
		}
		over := p.now
		if r := diagnose.RuleOf(i.Cause); r.Settle > 0 && !f.gone {
			if quiet := p.quiet(i, q); quiet != i {
				i = quiet
				p.plan.Do(state.Put(i, ""))
			}
			over = i.QuietSince.Add(r.Settle)
		}
		if over.After(p.now) {
			wake = earliest(wake, over)
			now = append(now, i)
			continue
		}
		p.close(i)
	}
	p.open[q] = now
	p.plan.WakeFor(q, wake)
}

// quiet updates an incident whose cause is not seen at the moment, and returns i itself if nothing
// changes. The incident's workload may still be short of pods, because a new pod is not ready at
// once.
func (p *pass) quiet(i *fleet.Incident, q state.Subject) *fleet.Incident {
	short := i.Count.Workloads
	if ofWork(i) {
		if short = 0; diagnose.WorkOf(p.s.Get(q.Key)).Short {
			short = 1
		}
	}
	if i.QuietSince != nil && short == i.Count.Workloads {
		return i
	}
	i = i.DeepCopy()
	if p.spend(i); i.QuietSince == nil {
		i.QuietSince = new(metav1.NewTime(p.now))
	}
	i.Count.Workloads, i.Counted = short, metav1.NewMicroTime(p.now)
	p.short(i, short > 0)
	return i
}

// lead wakes the workloads whose pods find no node, because their incidents may begin or cease to
// follow from i, although the workloads themselves have not changed.
func (p *pass) lead(i *fleet.Incident, f *found) {
	nodes := f.works != nil && i != f.old // the incident's nodes may have changed
	for _, q := range p.placeless {
		for _, o := range p.open[q] {
			if o.Cause == diagnose.CannotBePlaced &&
				(nodes || o.PartOf == "" && f.works[q.Key] || o.PartOf == i.Name && !f.works[q.Key]) {
				p.plan.WakeFor(q, p.now.Add(time.Millisecond))
			}
		}
	}
}

// remember opens an incident or updates its counts.
func (p *pass) remember(f *found) *fleet.Incident {
	now := metav1.NewTime(p.now)
	if f.old == nil {
		i := f.Incident.DeepCopy()
		i.State, i.Severity, i.Opened, i.CreationTimestamp = fleet.IncidentOpen, diagnose.RuleOf(f.Cause).Severity, now, now
		i.Name = p.name(f)
		i.NotifyAfter = new(metav1.NewTime(p.now.Add(settles)))
		p.count(i, f.evicted)
		i.Counted = metav1.NewMicroTime(p.now.Truncate(time.Microsecond))
		ch := state.Put(i, "incident "+i.Name+": "+i.Message)
		ch.Warn = i.Severity != fleet.SeverityInfo
		p.plan.Do(ch)
		return i
	}
	i := f.old.DeepCopy()
	have := i.DeepCopy()
	i.Cause, i.Severity, i.Site, i.About, i.Message, i.PartOf = f.Cause, diagnose.RuleOf(f.Cause).Severity, f.Site,
		f.About, f.Message, f.PartOf
	i.Count, i.Examples, i.Held, i.NextMove, i.Actions, i.QuietSince = f.Count, f.Examples, f.Held, f.NextMove, f.Actions,
		nil
	i.Detail, i.Latest = f.Detail, f.Latest
	if i.Tainted == nil {
		i.Tainted = f.Tainted
	}
	p.count(i, f.evicted)
	if have.PartOf != "" && have.PartOf != i.PartOf {
		i.Followed = have.PartOf
	}
	if have.PartOf != "" && i.PartOf == "" { // nodes return one after the other, so this incident may end in a moment
		i.NotifyAfter = new(metav1.NewTime(p.now.Add(returns)))
	}
	if same(have, i) {
		return f.old
	}
	p.spend(have)
	i.NodeSeconds, i.PodSeconds = have.NodeSeconds, have.PodSeconds
	if i.Back == nil && i.Count.Nodes < have.Count.Nodes {
		i.Back = &now
	}
	i.Counted = metav1.NewMicroTime(p.now.Truncate(time.Microsecond))
	why := ""
	if have.Cause != i.Cause {
		why = "incident " + i.Name + ": " + i.Message
	}
	p.plan.Do(state.Put(i, why))
	return i
}

// count adds to the cost of an incident.
func (p *pass) count(i *fleet.Incident, evicted int32) {
	m := &i.Most
	m.Nodes, m.Pods, m.Workloads = max(m.Nodes, i.Count.Nodes), max(m.Pods, i.Count.Pods),
		max(m.Workloads, i.Count.Workloads)
	if i.Evicted += evicted; evicted > 0 && i.Moved == nil {
		i.Moved = new(metav1.NewTime(p.now))
	}
	p.short(i, i.Count.Workloads > 0)
}

// short counts the time in which workloads are short of pods.
func (p *pass) short(i *fleet.Incident, is bool) {
	switch {
	case is && i.ShortSince == nil:
		i.ShortSince = new(metav1.NewTime(p.now))
	case !is && i.ShortSince != nil:
		i.ShortSeconds += max(0, int64(p.now.Sub(i.ShortSince.Time)/time.Second))
		i.ShortSince = nil
	}
}

// spend adds the cost since the last count. While the cause is not present there is no cost.
func (p *pass) spend(i *fleet.Incident) {
	if d := p.now.Sub(i.Counted.Time).Seconds(); i.QuietSince == nil && d > 0 {
		i.NodeSeconds += int64(float64(i.Count.Nodes)*d + 0.5)
		i.PodSeconds += int64(float64(i.Count.Pods)*d + 0.5)
	}
}

// close closes an incident and checks the incidents that followed from it again.
func (p *pass) close(i *fleet.Incident) {
	i = i.DeepCopy()
	now := metav1.NewTime(p.now)
	p.short(i, false)
	p.spend(i)
	i.State, i.Closed, i.QuietSince, i.NextMove, i.Held, i.Actions = fleet.IncidentClosed, &now, nil, nil, "", nil
	i.Count = fleet.IncidentCount{}
	// The nodes of a dark site return one after the other. When all but one are ready, the cause is
	// only NodeDark.
	if c := p.s.Count(i.Site); i.Cause == diagnose.NodeDark && c.Ready+c.NotReady > 0 &&
		int(i.Most.Nodes) >= c.Ready+c.NotReady {
		i.Cause = diagnose.SiteDark
	}
	i.Message = sentence(i)
	i.Counted = metav1.NewMicroTime(p.now.Truncate(time.Microsecond))
	p.plan.Do(state.Put(i, "incident "+i.Name+" is over: "+i.Message))
	p.plan.Wake(state.KeyOf(i), i.Closed.Add(Kept))
	p.closed = append(p.closed, i)
	for q, open := range p.open {
		for _, o := range open {
			if o.PartOf == i.Name || o.Cause == diagnose.CannotBePlaced && i.About.Kind == state.Sites.Row().Name {
				p.plan.WakeFor(q, p.now.Add(time.Millisecond))
			}
		}
	}
}

// expire removes a closed incident after Kept.
func (p *pass) expire(q state.Subject) {
	i, _ := p.s.Get(q.Key).(*fleet.Incident)
	if i == nil || i.Closed == nil {
		p.plan.WakeFor(q, time.Time{})
		return
	}
	at := i.Closed.Add(Kept)
	if at.After(p.now) {
		p.plan.WakeFor(q, at)
		return
	}
	p.plan.WakeFor(q, time.Time{})
	p.plan.Do(state.Remove(i, ""))
	p.gone = append(p.gone, i)
}

// forget removes the oldest closed incidents beyond the limit.
func (p *pass) forget() {
	left := len(p.closed) - len(p.gone)
	if left <= MostClosed {
		return
	}
	slices.SortStableFunc(p.closed, func(a, b *fleet.Incident) int { return a.Closed.Compare(b.Closed.Time) })
	for _, i := range p.closed {
		if left <= MostClosed {
			return
		}
		if slices.Contains(p.gone, i) || left <= MostUntold && awaited(i) {
			continue
		}
		p.plan.Do(state.Remove(i, ""))
		p.plan.Wake(state.KeyOf(i), time.Time{})
		left--
	}
}
