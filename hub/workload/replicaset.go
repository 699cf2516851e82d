package workload

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

var replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// A replicaKeeper keeps the number of pods of a ReplicaSet, or of a ReplicationController in the
// form of a ReplicaSet.
type replicaKeeper struct {
	*pass
	owner  state.Object
	kind   gvk
	source string
	rs     *appsv1.ReplicaSet
	with   func(*appsv1.ReplicaSetStatus) state.Object // returns the owner with another status
}

// replicaSet keeps the number of a ReplicaSet's pods. orphans are pods that it may adopt.
func (p *pass) replicaSet(k state.Key, orphans []state.Object, turn bool) {
	rs, ok := p.s.Get(k).(*appsv1.ReplicaSet)
	if !ok {
		return
	}
	r := replicaKeeper{pass: p, owner: rs, kind: replicaSetKind, source: "replicaset-controller", rs: rs}
	r.with = func(st *appsv1.ReplicaSetStatus) state.Object {
		next := rs.DeepCopy()
		next.Status = *st
		return next
	}
	r.keep(k, orphans, turn)
}

// keep creates and deletes the owner's pods, and updates its status. It checks the pods of a large
// owner only at intervals, but applies a change of its spec at once.
func (p replicaKeeper) keep(k state.Key, orphans []state.Object, turn bool) {
	rs := p.rs
	if rs.DeletionTimestamp == nil && !selectsOwn(rs.Spec.Selector, &rs.Spec.Template) {
		return
	}
	if p.deferWalk(k, state.PodsOf(p.s, p.owner), turn || len(orphans) > 0) {
		return
	}
	var live []*corev1.Pod
	var leaving int32
	for o := range p.s.Owned(rs.UID, state.Pods) {
		pod := o.(*corev1.Pod)
		switch {
		case !controlledBy(pod, rs):
		case !matches(rs.Spec.Selector, pod.Labels):
			if active(pod) && rs.DeletionTimestamp == nil {
				p.do(state.Put(release(pod, rs),
					fmt.Sprintf("release %s from %s: its labels no longer match", state.Display(pod), rs.Name)))
			}
		case active(pod):
			live = append(live, pod)
		case !state.Terminated(pod):
			leaving++
		}
	}
	var next time.Time
	refused := ""
	if rs.DeletionTimestamp == nil && !p.terminating(rs.Namespace) {
		live = append(live, p.adoptPods(p.owner, p.kind, rs.Spec.Selector, orphans)...)
		if len(live) < int(replicasOf(rs)) {
			refused = p.refused(p.owner, &rs.Spec.Template)
		}
		if refused == "" && len(live) < int(replicasOf(rs)) && unplaced(live) >= maxUnplaced {
			refused = fmt.Sprintf("%d of its pods have no node yet: more are created when they have", maxUnplaced)
		}
		if refused == "" {
			var asked int32
			live, asked, next = p.replicate(live)
			leaving += asked
			if len(live) < int(replicasOf(rs)) && p.counted(rs.Namespace) {
				refused = p.refused(p.owner, &rs.Spec.Template)
			}
		}
	}
	p.status(k, live, leaving, refused, &next)
	if !next.IsZero() {
		p.wakeTurn(k, next)
	}
}

// adoptPods makes the owner the controller of matching pods without a controller.
func (p *pass) adoptPods(owner state.Object, kind gvk, selector *metav1.LabelSelector,
	orphans []state.Object) (taken []*corev1.Pod) {
	for _, o := range orphans {
		pod := p.s.Pod(o.GetNamespace(), o.GetName())
		if pod == nil || !active(pod) || metav1.GetControllerOfNoCopy(pod) != nil || !matches(selector, pod.Labels) {
			continue
		}
		mine := adopt(pod, owner, kind).(*corev1.Pod)
		p.do(state.Put(mine, fmt.Sprintf("adopt %s into %s: its labels match", state.Display(mine), owner.GetName())))
		taken = append(taken, mine)
	}
	return taken
}

// replicate creates missing pods or deletes surplus ones. It returns the remaining pods, how many
// deleted pods are still stopping, and when to continue.
func (p replicaKeeper) replicate(live []*corev1.Pod) (left []*corev1.Pod, leaving int32, retry time.Time) {
	rs := p.rs
	var changes []state.Change
	defer func() { p.do(changes...) }()
	tell := func(c state.Change, reason string) {
		c = c.Event(reason)
		c.About, c.Source = p.owner, p.source
		changes = append(changes, c)
	}
	want := int(replicasOf(rs))
	if len(live) <= want {
		n, retry := p.allowance(p.owner, "", want-len(live), live)
		n = min(n, maxUnplaced-unplaced(live))
		if room := max(burst-createdAt(p.stamp(), live), 0); n > room { // also if it is called again in this second
			n, retry = room, nextMultiple(p.now, time.Second)
		}
		counted := p.counted(rs.Namespace)
		for i := range n {
			if counted && i > 0 {
				p.do(changes...)
				if changes = nil; p.refused(p.owner, &rs.Spec.Template) != "" {
					break
				}
			}
			pod := p.admitted(p.newPod(p.owner, p.kind, &rs.Spec.Template))
			tell(state.Put(pod, fmt.Sprintf("create %s for %s", state.Display(pod), rs.Name)), "SuccessfulCreate")
			live = append(live, pod)
		}
		return live, 0, retry
	}
	rankForDeletion(live, p.relatedPods(rs))
	spare := len(live) - want
	for _, pod := range live[:spare] {
		c, _ := state.Delete(pod, p.now, nil,
			fmt.Sprintf("delete %s of %s: %d replicas are wanted", state.Display(pod), rs.Name, want))
		tell(c, "SuccessfulDelete")
		if !c.Delete {
			leaving++
		}
	}
	return live[spare:], leaving, time.Time{}
}

// maxUnplaced limits the unplaced pods of a ReplicaSet. A mistyped number of replicas must not fill
// the hub's memory.
const maxUnplaced = 2 * burst

func unplaced(pods []*corev1.Pod) (n int) {
	for _, pod := range pods {
		if pod.Spec.NodeName == "" {
			n++
		}
	}
	return n
}

// createdAt counts the pods that were created at a time.
func createdAt(at metav1.Time, pods []*corev1.Pod) (n int) {
	for _, pod := range pods {
		if pod.CreationTimestamp.Equal(&at) {
			n++
		}
	}
	return n
}

// relatedPods counts per node the active pods of the ReplicaSet and of the other ReplicaSets of its
// Deployment. If two pods are on one node, one of them is deleted before a pod that is alone on its
// node.
func (p *pass) relatedPods(rs *appsv1.ReplicaSet) map[string]int {
	n := map[string]int{}
	count := func(rs state.Object) {
		for o := range p.s.Owned(rs.GetUID(), state.Pods) {
			if pod := o.(*corev1.Pod); active(pod) {
				n[pod.Spec.NodeName]++
			}
		}
	}
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil {
		count(rs)
		return n
	}
	for sibling := range p.s.Owned(ref.UID, state.ReplicaSets) {
		count(sibling)
	}
	return n
}

func replicasOf(rs *appsv1.ReplicaSet) int32 { return state.Replicas(rs) }

func (p replicaKeeper) status(k state.Key, live []*corev1.Pod, leaving int32, refused string, next *time.Time) {
	rs := p.rs
	if p.born[k] {
		return
	}
	st := rs.Status.DeepCopy()
	st.Replicas, st.ObservedGeneration, st.TerminatingReplicas = int32(len(live)), rs.Generation, &leaving
	st.FullyLabeledReplicas, st.ReadyReplicas, st.AvailableReplicas = 0, 0, 0
	for _, pod := range live {
		if matches(&metav1.LabelSelector{MatchLabels: rs.Spec.Template.Labels}, pod.Labels) {
			st.FullyLabeledReplicas++
		}
		if ready(pod) {
			st.ReadyReplicas++
		}
		if p.available(pod, rs.Spec.MinReadySeconds, next) {
			st.AvailableReplicas++
		}
	}
	isNew := p.replicaFailure(st, refused)
	for _, c := range st.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && p.Complete != nil {
			setEarlier(next, p.retryAt(c.LastTransitionTime))
		}
	}
	if equality.Semantic.DeepEqual(&rs.Status, st) {
		return
	}
	// A ReplicationController has no field for terminating pods.
	if next := p.with(st); !equality.Semantic.DeepEqual(p.owner, next) {
		c := state.Put(next, "")
		if isNew {
			c = refusal(next, refused, p.source)
		}
		p.do(c)
	}
}

// replicaFailure updates the condition ReplicaFailure, and reports whether its message is new.
func (p *pass) replicaFailure(st *appsv1.ReplicaSetStatus, refused string) bool {
	at := slices.IndexFunc(st.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure
	})
	switch {
	case refused == "" && at >= 0:
		st.Conditions = slices.Delete(st.Conditions, at, at+1)
		return false
	case refused == "" || at >= 0 && st.Conditions[at].Message == refused:
		return false
	case at < 0:
		at = len(st.Conditions)
		st.Conditions = append(st.Conditions,
			appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetReplicaFailure, LastTransitionTime: p.stamp()})
	}
	c := &st.Conditions[at]
	c.Status, c.Reason, c.Message = corev1.ConditionTrue, failedCreate, refused
	return true
}

const failedCreate = "FailedCreate"

// refusal returns a change of a workload's status with an event that says why its pods may not be
// created.
func refusal(o state.Object, refused, source string) state.Change {
	c := state.Put(o, fmt.Sprintf("create no pod for %s: %s", o.GetName(), refused)).Warning(failedCreate)
	c.Message, c.Source = "Error creating: "+refused, source
	return c
}

var controllerKind = corev1.SchemeGroupVersion.WithKind("ReplicationController")

// controller keeps the number of a ReplicationController's pods. orphans are pods that it may
// adopt.
func (p *pass) controller(k state.Key, orphans []state.Object, turn bool) {
	rc, ok := p.s.Get(k).(*corev1.ReplicationController)
	if !ok {
		return
	}
	r := replicaKeeper{pass: p, owner: rc, kind: controllerKind, source: "replication-controller", rs: asReplicaSet(rc)}
	r.with = func(st *appsv1.ReplicaSetStatus) state.Object {
		next := rc.DeepCopy()
		next.Status = corev1.ReplicationControllerStatus{
			Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas, ReadyReplicas: st.ReadyReplicas,
			AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration,
		}
		for _, c := range st.Conditions {
			next.Status.Conditions = append(next.Status.Conditions, corev1.ReplicationControllerCondition{
				Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
				LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
		}
		return next
	}
	r.keep(k, orphans, turn)
}

// asReplicaSet returns a ReplicaSet that selects and creates the same pods.
func asReplicaSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds}}
	rs.Spec.Selector = selectorOf(rc)
	if t := rc.Spec.Template; t != nil {
		rs.Spec.Template = *t
	}
	st := rc.Status
	rs.Status = appsv1.ReplicaSetStatus{
		Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas, ReadyReplicas: st.ReadyReplicas,
		AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration,
	}
	for _, c := range st.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message})
	}
	return rs
}

// selectorOf returns the selector, nil if there is none. Nil selects no pods; an empty selector
// would select all.
func selectorOf(rc *corev1.ReplicationController) *metav1.LabelSelector {
	if len(rc.Spec.Selector) == 0 {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}
}
