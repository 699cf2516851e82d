package workload

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

var replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// replicaSet brings the number of a ReplicaSet's pods to what it asks for, and
// its status to what there is. orphans are pods that it may adopt.
func (p *pass) replicaSet(k state.Key, orphans []state.Object) {
	rs, ok := p.s.Get(k).(*appsv1.ReplicaSet)
	if !ok {
		return
	}
	var live, finished []*corev1.Pod
	var leaving int32
	for o := range p.s.Owned(rs.UID, state.Pods) {
		pod := o.(*corev1.Pod)
		switch {
		case !controlledBy(pod, rs):
		case !matches(rs.Spec.Selector, pod.Labels):
			if active(pod) && rs.DeletionTimestamp == nil {
				p.do(state.Put(release(pod, rs), fmt.Sprintf("release %s from %s: its labels no longer match", state.Display(pod), rs.Name)))
			}
		case active(pod):
			live = append(live, pod)
		case state.Terminated(pod):
			finished = append(finished, pod)
		default:
			leaving++
		}
	}
	var next time.Time
	if rs.DeletionTimestamp == nil && !p.dying(rs.Namespace) {
		live = append(live, p.adoptPods(rs, replicaSetKind, rs.Spec.Selector, orphans)...)
		var asked int32
		live, asked, next = p.replicate(rs, live, finished)
		leaving += asked
	}
	p.replicaSetStatus(rs, live, leaving, &next)
	if !next.IsZero() {
		p.wake(k, next)
	}
}

// adoptPods makes the owner the controller of pods that its selector matches and
// that have none.
func (p *pass) adoptPods(owner state.Object, kind gvk, selector *metav1.LabelSelector, orphans []state.Object) (taken []*corev1.Pod) {
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

// replicate creates the pods that are missing or deletes those that are too many,
// and returns those that there are then, how many of the others have yet to stop,
// and when to look again.
func (p *pass) replicate(rs *appsv1.ReplicaSet, live, finished []*corev1.Pod) (left []*corev1.Pod, leaving int32, again time.Time) {
	var changes []state.Change
	defer func() { p.do(changes...) }()
	tell := func(c state.Change, reason string) {
		c = c.Event(reason)
		c.About, c.Source = rs, "replicaset-controller"
		changes = append(changes, c)
	}
	want := int(replicasOf(rs))
	if len(live) <= want {
		n, again := p.allowance(want-len(live), want, finished, live)
		if room := max(burst-madeAt(p.stamp(), live), 0); n > room { // a second look at this moment makes no more
			n, again = room, until(p.now, time.Second)
		}
		for range n {
			pod := p.admitted(p.newPod(rs, replicaSetKind, &rs.Spec.Template))
			tell(state.Put(pod, fmt.Sprintf("create %s for %s", state.Display(pod), rs.Name)), "SuccessfulCreate")
			live = append(live, pod)
		}
		return live, 0, again
	}
	rankForDeletion(live, p.crowd(rs))
	spare := len(live) - want
	for _, pod := range live[:spare] {
		c, _ := state.Delete(pod, p.now, nil, fmt.Sprintf("delete %s of %s: %d replicas are wanted", state.Display(pod), rs.Name, want))
		tell(c, "SuccessfulDelete")
		if !c.Delete {
			leaving++
		}
	}
	return live[spare:], leaving, time.Time{}
}

// madeAt counts the pods that were created at a moment.
func madeAt(at metav1.Time, pods []*corev1.Pod) (n int) {
	for _, pod := range pods {
		if pod.CreationTimestamp.Equal(&at) {
			n++
		}
	}
	return n
}

// crowd counts the active pods per node of the ReplicaSet and its siblings under
// the same Deployment: two on one node are less worth than two on two.
func (p *pass) crowd(rs *appsv1.ReplicaSet) map[string]int {
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

func replicasOf(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

func (p *pass) replicaSetStatus(rs *appsv1.ReplicaSet, live []*corev1.Pod, leaving int32, next *time.Time) {
	if p.born[state.KeyOf(rs)] {
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
	if !equality.Semantic.DeepEqual(&rs.Status, st) {
		rs = rs.DeepCopy()
		rs.Status = *st
		p.do(state.Put(rs, ""))
	}
}
