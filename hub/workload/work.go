package workload

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A keySet is a set of keys, iterated in the order of kind, namespace and name.
type keySet map[state.Key]bool

func (s keySet) sorted() []state.Key { return slices.SortedFunc(maps.Keys(s), byKey) }

func byKey(a, b state.Key) int {
	return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name))
}

// work lists the objects that a pass has to handle.
type work struct {
	deployments, replicaSets, daemons, budgets keySet
	jobs, cronJobs, stateful, controllers      keySet

	turns      keySet // budgets and large workloads whose deferred work is due
	daemonWork map[state.Key]*daemonWork
	orphans    map[state.Key][]state.Object // pods or ReplicaSets without a controller, by possible new owner

	check      keySet                       // objects whose owners, finalizers or node may be removed
	namespaces keySet                       // namespaces that may be empty now
	lost       keySet                       // pods whose quarantine is over
	losses     map[state.Key]*state.Backoff // losses to store
	quiet      keySet                       // losses that may have expired
	nodes      keySet                       // nodes that may be deleted or out of service
	finished   bool                         // counting finished pods is due
	events     bool                         // walking the events is due
}

// A daemonWork is the work on a DaemonSet.
type daemonWork struct {
	nodes  map[string]bool // nodes to check
	all    bool            // check every node
	revise bool            // the template may differ from the newest revision
	turn   bool            // the walk over all nodes is due
	adopt  []state.Object  // pods and revisions without a controller that it may adopt
}

// workOf returns the work that the subjects of a pass require.
func (p *pass) workOf(subjects []state.Subject) *work {
	w := &work{
		deployments: keySet{}, replicaSets: keySet{}, daemons: keySet{}, budgets: keySet{}, turns: keySet{}, jobs: keySet{},
		cronJobs: keySet{},
		stateful: keySet{}, controllers: keySet{},
		daemonWork: map[state.Key]*daemonWork{}, orphans: map[state.Key][]state.Object{},
		check: keySet{}, namespaces: keySet{}, lost: keySet{}, nodes: keySet{},
		losses: map[state.Key]*state.Backoff{}, quiet: keySet{},
	}
	for _, q := range subjects {
		switch {
		case q.Name == "":
			p.kind(w, q)
		case q.Part == "":
			p.object(w, q)
		default:
			p.part(w, q)
		}
	}
	return w
}

// kind adds the work for a whole kind.
func (p *pass) kind(w *work, q state.Subject) {
	switch {
	case q == allPods:
		w.finished = true
	case q == allEvents:
		w.events = true
	case q.Kind == state.Pods:
		p.wakeFinished()
	default:
		p.eventMade()
	}
}

// object adds the work on an object that has changed or that is part of a full check.
func (p *pass) object(w *work, q state.Subject) {
	if was, ok := q.Was.(podChange); ok {
		p.podChanged(w, q.Key, was)
		return
	}
	w.add(q.Key)
	o := p.s.Get(q.Key)
	p.mayEnd(w, q.Key, o)
	switch o := o.(type) {
	case *appsv1.DaemonSet:
		w.daemon(q.Key)
	case *appsv1.ReplicaSet:
		p.offer(w, o)
	case *corev1.Pod:
		p.offer(w, o)
		p.quarantine(o)
	}
	if q.Kind == state.Claims {
		p.claimed(w, q.Key)
	}
}

// part adds the work on a part of an object.
func (p *pass) part(w *work, q state.Subject) {
	switch q.Part {
	case partFamily:
		k, _ := q.Was.(family)
		p.addFamily(w, k)
	case partAdopt:
		p.seekOrphans(w, q.Key)
	case partTemplate:
		d := w.daemon(q.Key)
		d.all, d.revise = true, true
	case partRevision:
		w.daemon(q.Key).revise = true
	case partTurn:
		if q.Kind == state.DaemonSets {
			w.daemon(q.Key).turn = true
		} else {
			w.add(q.Key)
			w.turns[q.Key] = true
		}
	case partPods:
		w.nodes[q.Key] = true
	case partReach:
		for pod := range p.s.PodsOn(q.Name) {
			p.addWaiting(w, pod)
		}
		p.prepulled(w, q.Name)
	case partSize: // recount all budgets: finding those of the workload costs as much
		for b := range state.Each[*policyv1.PodDisruptionBudget](p.s, state.PodDisruptionBudgets, q.Namespace) {
			w.budgets[state.KeyOf(b)] = true
		}
	case partDaemons:
		for ds := range state.Each[*appsv1.DaemonSet](p.s, state.DaemonSets, "") {
			w.daemon(state.KeyOf(ds)).nodes[q.Name] = true
		}
	case partLabels:
		for rs := range state.Each[*appsv1.ReplicaSet](p.s, state.ReplicaSets, q.Name) {
			w.add(state.KeyOf(rs))
		}
		for ds := range state.Each[*appsv1.DaemonSet](p.s, state.DaemonSets, q.Name) {
			w.daemon(state.KeyOf(ds)).all = true
		}
		for set := range state.Each[*appsv1.StatefulSet](p.s, state.StatefulSets, q.Name) {
			w.add(state.KeyOf(set))
		}
		for rc := range state.Each[*corev1.ReplicationController](p.s, state.Controllers, q.Name) {
			w.add(state.KeyOf(rc))
		}
		for j := range state.Each[*batchv1.Job](p.s, state.Jobs, q.Name) {
			w.add(state.KeyOf(j))
		}
	case partImages:
		p.prepulled(w, q.Name)
	case partLost:
		w.lost[q.Key] = true
	default: // a node's name
		w.daemon(q.Key).nodes[q.Part] = true
	}
}

func (w *work) add(k state.Key) {
	switch k.Kind {
	case state.Deployments:
		w.deployments[k] = true
	case state.ReplicaSets:
		w.replicaSets[k] = true
	case state.StatefulSets:
		w.stateful[k] = true
	case state.Controllers:
		w.controllers[k] = true
	case state.Jobs:
		w.jobs[k] = true
	case state.CronJobs:
		w.cronJobs[k] = true
	case state.PodDisruptionBudgets:
		w.budgets[k] = true
	case state.Losses:
		w.quiet[k] = true
	}
}

func (w *work) daemon(k state.Key) *daemonWork {
	d := w.daemonWork[k]
	if d == nil {
		d = &daemonWork{nodes: map[string]bool{}}
		w.daemonWork[k], w.daemons[k] = d, true
	}
	return d
}

// mayEnd adds an object, which may be nil, if it may have to be deleted with its owners or
// namespace, or if its last finalizer may be removed.
func (p *pass) mayEnd(w *work, k state.Key, o state.Object) {
	if o != nil && mayEnd(o) {
		w.check[k] = true
	}
	if ns := (state.Key{Kind: state.Namespaces, Name: k.Namespace}); k.Kind == state.Namespaces {
		w.namespaces[k] = true
	} else if k.Namespace != "" && p.terminating(k.Namespace) {
		w.namespaces[ns] = true
	}
}

// mayEnd reports whether an object may have to be deleted.
func mayEnd(o state.Object) bool {
	return len(o.GetOwnerReferences())+len(o.GetFinalizers()) > 0 || o.GetDeletionTimestamp() != nil
}

// addFamily adds the dependents of a deleted object, and the owners that may have waited for its
// deletion.
func (p *pass) addFamily(w *work, k family) {
	if k.gone != "" {
		for o := range p.s.Dependents(k.gone) {
			w.check[state.KeyOf(o)] = true
		}
	}
	for _, uid := range k.owners {
		if o := p.s.ByUID(uid); o != nil && o.GetDeletionTimestamp() != nil {
			w.check[state.KeyOf(o)] = true
		}
	}
}

// podChanged adds the work for a changed pod.
func (p *pass) podChanged(w *work, k state.Key, was podChange) {
	if was.next != nil {
		p.mayEnd(w, k, was.next)
	} else {
		p.mayEnd(w, k, nil)
	}
	if was.old != nil {
		var next state.Object
		if was.next != nil {
			next = was.next
		}
		family, _ := familyOf(was.old, next)
		p.addFamily(w, family)
	}
	p.countLoss(w, was.old, was.next)
	for _, o := range []*corev1.Pod{was.old, was.next} {
		if o != nil {
			p.addPod(w, o)
		}
	}
	if pod := cmp.Or(was.old, was.next); was.old == nil || was.next == nil { // another pod may get this name now
		if set := p.namesake(pod); set != nil {
			w.add(state.KeyOf(set))
		}
	}
	if was.next == nil {
		return
	}
	if was.old == nil || was.old.Spec.NodeName != was.next.Spec.NodeName {
		p.quarantine(was.next)
	}
	if state.Terminated(was.next) && (was.old == nil || !state.Terminated(was.old)) {
		p.wakeFinished()
	}
}

// addPod adds the budgets and the workload of a pod.
func (p *pass) addPod(w *work, pod *corev1.Pod) {
	for _, b := range state.BudgetsOf(p.s, pod) {
		w.budgets[state.KeyOf(b)] = true
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		if live := p.s.Pod(pod.Namespace, pod.Name); live != nil {
			p.offer(w, live)
		}
		return
	}
	switch owner := p.s.ByUID(ref.UID).(type) {
	case *appsv1.ReplicaSet:
		w.add(state.KeyOf(owner))
		if up := metav1.GetControllerOfNoCopy(owner); up != nil { // a Recreate Deployment waits for the last old pod
			if d := p.s.ByUID(up.UID); d != nil {
				w.add(state.KeyOf(d))
			}
		}
	case *appsv1.DaemonSet:
		d := w.daemon(state.KeyOf(owner))
		if node := targetOf(pod); node != "" {
			d.nodes[node] = true
		}
	case *appsv1.StatefulSet, *corev1.ReplicationController, *batchv1.Job:
		w.add(state.KeyOf(owner))
	}
}

// addWaiting adds the StatefulSet, or the Deployment with the strategy Recreate, that waits for a
// pod while its device is unreachable.
func (p *pass) addWaiting(w *work, pod *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return
	}
	switch owner := p.s.ByUID(ref.UID).(type) {
	case *appsv1.StatefulSet:
		w.add(state.KeyOf(owner))
	case *appsv1.ReplicaSet:
		if up := metav1.GetControllerOfNoCopy(owner); up != nil {
			if d, ok := p.s.ByUID(up.UID).(*appsv1.Deployment); ok &&
				d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
				w.add(state.KeyOf(d))
			}
		}
	}
}
