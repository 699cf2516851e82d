package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/state"
)

// newPod returns a pod of a template for its owner.
func (p *pass) newPod(owner state.Object, kind gvk, t *corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              p.freeName(state.Pods, owner.GetNamespace(), owner.GetName(), owner.GetUID()),
			GenerateName:      owner.GetName() + "-",
			Namespace:         owner.GetNamespace(),
			Labels:            maps.Clone(t.Labels),
			Annotations:       maps.Clone(t.Annotations),
			Finalizers:        slices.Clone(t.Finalizers),
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
			CreationTimestamp: p.stamp(),
			Generation:        1,
		},
		Spec:   *t.Spec.DeepCopy(),
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	return pod
}

// admitted fills in the defaults of a new pod. The caller has checked its template with refused.
func (p *pass) admitted(pod *corev1.Pod) *corev1.Pod {
	_ = p.admit(pod)
	return pod
}

func (p *pass) admit(pod *corev1.Pod) error {
	if p.Admit != nil {
		p.Admit(pod)
	}
	if p.Complete == nil {
		return nil
	}
	err := p.Complete(pod, p.s)
	if p.Admit != nil && err == nil { // sets derived fields, such as the quality of service
		pod.Status.QOSClass = ""
		p.Admit(pod)
	}
	return err
}

// refused returns why a workload's pod may not be created, in Kubernetes' words; "" if it may. The
// answer changes with the template, the labels of the namespace or a restart of the hub, and each
// of them causes a new check. Other objects may change it too, so it is checked again at intervals
// (see retryAt).
func (p *pass) refused(owner state.Object, t *corev1.PodTemplateSpec) string {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: owner.GetName(), Namespace: owner.GetNamespace(), Labels: t.Labels,
			Annotations: maps.Clone(t.Annotations), Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{{UID: owner.GetUID(), Name: owner.GetName()}}},
		Spec: *t.Spec.DeepCopy(),
	}
	if err := p.admit(pod); err != nil {
		return forbidden(owner, err.Error())
	}
	if p.Charge != nil {
		if _, err := p.Charge(pod, p.s, p.now); err != nil {
			return forbidden(owner, err.Error())
		}
	}
	if p.Refuse == nil {
		return ""
	}
	ns, _ := p.s.Get(state.Key{Kind: state.Namespaces, Name: pod.Namespace}).(*corev1.Namespace)
	if why := p.Refuse(pod, ns); why != "" {
		return forbidden(owner, why)
	}
	return ""
}

// charge makes the quotas count a created object for the rest of the pass. The plan gets each quota
// once, at the end of the pass.
func (p *pass) charge(o state.Object) {
	if p.Charge == nil {
		return
	}
	changes, _ := p.Charge(o, p.s, p.now)
	for _, c := range changes {
		p.charged[state.KeyOf(c.Object)] = true
	}
	p.s, _ = state.Apply(p.s, changes)
}

// counted reports whether a quota counts the pods of a namespace. Then each new pod needs its own
// check.
func (p *pass) counted(namespace string) bool {
	if p.Charge != nil {
		for range p.s.Quotas(namespace) {
			return true
		}
	}
	return false
}

// retryAt returns when to check again whether refused pods may be created: after 10 s, then after
// an interval as long as the refusal has lasted, at most 10 min.
func (p *pass) retryAt(since metav1.Time) time.Time {
	return p.now.Add(min(max(p.now.Sub(since.Time), 10*time.Second), 10*time.Minute))
}

func forbidden(owner state.Object, why string) string {
	return fmt.Sprintf("pods %q is forbidden: %s", owner.GetName()+"-", why)
}

// active reports whether a pod counts for its workload. A finished or terminating pod does not
// count, so it is replaced at once.
func active(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && !state.Terminated(pod) }

func ready(pod *corev1.Pod) bool {
	c := state.PodCondition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// availableAt returns when a ready pod becomes available: minReadySeconds after it became ready. It
// is zero if the pod is not ready.
func availableAt(pod *corev1.Pod, minReadySeconds int32) time.Time {
	if !ready(pod) {
		return time.Time{}
	}
	return state.PodCondition(pod, corev1.PodReady).LastTransitionTime.Add(time.Duration(minReadySeconds) * time.Second)
}

// available reports whether a pod has been ready for minReadySeconds. If the pod only needs more
// time, next is set to that moment.
func (p *pass) available(pod *corev1.Pod, minReadySeconds int32, next *time.Time) bool {
	if !ready(pod) || minReadySeconds == 0 {
		return ready(pod)
	}
	at := availableAt(pod, minReadySeconds)
	if at.After(p.now) {
		setEarlier(next, at)
		return false
	}
	return true
}

// setEarlier sets next to the earlier of two times; zero means none.
func setEarlier(next *time.Time, at time.Time) {
	if next.IsZero() || at.Before(*next) {
		*next = at
	}
}

// controlledBy reports whether the owner is the object's controller.
func controlledBy(o metav1.Object, owner state.Object) bool {
	ref := metav1.GetControllerOfNoCopy(o)
	return ref != nil && ref.UID == owner.GetUID()
}

// adopt makes the owner the controller of an object that has none.
func adopt(o, owner state.Object, kind gvk) state.Object {
	o = o.DeepCopyObject().(state.Object)
	o.SetOwnerReferences(append(o.GetOwnerReferences(), *metav1.NewControllerRef(owner, kind)))
	return o
}

// release removes the owner reference from an object that the owner's selector no longer matches.
func release(o, owner state.Object) state.Object {
	o = o.DeepCopyObject().(state.Object)
	o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		return r.UID == owner.GetUID()
	}))
	return o
}

// rankForDeletion sorts pods by Kubernetes' order of deletion: not placed, not running, not ready,
// a low deletion cost, several on one node, ready for a shorter time, more restarts, younger.
// related counts the related pods of each node.
func rankForDeletion(pods []*corev1.Pod, related map[string]int) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(
			first(a.Spec.NodeName == "", b.Spec.NodeName == ""),
			cmp.Compare(phaseRank(a), phaseRank(b)),
			first(!ready(a), !ready(b)),
			cmp.Compare(deletionCost(a), deletionCost(b)),
			cmp.Compare(related[b.Spec.NodeName], related[a.Spec.NodeName]),
			availableAt(b, 0).Compare(availableAt(a, 0)),
			cmp.Compare(restarts(b), restarts(a)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			strings.Compare(a.Name, b.Name),
		)
	})
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func phaseRank(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodRunning:
		return 2
	case corev1.PodUnknown:
		return 1
	}
	return 0
}

func deletionCost(pod *corev1.Pod) int32 {
	cost, _ := strconv.ParseInt(pod.Annotations[corev1.PodDeletionCost], 10, 32)
	return int32(cost)
}

func restarts(pod *corev1.Pod) (most int32) {
	for _, c := range pod.Status.ContainerStatuses {
		most = max(most, c.RestartCount)
	}
	return most
}

type gvk = schema.GroupVersionKind
