// Package workload decides which pods exist: it creates and deletes the pods of Deployments,
// ReplicaSets, ReplicationControllers, DaemonSets, StatefulSets, Jobs and CronJobs.
//
// It also creates the claims of StatefulSets, collects garbage, and writes the status of workloads,
// quotas and PodDisruptionBudgets. Its rules, reasons and names are those of Kubernetes'
// controllers. It never chooses a node (package schedule) and never evicts a pod because of its
// node (package eviction). The control loop calls it. It writes only objects that change.
package workload

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// Defaults of zero settings.
const (
	DefaultQuarantine = 40 * time.Second // how long Kubernetes keeps pods of deleted nodes
	DefaultEventTTL   = 24 * time.Hour
	DefaultEventLimit = 10_000
)

// A Decider decides which pods should exist.
type Decider struct {
	// Admit gives a pod the defaults and default tolerations that the API gives to new pods. Nil:
	// no defaults.
	Admit func(*corev1.Pod)
	// Complete fills in the fields of a pod or claim that come from the fleet and the namespace, or
	// returns why the object is refused. Nil: nothing is filled in.
	Complete func(state.Object, state.Snapshot) error
	// Charge returns the changes of the quotas that count an object, or why a quota refuses it.
	// Nil: no quotas.
	Charge func(state.Object, state.Snapshot, time.Time) ([]state.Change, error)
	// Refuse returns why a pod may not be created in its namespace; "" if it may. Nil: every pod
	// may.
	Refuse func(*corev1.Pod, *corev1.Namespace) string
	// Silence holds how long the hub waits for reports after a start or a pause, before it acts on
	// a deadline. A live device has reported its pods by then.
	Silence state.Timeouts
	// FinishedPods limits how many finished pods are kept; 0 or less keeps all.
	FinishedPods int
	// Quarantine is how long the pods of a deleted node are kept, because the node may return.
	// Zero: DefaultQuarantine.
	Quarantine time.Duration
	// EventTTL is how long events are kept, and EventLimit how many. Zero: the defaults.
	EventTTL   time.Duration
	EventLimit int
}

// Decide returns the pods to create and delete, and the status of the workloads that the subjects
// concern.
func (d Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan {
	p := &pass{Decider: d, s: s, base: s, now: now, born: map[state.Key]bool{}, charged: keySet{}}
	w := p.workOf(subjects)
	p.storeLosses(w)
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
		p.expireLoss(k)
	}
	for _, k := range p.charged.sorted() {
		if q := p.s.Get(k); q != nil {
			p.plan.Do(state.Put(q, ""))
		}
	}
	return p.plan
}

// A pass is one call of Decide. Each subject sees the changes for the subjects before it.
type pass struct {
	Decider
	base state.Snapshot // at the start of the pass
	s    state.Snapshot // with the changes so far
	now  time.Time
	plan state.Plan

	// born are the objects that this pass creates. They have no UID yet, so no object can have them
	// as owner, and the next pass handles them.
	born    map[state.Key]bool
	named   uint64                      // number of generated names
	given   map[state.Key]bool          // names that this pass has given to new objects
	waiting map[state.Key][]*corev1.Pod // see waitingDaemonPods
	strays  map[string][]*corev1.Pod    // see straysIn
	charged keySet                      // quotas that count objects created in this pass
}

// do applies changes to the plan and to the snapshot that later subjects see.
func (p *pass) do(changes ...state.Change) {
	seen := make([]state.Change, 0, len(changes))
	for _, c := range changes {
		k := state.KeyOf(c.Object)
		if p.born[k] {
			continue
		}
		p.plan.Do(c)
		if !c.Delete && p.base.Get(k) == nil {
			// The object's final UID is different.
			p.born[k] = true
			c.Object = c.Object.DeepCopyObject().(state.Object)
			p.charge(c.Object)
		}
		seen = append(seen, c)
	}
	p.s, _ = state.Apply(p.s, seen)
}

// wake schedules the subject for t, unless t has passed.
func (p *pass) wake(k state.Key, t time.Time) { p.wakeFor(state.About(k), t) }

func (p *pass) wakeFor(q state.Subject, t time.Time) {
	if t.After(p.now) {
		p.plan.WakeFor(q, t)
	}
}

// walkTime returns when to do work that walks n objects; zero means now. In a large fleet it is the
// next full second or later, so that such work uses less than a hundredth of a core. turn says that
// this moment has come.
func (p *pass) walkTime(n int, turn bool) time.Time {
	if turn {
		return time.Time{}
	}
	return nextTurn(n, p.now)
}

// nextTurn returns walkTime's result before the turn.
func nextTurn(n int, now time.Time) time.Time {
	if n <= state.LargeSet {
		return time.Time{}
	}
	return nextMultiple(now, time.Duration(1+n/10_000)*time.Second)
}

// deferWalk defers the work on an object that walks n others, unless its turn has come. It reports
// whether it deferred the work.
func (p *pass) deferWalk(k state.Key, n int, turn bool) bool {
	at := p.walkTime(n, turn)
	if at.IsZero() {
		return false
	}
	p.wakeTurn(k, at)
	return true
}

// wakeTurn schedules the deferred work on an object for t.
func (p *pass) wakeTurn(k state.Key, t time.Time) {
	p.wakeFor(state.Subject{Key: k, Part: partTurn}, t)
}

// burst is how many pods a workload creates in one pass (a ReplicaSet: in one second). The
// remaining pods follow in further bursts, so that the hub can process reports in between.
const (
	burst     = 1_000
	burstTime = 250 * time.Millisecond
)

// nextMultiple returns the next multiple of grid after now.
func nextMultiple(now time.Time, grid time.Duration) time.Time { return now.Truncate(grid).Add(grid) }

// stamp returns the pass's time in whole seconds, the precision of objects.
func (p *pass) stamp() metav1.Time { return metav1.NewTime(p.now.Truncate(time.Second)) }

// terminating reports whether the namespace is terminating. Nothing is created in such a namespace.
func (p *pass) terminating(namespace string) bool {
	ns := p.s.Get(state.Key{Kind: state.Namespaces, Name: namespace})
	return ns != nil && ns.GetDeletionTimestamp() != nil
}
