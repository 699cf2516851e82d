package rollout

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// by returns the name by which a turn requests its drain.
func (p *pass) by(rollout string) string { return p.words.rollout + " " + rollout }

// start gives a node its turn. If that disrupts its pods, it cordons and drains the node first.
func (p *pass) start(r *fleet.Rollout, node string) {
	n := p.s.Node(node).DeepCopy()
	turn := &state.FirmwareAssignment{Rollout: r.Name, Digest: r.Status.Digest, Step: fleet.FirmwareTrying,
		Since: metav1.NewTime(p.now)}
	if !p.load.disrupts() {
		p.do(p.about(n, p.allowed(r, node)).Event(p.words.allowed))
		p.setTurn(node, turn)
		return
	}
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[state.DrainAnnotation] = state.DrainOrder{By: p.by(r.Name)}.String()
	n.Spec.Unschedulable = true
	p.do(state.Put(n, fmt.Sprintf("node %s has its turn in %s", node, p.by(r.Name))).Event(p.words.turn))
	turn.Step = fleet.FirmwareDraining
	p.setTurn(node, turn)
}

// allowed is the event of a node that may begin.
func (p *pass) allowed(r *fleet.Rollout, node string) string {
	may := p.words.may
	if r.Status.Undoing {
		may = p.words.mayUndo
	}
	return fmt.Sprintf("node %s %s %s", node, may, p.by(r.Name))
}

// release ends a node's turn if it has one, and uncordons the node if the turn cordoned it: the
// drain names its requester. notBefore is set if the turn ended before the device began: the next
// one may begin then.
func (p *pass) release(node, why string, notBefore time.Time) {
	turn := p.assignment(node)
	if turn.Step == "" {
		return
	}
	ended := fmt.Sprintf("the turn of node %s in %s ended: %s", node, p.by(turn.Rollout), why)
	switch n := p.s.Node(node); {
	case n == nil:
	case !p.load.disrupts():
		p.do(p.about(n, ended).Event(p.words.ended))
	default:
		n = n.DeepCopy()
		st := state.DrainStatusOf(n)
		own := st != nil && st.By == p.by(turn.Rollout) // an uncordoned node has no drain status any more
		if o, err := state.ParseDrainOrder(n.Annotations[state.DrainAnnotation]); err == nil && o.By == p.by(turn.Rollout) {
			delete(n.Annotations, state.DrainAnnotation)
			own = true
		}
		if _, others := n.Annotations[state.DrainAnnotation]; own && !others { // a drain order of another user stays
			n.Spec.Unschedulable = false
			delete(n.Annotations, state.DrainStatusAnnotation)
		}
		p.do(state.Put(n, ended).Event(p.words.ended))
	}
	next := &state.FirmwareAssignment{Rollout: turn.Rollout, Digest: turn.Digest}
	if !notBefore.IsZero() {
		next.NotBefore, next.Why = state.Ceil(notBefore), why
	}
	p.setTurn(node, next)
}

// step moves a turn to its next step.
func (p *pass) step(node string, to fleet.FirmwareNodeState) {
	p.change(node, func(turn *state.FirmwareAssignment) { turn.Step, turn.Since = to, metav1.NewTime(p.now) })
}

// change changes a node's part in its rollout.
func (p *pass) change(node string, do func(*state.FirmwareAssignment)) {
	p.record(node, "", func(rec *state.Record) { do(*p.load.turn(rec)) })
}

// advanceAll advances every turn as far as possible.
func (p *pass) advanceAll() {
	for _, w := range p.work {
		for _, node := range w.nodes {
			for range 3 { // a turn has at most three steps
				if !p.advance(w, node) {
					break
				}
			}
		}
	}
}

// advance moves one turn one step, and tells whether it did.
func (p *pass) advance(w *work, node string) bool {
	turn, n := p.assignment(node), p.s.Node(node)
	if turn.Step == "" {
		p.at(turn.NotBefore.Time)
		return false
	}
	since := turn.Since.Time
	if listening := p.s.Listening(); listening.After(since) { // before that the hub could neither receive nor send
		since = listening
	}
	f := p.load.report(p.s.Record(node))
	switch at, why := p.load.reported(p.s.Record(node), w.r); {
	case at == wanted(w.r):
		done := p.words.done
		if w.r.Status.Undoing {
			done = "its device has " + p.words.previous
		}
		p.release(node, done, time.Time{})
		if turn.Step != fleet.FirmwareDraining { // a draining node kept it before it was allowed to begin
			p.change(node, func(turn *state.FirmwareAssignment) { turn.Done, turn.Retry = true, w.r.Spec.Retry })
		}
		return true
	case at == fleet.FirmwareBad && w.r.Status.Undoing: // once its turn ends the device will report success
		p.giveUp(w, node, "its device cannot go back: "+cmp.Or(why, "it gives no reason"))
		return true
	case at == fleet.FirmwareBad:
		p.release(node, p.words.notDone+": "+cmp.Or(why, "it gives no reason"), time.Time{})
		return true
	case at == fleet.FirmwareUnsupported:
		p.release(node, "its device does not support it: "+cmp.Or(why, "it gives no reason"), time.Time{})
		return true
	case turn.Step == fleet.FirmwareDraining:
		if why, until := p.blockedBy(w, node, at); why != "" {
			p.release(node, why, p.now.Add(retryAfter))
			p.at(until)
			return true
		}
		st := state.DrainStatusOf(n)
		_, ordered := n.Annotations[state.DrainAnnotation]
		switch {
		case ordered || st.Going():
			return false // package drain ends it
		case st == nil || !n.Spec.Unschedulable:
			p.release(node, "it was uncordoned", p.now.Add(retryAfter))
		case st.State != state.Drained:
			p.release(node, fmt.Sprintf("it could not be drained: %s: %s", st.State, st.Why), p.now.Add(retryAfter))
		default:
			p.do(p.about(n, p.allowed(w.r, node)).Event(p.words.allowed))
			p.step(node, fleet.FirmwareTrying)
		}
		return true
	case turn.Step == fleet.FirmwareTrying:
		within := w.trial
		if w.r.Status.Undoing && idle(f) && state.ReadyOf(n) == corev1.ConditionTrue {
			within = undoBegins
		}
		if p.now.Before(since.Add(within)) {
			p.at(since.Add(within))
			return false
		}
		p.do(p.about(n, fmt.Sprintf("node %s has not reported within %s how its turn in %s ended", node, within,
			p.by(w.r.Name))).Warning(p.words.overdue))
		p.late(w, node)
		return true
	case !p.now.Before(since.Add(cancelDelay)) && state.ReadyOf(n) == corev1.ConditionTrue &&
		idle(f):
		p.giveUp(w, node, "its device did not begin in time")
		return true
	}
	p.at(since.Add(cancelDelay))
	return false
}

// giveUp ends a node's turn, and allows no other until the rollout's retry is raised.
func (p *pass) giveUp(w *work, node, why string) {
	p.release(node, why, time.Time{})
	p.change(node, func(turn *state.FirmwareAssignment) { turn.Failed, turn.Retry = why, w.r.Spec.Retry })
}

// late goes on with a turn whose result is overdue. What disrupts a site keeps it: the device may
// be in the middle of it. Otherwise the turn ends, and the device holds nobody up.
func (p *pass) late(w *work, node string) {
	switch {
	case p.load.disrupts():
		p.step(node, fleet.FirmwareOverdue)
	case state.ReadyOf(p.s.Node(node)) == corev1.ConditionUnknown:
		p.release(node, "its device does not answer", time.Time{})
		p.change(node, func(turn *state.FirmwareAssignment) { turn.Silent = true })
	default:
		p.giveUp(w, node, "its device answers, and has not reported in time how its turn ended")
	}
}

// about returns a change of a node's record that only makes an event.
func (p *pass) about(n *corev1.Node, why string) state.Change {
	c := state.Put(p.s.Record(n.Name).DeepCopy(), why)
	c.About = n
	return c
}

// idle tells whether a device reports that it tries nothing.
func idle(f *state.FirmwareReport) bool {
	return f == nil || f.State == "Staged" || f.State == "AwaitingWindow" || f.State == "UpToDate"
}

// blockedBy returns why a node with its turn may not try now, "" if it may, and when that may
// change.
func (p *pass) blockedBy(w *work, node string, at fleet.FirmwareNodeState) (string, time.Time) {
	n := p.s.Node(node)
	switch {
	case w.problem != "":
		return w.problem, time.Time{}
	case w.r.Spec.Paused:
		return "the rollout is paused", time.Time{}
	case w.stale:
		return p.superseded(w), time.Time{}
	case at != begins(w.r):
		return "its device no longer has the configuration staged", time.Time{}
	case state.ReadyOf(n) != corev1.ConditionTrue:
		return "it is not ready", time.Time{}
	}
	if why := p.s.Record(node).Withheld(); why != "" {
		return why, time.Time{}
	}
	if why := p.stopped(w); why != "" {
		return why, time.Time{}
	}
	return p.siteClosed(w.r, state.SiteOf(n))
}

// siteClosed returns why no node of a site may begin now, "" if it may, and when that changes.
func (p *pass) siteClosed(r *fleet.Rollout, name string) (why string, until time.Time) {
	site := p.s.Site(name)
	switch {
	case site == nil || site.Status.State == "":
		return fmt.Sprintf("the state of site %s is not known yet", name), time.Time{}
	case site.Status.State != fleet.SiteNormal:
		return fmt.Sprintf("site %s is in %s", name, site.Status.State), time.Time{}
	}
	if m := site.Spec.Maintenance; m != nil && m.Until.After(p.now) {
		return fmt.Sprintf("site %s is in maintenance until %s", name, m.Until.UTC().Format(time.RFC3339)), m.Until.Time
	}
	if w := r.Spec.Window; w != nil {
		zone, err := time.LoadLocation(site.Annotations[fleet.AnnotationTimeZone])
		if err != nil {
			return fmt.Sprintf("site %s has an unknown time zone: annotation %s is %q", name,
				fleet.AnnotationTimeZone, site.Annotations[fleet.AnnotationTimeZone]), time.Time{}
		}
		open, next := w.Open(p.now.In(zone))
		p.at(next)
		if !open {
			return fmt.Sprintf("the window on site %s opens %s", name, when(next)), next
		}
	}
	return "", time.Time{}
}

func when(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format("Mon 2006-01-02 15:04 MST")
}
