// Package rollout decides which device gets which boot configuration or agent next.
//
// A FirmwareRollout or AgentRollout selects nodes. Every selected device is sent the content (see
// payload), so that it can stage it, but only a node with its turn may try it. A turn for a boot
// configuration cordons and drains the node first (package drain). It ends when the device has kept
// the content or gone back. The package neither tries nor signs anything: the device's packages
// firmware and upgrade do. Its state survives a restart: it is in the node's state.Record and the
// rollout's status.
package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A Decider carries out rollouts.
type Decider struct{}

// Durations of a turn.
const (
	retryAfter    = 10 * time.Minute // after a turn that ended before its trial began
	afterDeadline = 30 * time.Minute // after a trial's judgement, until a device that says nothing is overdue
	undoBegins    = 5 * time.Minute  // until a device that does not begin to undo is overdue
	cancelDelay   = 2 * time.Minute  // until an overdue device has received that it may not begin
	coalesceAbove = 500              // number of nodes from which changes are looked at once a second
)

// allRollouts is the subject of all rollouts together: only one site may be at risk. fleetChanged
// means that a node or site has changed.
var (
	allRollouts  = state.Subject{Key: state.Key{Kind: state.FirmwareRollouts}}
	fleetChanged = []state.Subject{{Key: allRollouts.Key, Part: "Nodes"}}
)

// Touches returns the rollouts' subject for changes that may let one go on.
func (Decider) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.FirmwareRollouts, state.AgentRollouts, state.BoardProfiles, state.Advertisements:
		return []state.Subject{allRollouts}
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		if old == nil || next == nil || old.Spec.Unschedulable != next.Spec.Unschedulable ||
			state.ReadyOf(old) != state.ReadyOf(next) ||
			state.HasDrainAnnotation(old) != state.HasDrainAnnotation(next) ||
			old.Annotations[state.DrainStatusAnnotation] != next.Annotations[state.DrainStatusAnnotation] ||
			!apiequality.Semantic.DeepEqual(old.Labels, next.Labels) || !sameConditions(old, next) {
			return fleetChanged
		}
	case state.Records:
		old, _ := c.Old.(*state.Record)
		next, _ := c.New.(*state.Record)
		if old == nil || next == nil || !apiequality.Semantic.DeepEqual(old.Firmware, next.Firmware) ||
			!apiequality.Semantic.DeepEqual(old.Assigned, next.Assigned) ||
			!apiequality.Semantic.DeepEqual(old.Upgrade, next.Upgrade) || old.AgentVersion != next.AgentVersion ||
			!apiequality.Semantic.DeepEqual(old.Upgrading, next.Upgrading) || old.Withheld() != next.Withheld() {
			return fleetChanged
		}
	case state.Sites:
		old, _ := c.Old.(*fleet.Site)
		next, _ := c.New.(*fleet.Site)
		if old == nil || next == nil || old.Status.State != next.Status.State ||
			!apiequality.Semantic.DeepEqual(old.Spec.Maintenance, next.Spec.Maintenance) ||
			old.Annotations[fleet.AnnotationTimeZone] != next.Annotations[fleet.AnnotationTimeZone] {
			return fleetChanged
		}
	}
	return nil
}

// sameConditions tells whether all conditions of two nodes have the same status.
func sameConditions(a, b *corev1.Node) bool {
	return len(a.Status.Conditions) == len(b.Status.Conditions) &&
		!slices.ContainsFunc(a.Status.Conditions, func(c corev1.NodeCondition) bool {
			d := state.NodeCondition(b, c.Type)
			return d == nil || d.Status != c.Status
		})
}

// Subjects returns the one subject of all rollouts.
func (Decider) Subjects(state.Snapshot) []state.Subject { return []state.Subject{allRollouts} }

// Decide advances every rollout.
func (Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	all := slices.Contains(subjects, allRollouts)
	if !all && s.Len(state.FirmwareRollouts)+s.Len(state.AgentRollouts) == 0 {
		return plan
	}
	if !all && s.Len(state.Nodes) > coalesceAbove {
		plan.WakeFor(allRollouts, now.Truncate(time.Second).Add(time.Second))
		return plan
	}
	p := &pass{s: s, now: now, plan: &plan}
	for _, p.load = range payloads {
		p.words, p.work, p.trying = p.load.words(), nil, nil
		p.assign()
		p.advanceAll()
		for _, w := range p.work {
			p.begin(w)
		}
		for _, w := range p.work {
			p.setStatus(w)
		}
	}
	plan.WakeFor(allRollouts, p.wake)
	return plan
}

// A pass is one call of Decide.
type pass struct {
	s    state.Snapshot
	now  time.Time
	plan *state.Plan
	wake time.Time

	load  payload
	words words
	work  []*work

	trying []string // nodes whose device reports a trial, with or without a turn
}

// work is one rollout with its nodes.
type work struct {
	r       *fleet.Rollout // with a new status
	nodes   []string       // selected nodes, by name
	older   string         // an older rollout that selects some of the same nodes
	problem string         // why it can do nothing
	waiting string         // what it waits for: the first reason found
	trial   time.Duration  // time for a device to report the result of its trial
	stale   bool           // its profile has changed; the change applies when no node has a turn
}

func (p *pass) do(c ...state.Change) {
	p.plan.Do(c...)
	p.s, _ = state.Apply(p.s, c)
}

func (p *pass) at(t time.Time) {
	if t.After(p.now) && (p.wake.IsZero() || t.Before(p.wake)) {
		p.wake = t
	}
}

// assign assigns each node to the oldest rollout that selects it, and releases the others.
func (p *pass) assign() {
	for r := range state.Each[state.Object](p.s, p.load.kind(), "") {
		r := fleet.RolloutOf(r).DeepCopy()
		r.Default()
		p.work = append(p.work, &work{r: r})
	}
	slices.SortFunc(p.work, func(a, b *work) int {
		return cmp.Or(a.r.CreationTimestamp.Compare(b.r.CreationTimestamp.Time), strings.Compare(a.r.Name, b.r.Name))
	})
	selectors := make([]labels.Selector, len(p.work))
	for i, w := range p.work {
		selectors[i] = labels.Nothing()
		sel, err := metav1.LabelSelectorAsSelector(w.r.Spec.Selector)
		switch {
		case err != nil:
			w.problem = fmt.Sprintf("its selector is invalid: %v", err)
		case w.r.DeletionTimestamp != nil:
			w.problem = "it is being deleted"
		default:
			selectors[i] = sel
		}
	}
	for n := range p.s.Nodes() {
		rec := p.s.Record(n.Name)
		if rec == nil {
			continue
		}
		var of *work
		if p.load.stray(rec) {
			p.trying = append(p.trying, n.Name)
		}
		for i, w := range p.work {
			switch {
			case of != nil && w.older != "" || !p.selects(w, selectors[i], n, rec):
			case of == nil:
				of = w
			default:
				w.older = of.r.Name
			}
		}
		switch a := *p.load.turn(rec); {
		case of == nil && a == nil:
		case of == nil:
			p.release(n.Name, "it does not belong to "+p.by(a.Rollout)+" any more", time.Time{})
			p.setTurn(n.Name, nil)
		case a == nil || a.Rollout != of.r.Name:
			if a != nil {
				p.release(n.Name, "it belongs to "+p.by(of.r.Name)+" now", time.Time{})
			}
			p.setTurn(n.Name, &state.FirmwareAssignment{Rollout: of.r.Name})
		}
		if of != nil {
			of.nodes = append(of.nodes, n.Name)
		}
	}
	for _, w := range p.work {
		p.target(w)
		w.trial = p.load.trial(w.r)
	}
}

// selects tells whether a rollout selects a node, without regard to other rollouts.
func (p *pass) selects(w *work, selector labels.Selector, n *corev1.Node, rec *state.Record) bool {
	return n.DeletionTimestamp == nil && selector.Matches(labels.Set(n.Labels)) &&
		p.load.selects(w.r, n) && p.hasCondition(w.r, n, rec)
}

// hasCondition tells whether a node has the condition that the rollout selects by, or had it when
// it was assigned.
func (p *pass) hasCondition(r *fleet.Rollout, n *corev1.Node, rec *state.Record) bool {
	if turn := *p.load.turn(rec); r.Spec.Condition == "" || turn != nil && turn.Rollout == r.Name {
		return true
	}
	c := state.NodeCondition(n, corev1.NodeConditionType(r.Spec.Condition))
	return c != nil && c.Status == corev1.ConditionFalse
}

// target updates the configuration of a rollout from its profile. The old one stays while a node
// has its turn to try it.
func (p *pass) target(w *work) {
	if w.problem != "" {
		return
	}
	if st := w.r.Status; st.Undoing != w.r.Spec.Undo {
		if w.stale = p.underWay(w); w.stale {
			return
		}
		st.Undoing, st.Batches = w.r.Spec.Undo, nil
		for _, node := range w.nodes { // a node that failed in one direction may work in the other
			if turn := p.assignment(node); turn.Failed != "" || turn.Done || !turn.NotBefore.IsZero() {
				p.setTurn(node, &state.FirmwareAssignment{Rollout: turn.Rollout, Digest: turn.Digest})
			}
		}
	}
	if w.r.Status.Undoing { // the undo uses the configuration that was kept, even if the profile has changed
		if w.r.Status.Digest == "" {
			w.problem = "there is nothing to undo: no node has received a configuration"
		}
		p.assigned(w)
		return
	}
	digest, document, problem := p.load.content(p.s, w.r)
	if w.problem = problem; problem != "" {
		return
	}
	switch st := w.r.Status; {
	case document == st.Document && digest == st.Digest:
	case p.underWay(w):
		w.stale = true
		return
	default:
		st.Digest, st.Document, st.Batches = digest, document, nil
	}
	p.assigned(w)
}

// underWay tells whether a node of a rollout has its turn.
func (p *pass) underWay(w *work) bool {
	return slices.ContainsFunc(w.nodes, func(name string) bool { return p.assignment(name).Step != "" })
}

// assigned writes the rollout's configuration into the record of each of its nodes.
func (p *pass) assigned(w *work) {
	for _, node := range w.nodes {
		if p.assignment(node).Digest != w.r.Status.Digest {
			p.record(node, "", func(rec *state.Record) {
				*p.load.turn(rec) = &state.FirmwareAssignment{Rollout: w.r.Name, Digest: w.r.Status.Digest}
				p.load.published(rec, p.now)
			})
		}
	}
}

// assignment returns a node's part in its rollout.
func (p *pass) assignment(node string) state.FirmwareAssignment {
	if rec := p.s.Record(node); rec != nil && *p.load.turn(rec) != nil {
		return **p.load.turn(rec)
	}
	return state.FirmwareAssignment{}
}

// setTurn replaces a node's part in its rollout.
func (p *pass) setTurn(node string, turn *state.FirmwareAssignment) {
	p.record(node, "", func(rec *state.Record) { *p.load.turn(rec) = turn })
}

// record changes a node's record.
func (p *pass) record(node, why string, change func(*state.Record)) {
	rec := p.s.Record(node).DeepCopy()
	change(rec)
	p.do(state.Put(rec, why))
}
