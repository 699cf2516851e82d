package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// seekOrphans finds the objects without a controller that a new workload may adopt.
func (p *pass) seekOrphans(w *work, k state.Key) {
	switch o := p.s.Get(k).(type) {
	case *appsv1.Deployment:
		for rs := range state.Each[*appsv1.ReplicaSet](p.s, state.ReplicaSets, k.Namespace) {
			p.offer(w, rs)
		}
	case *appsv1.ReplicaSet:
		p.seekPods(w, k, o.Spec.Selector)
	case *appsv1.DaemonSet:
		p.seekPods(w, k, o.Spec.Selector)
		d := w.daemon(k)
		d.adopt = append(d.adopt, p.strayRevisions(k.Namespace, o.Spec.Selector)...)
	case *batchv1.Job:
		p.seekPods(w, k, o.Spec.Selector)
	case *corev1.ReplicationController:
		p.seekPods(w, k, selectorOf(o))
	case *appsv1.StatefulSet:
		p.seekPods(w, k, o.Spec.Selector)
		w.orphans[k] = append(w.orphans[k], p.strayRevisions(k.Namespace, o.Spec.Selector)...)
	}
}

// strayRevisions returns the revisions without a controller that match the selector.
func (p *pass) strayRevisions(namespace string, selector *metav1.LabelSelector) (found []state.Object) {
	for r := range state.Each[*appsv1.ControllerRevision](p.s, state.ControllerRevisions, namespace) {
		if metav1.GetControllerOfNoCopy(r) == nil && r.DeletionTimestamp == nil && matches(selector, r.Labels) {
			found = append(found, r)
		}
	}
	return found
}

// offer finds a workload whose selector matches an object without a controller. The workload may
// then adopt the object.
func (p *pass) offer(w *work, o state.Object) {
	if metav1.GetControllerOfNoCopy(o) != nil || o.GetDeletionTimestamp() != nil {
		return
	}
	switch o := o.(type) {
	case *corev1.Pod:
		if set := p.namesake(o); set != nil && set.DeletionTimestamp == nil && matches(set.Spec.Selector, o.Labels) {
			k := state.KeyOf(set)
			w.stateful[k], w.orphans[k] = true, append(w.orphans[k], o)
			return
		}
		if state.Terminated(o) {
			return
		}
		for rs := range state.Each[*appsv1.ReplicaSet](p.s, state.ReplicaSets, o.Namespace) {
			if rs.DeletionTimestamp == nil && matches(rs.Spec.Selector, o.Labels) {
				k := state.KeyOf(rs)
				w.replicaSets[k], w.orphans[k] = true, append(w.orphans[k], o)
				return
			}
		}
		for rc := range state.Each[*corev1.ReplicationController](p.s, state.Controllers, o.Namespace) {
			if rc.DeletionTimestamp == nil && matches(selectorOf(rc), o.Labels) {
				k := state.KeyOf(rc)
				w.controllers[k], w.orphans[k] = true, append(w.orphans[k], o)
				return
			}
		}
		for ds := range state.Each[*appsv1.DaemonSet](p.s, state.DaemonSets, o.Namespace) {
			if ds.DeletionTimestamp == nil && matches(ds.Spec.Selector, o.Labels) {
				k := state.KeyOf(ds)
				d := w.daemon(k)
				d.adopt = append(d.adopt, o)
				return
			}
		}
		for j := range state.Each[*batchv1.Job](p.s, state.Jobs, o.Namespace) {
			if j.DeletionTimestamp == nil && state.JobEnd(j) == nil && j.Spec.Selector != nil &&
				matches(j.Spec.Selector, o.Labels) {
				k := state.KeyOf(j)
				w.jobs[k], w.orphans[k] = true, append(w.orphans[k], o)
				return
			}
		}
	case *appsv1.ReplicaSet:
		for d := range state.Each[*appsv1.Deployment](p.s, state.Deployments, o.Namespace) {
			if d.DeletionTimestamp == nil && matches(d.Spec.Selector, o.Labels) {
				k := state.KeyOf(d)
				w.deployments[k], w.orphans[k] = true, append(w.orphans[k], o)
				return
			}
		}
	}
}

// seekPods finds the pods without a controller that a new workload may adopt.
func (p *pass) seekPods(w *work, k state.Key, selector *metav1.LabelSelector) {
	for _, pod := range p.straysIn(k.Namespace) {
		if matches(selector, pod.Labels) {
			p.offer(w, pod)
		}
	}
}

// straysIn returns the pods of a namespace without a controller. It walks the namespace once per
// pass, and only for a new workload.
func (p *pass) straysIn(namespace string) []*corev1.Pod {
	if found, ok := p.strays[namespace]; ok {
		return found
	}
	var found []*corev1.Pod
	for pod := range p.s.Pods(namespace) {
		if metav1.GetControllerOfNoCopy(pod) == nil {
			found = append(found, pod)
		}
	}
	if p.strays == nil {
		p.strays = map[string][]*corev1.Pod{}
	}
	p.strays[namespace] = found
	return found
}

// selectsOwn reports whether a workload's selector matches its own template. Admission ensures it,
// but a restored database may not. Without the check such a workload would create pods endlessly.
func selectsOwn(s *metav1.LabelSelector, t *corev1.PodTemplateSpec) bool {
	return s != nil && matches(s, t.Labels)
}

// matches reports whether the selector selects the labels.
func matches(s *metav1.LabelSelector, l map[string]string) bool { return state.Selects(s, l) }
