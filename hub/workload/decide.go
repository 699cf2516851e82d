// Package workload decides which pods should exist: those that Deployments, ReplicaSets,
// ReplicationControllers, DaemonSets, StatefulSets, Jobs and CronJobs ask for, and none of
// those that nobody asks for any more. It makes the claims of a StatefulSet's pods, and keeps
// the counts that people and kubectl read in a workload's status, and in that of a
// PodDisruptionBudget.
//
// It follows Kubernetes' controllers in rule, reason and name. It never says
// where a pod runs (package schedule does; a DaemonSet's pod names its node in
// its affinity) and never sends a pod away because of its node (package eviction
// does). It writes only what differs.
package workload

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// Defaults of the settings that are left zero.
const (
	DefaultQuarantine = 40 * time.Second // Kubernetes' quarantine of pods whose node is gone
	DefaultEventTTL   = 24 * time.Hour
	DefaultEventLimit = 10_000
)

// A Decider decides which pods should exist.
type Decider struct {
	// Admit gives a pod the defaults and default tolerations that it would have
	// got through the API. Nil: none.
	Admit func(*corev1.Pod)
	// Complete gives such a pod, or a claim, what the fleet and its namespace say of it, and says
	// why it may not be. Nil: nothing.
	Complete func(state.Object, state.Snapshot) error
	// Charge returns the changes by which the quotas of its namespace count it, and says why it
	// may not be. Nil: nothing counts it.
	Charge func(state.Object, state.Snapshot, time.Time) ([]state.Change, error)
	// Refuse says why such a pod may not be created in its namespace; empty: it
	// may. Nil: every one may.
	Refuse func(*corev1.Pod, *corev1.Namespace) string
	// Silence is how long the hub listens, after its start or after it stood still, before it
	// ends what is late: a device that lives has said in that time what has become of its pods.
	Silence state.Timeouts
	// FinishedPods is how many finished pods are kept; 0 or less keeps all.
	FinishedPods int
	// Quarantine is how long the pods of a node that is gone are kept, in case
	// it comes back. Zero: DefaultQuarantine.
	Quarantine time.Duration
	// EventTTL is how long events are kept, and EventLimit how many. Zero: the
	// defaults.
	EventTTL   time.Duration
	EventLimit int
}

// Decide answers with the pods to create and to delete, and with the status of
// the workloads that the subjects concern.
func (d Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan {
	p := &pass{Decider: d, s: s, base: s, now: now, born: map[state.Key]bool{}, charged: set{}}
	w := p.workOf(subjects)
	p.remember(w)
	p.collect(w)
	for _, k := range w.replicaSets.sorted() {
		p.replicaSet(k, w.orphans[k], w.turns[k])
	}
	for _, k := range w.controllers.sorted() {
		p.controller(k, w.orphans[k], w.turns[k])
	}
	for _, k := range w.stateful.sorted() {
		p.statefulSet(k, w.orphans[k], w.turns[k])
	}
	for _, k := range w.deployments.sorted() {
		p.deployment(k, w.orphans[k])
	}
	for _, k := range w.daemons.sorted() {
		p.daemonSet(k, w.daemonWork[k])
	}
	for _, k := range w.cronJobs.sorted() {
		p.cronJob(k)
	}
	for _, k := range w.jobs.sorted() {
		p.job(k, w.orphans[k], w.turns[k])
	}
	for _, k := range w.budgets.sorted() {
		p.budget(k, w.turns[k])
	}
	for _, k := range w.quiet.sorted() {
		p.forgetLoss(k)
	}
	for _, k := range p.charged.sorted() {
		if q := p.s.Get(k); q != nil {
			p.plan.Do(state.Put(q, ""))
		}
	}
	return p.plan
}

// A pass is one call of Decide. Each subject sees what those before it decided.
type pass struct {
	Decider
	base state.Snapshot // as it was at first
	s    state.Snapshot // with the plan's changes so far
	now  time.Time
	plan state.Plan

	// born are the objects that this pass creates. They have no uid yet, so they
	// own nothing and are left alone until the next round sees them.
	born    map[state.Key]bool
	named   uint64                      // names made so far
	given   map[state.Key]bool          // names that are given away in this pass
	waiting map[state.Key][]*corev1.Pod // see waitingDaemonPods
	strays  map[string][]*corev1.Pod    // see straysIn
	charged set                         // quotas that count what this pass creates
}

// do adds changes to the plan, and to what later subjects of the pass see.
func (p *pass) do(changes ...state.Change) {
	seen := make([]state.Change, 0, len(changes))
	for _, c := range changes {
		k := state.KeyOf(c.Object)
		if p.born[k] {
			continue
		}
		p.plan.Do(c)
		if !c.Delete && p.base.Get(k) == nil {
			// The uid that it gets here is not the one that it will have.
			p.born[k] = true
			c.Object = c.Object.DeepCopyObject().(state.Object)
			p.charge(c.Object)
		}
		seen = append(seen, c)
	}
	p.s, _ = state.Apply(p.s, seen)
}

// wake asks for the subject again at t, if that lies ahead.
func (p *pass) wake(k state.Key, t time.Time) { p.wakeFor(state.About(k), t) }

func (p *pass) wakeFor(q state.Subject, t time.Time) {
	if t.After(p.now) {
		p.plan.WakeFor(q, t)
	}
}

// hurry returns the moment for something that costs a walk over n objects: the
// zero time, which means now, or in a large fleet the next full second or seconds,
// so that its cost stays below a hundredth of a core however much happens. turn
// is whether that moment has come.
func (p *pass) hurry(n int, turn bool) time.Time {
	if turn {
		return time.Time{}
	}
	return turnOf(n, p.now)
}

// turnOf is the moment for a walk over n objects, as hurry has it.
func turnOf(n int, now time.Time) time.Time {
	if n <= state.LargeSet {
		return time.Time{}
	}
	return until(now, time.Duration(1+n/10_000)*time.Second)
}

// later puts the work on an object that costs a walk over n others off, unless its turn has
// come, and says whether it has.
func (p *pass) later(k state.Key, n int, turn bool) bool {
	at := p.hurry(n, turn)
	if at.IsZero() {
		return false
	}
	p.again(k, at)
	return true
}

// again asks at t for the turn of what may be put off.
func (p *pass) again(k state.Key, t time.Time) {
	p.wakeFor(state.Subject{Key: k, Part: partTurn}, t)
}

// burst is how many pods a workload creates in one pass (a ReplicaSet: in one second);
// the others come later, a burst after the other, so that the hub hears its devices in
// between.
const (
	burst     = 1_000
	burstTime = 250 * time.Millisecond
)

// until is the next moment of a grid.
func until(now time.Time, grid time.Duration) time.Time { return now.Truncate(grid).Add(grid) }

// stamp is the moment of the pass as objects carry it, in whole seconds.
func (p *pass) stamp() metav1.Time { return metav1.NewTime(p.now.Truncate(time.Second)) }

// dying tells whether the namespace is being emptied: nothing is created in it.
func (p *pass) dying(namespace string) bool {
	ns := p.s.Get(state.Key{Kind: state.Namespaces, Name: namespace})
	return ns != nil && ns.GetDeletionTimestamp() != nil
}
