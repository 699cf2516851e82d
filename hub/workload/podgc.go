package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// node handles the pods of a node that was deleted, has returned, or was put out of service.
func (p *pass) node(k state.Key) {
	n := p.s.Node(k.Name)
	var pods []*corev1.Pod
	for pod := range p.s.PodsOn(k.Name) {
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		switch {
		case n == nil:
			p.quarantine(pod)
		default:
			if !p.abandon(pod) {
				p.checkOwnNode(pod)
			}
		}
	}
}

const (
	nodeNotFound = "NodeNotFound"
	nodeAffinity = "NodeAffinity" // the same reason as the kubelet's
)

// checkOwnNode handles a pod that was created with a nodeName and has not started. No scheduler has
// checked whether the node exists and allows the pod. checkOwnNode emits a warning, or fails the
// pod.
func (p *pass) checkOwnNode(pod *corev1.Pod) {
	c := state.PodCondition(pod, corev1.PodScheduled)
	if pod.Spec.NodeName == "" || !active(pod) || pod.Status.StartTime != nil || pod.Status.Phase == corev1.PodRunning ||
		c != nil && c.Reason != nodeNotFound {
		return
	}
	n := p.s.Node(pod.Spec.NodeName)
	switch {
	case n == nil && c == nil:
		why := fmt.Sprintf("%s names the node %s, which does not exist: it is removed unless that node joins within %s",
			state.Display(pod), pod.Spec.NodeName, cmp.Or(p.Quarantine, DefaultQuarantine))
		pod = state.ForkPod(pod)
		state.SetPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: nodeNotFound, Message: why}, p.now)
		change := state.Put(pod, why).Warning(nodeNotFound)
		if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
			change.About = p.s.ByUID(ref.UID)
		}
		p.do(change)
	case n != nil && !state.NodeFits(&pod.Spec, n):
		pod = state.ForkPod(pod)
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, nodeAffinity
		pod.Status.Message = "Predicate NodeAffinity failed: node " + n.Name + " does not match the pod's nodeSelector " +
			"or required node affinity"
		p.do(state.Put(pod, fmt.Sprintf("fail %s: %s", state.Display(pod), pod.Status.Message)).Warning(nodeAffinity))
	}
}

// abandon removes a terminating pod from an out-of-service node, and reports whether it did. A pod
// with a finalizer, such as a Job's, is marked Failed, since no device will report it.
func (p *pass) abandon(pod *corev1.Pod) bool {
	n := p.s.Node(pod.Spec.NodeName)
	switch why := "its node " + pod.Spec.NodeName + " is out of service"; {
	case pod.DeletionTimestamp == nil || n == nil || !outOfService(n):
		return false
	case len(pod.Finalizers) == 0:
		p.do(state.Remove(pod, fmt.Sprintf("remove %s: %s", state.Display(pod), why)))
	case state.Terminated(pod):
		return false
	default:
		pod = pod.DeepCopy()
		pod.Status.Phase = corev1.PodFailed
		p.do(state.Put(pod, fmt.Sprintf("fail %s: %s", state.Display(pod), why)))
	}
	return true
}

// outOfService reports whether a node is not ready and has the out-of-service taint. Then the hub
// does not wait for its pods to stop.
func outOfService(n *corev1.Node) bool {
	return state.ReadyOf(n) != corev1.ConditionTrue &&
		slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// quarantine starts the time after which a pod of a deleted node is removed.
func (p *pass) quarantine(pod *corev1.Pod) {
	p.checkOwnNode(pod)
	if pod.Spec.NodeName == "" || p.s.Node(pod.Spec.NodeName) != nil {
		return
	}
	p.plan.WakeFor(state.Subject{Key: state.KeyOf(pod), Part: partLost},
		p.now.Add(cmp.Or(p.Quarantine, DefaultQuarantine)))
}

// lost removes a pod whose quarantine is over, unless its node has returned. An unfinished pod is
// marked Failed first, because it may have been running.
func (p *pass) lost(k state.Key) {
	pod := p.s.Pod(k.Namespace, k.Name)
	if pod == nil || pod.Spec.NodeName == "" || p.s.Node(pod.Spec.NodeName) != nil {
		return
	}
	why := fmt.Sprintf("its node %s is gone", pod.Spec.NodeName)
	if c := state.PodCondition(pod, corev1.PodScheduled); c != nil && c.Reason == nodeNotFound {
		why = "node not found: " + pod.Spec.NodeName
	}
	if !state.Terminated(pod) {
		pod = pod.DeepCopy()
		pod.Status.Phase = corev1.PodFailed
		state.SetPodCondition(pod, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
			Message: "PodGC: node no longer exists",
		}, p.now)
		p.do(state.Put(pod, fmt.Sprintf("fail %s: %s", state.Display(pod), why)))
	}
	if len(pod.Finalizers) == 0 {
		c := state.Remove(pod, fmt.Sprintf("remove %s: %s", state.Display(pod), why)).Event("PodGC")
		c.Source = "pod-garbage-collector"
		p.do(c)
	} else if pod.DeletionTimestamp == nil {
		pod = pod.DeepCopy()
		at, grace := p.stamp(), int64(0)
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
		p.do(state.Put(pod, fmt.Sprintf("delete %s: %s", state.Display(pod), why)))
	}
}

// finishedGrid is the interval of counting finished pods, if any pod has finished. Kubernetes'
// interval is also 20 s.
const finishedGrid = 20 * time.Second

func (p *pass) wakeFinished() {
	if p.FinishedPods > 0 {
		p.plan.WakeFor(allPods, nextMultiple(p.now, finishedGrid))
	}
}

// trimFinished removes finished pods beyond the limit, the pods that a device evicted first, then
// the oldest.
func (p *pass) trimFinished() {
	if p.FinishedPods <= 0 {
		return
	}
	var finished []*corev1.Pod
	for pod := range p.s.Pods("") {
		if state.Terminated(pod) && pod.DeletionTimestamp == nil {
			finished = append(finished, pod)
		}
	}
	spare := len(finished) - p.FinishedPods
	if spare <= 0 {
		return
	}
	slices.SortFunc(finished, func(a, b *corev1.Pod) int {
		return cmp.Or(
			first(a.Status.Reason == "Evicted", b.Status.Reason == "Evicted"),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
		)
	})
	for _, pod := range finished[:spare] {
		p.removeObject(pod, fmt.Sprintf("remove %s: %d finished pods are kept", state.Display(pod), p.FinishedPods))
	}
}
