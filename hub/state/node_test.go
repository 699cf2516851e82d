package state_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func TestChangingAForkDoesNotChangeTheOriginal(t *testing.T) {
	meta := metav1.ObjectMeta{
		Name: "x", Labels: map[string]string{"a": "1"}, Annotations: map[string]string{"a": "1"}, Finalizers: []string{"a"},
	}
	node := &corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{
		Key: "a", Effect: corev1.TaintEffectNoExecute,
	}}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "n"}}
	pod.Status.Conditions = append(make([]corev1.PodCondition, 0, 4),
		corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	wasNode, wasPod := node.DeepCopy(), pod.DeepCopy()

	n := state.Fork(node)
	n.Labels["a"], n.Annotations["b"], n.Finalizers[0] = "2", "2", "b"
	n.Spec.Taints[0].Key = "b"
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	p := state.ForkPod(pod)
	p.Labels["a"], p.Annotations["b"], p.Finalizers[0] = "2", "2", "b"
	state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}, time.Now())
	state.SetPodCondition(p, corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}, time.Now())
	if !apiequality.Semantic.DeepEqual(node, wasNode) {
		t.Errorf("the node has changed to %v", node)
	}
	if !apiequality.Semantic.DeepEqual(pod, wasPod) {
		t.Errorf("the pod has changed to %v", pod)
	}
	if more := pod.Status.Conditions[:2:2]; more[1].Type != "" {
		t.Errorf("the fork has appended to the original's conditions: %v", more)
	}
}
