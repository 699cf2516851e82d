package node

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/bound"
)

// What a device says again and again takes the place of what it has said: nothing of it is piled up.
func TestWhatADeviceSaysOfAPodIsNotPiledUp(t *testing.T) {
	gate := corev1.PodCondition{Type: "example.org/gate", Status: corev1.ConditionFalse, Message: "an operator's"}
	p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{gate, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}}
	for list := range 10 {
		said := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		for i := range bound.MaxConditions - 1 {
			said.Conditions = append(said.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprintf("example.org/%d-%d", list, i)), Status: corev1.ConditionTrue})
		}
		mergeStatus(p, said, time.Now())
	}
	if n := len(p.Status.Conditions); n != 3 {
		t.Errorf("after ten lists the pod has %d conditions, want Ready, PodScheduled and the operator's", n)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == gate.Type && c != gate {
			t.Errorf("the operator's is %v", c)
		}
	}
	if err := bound.Object(p); err != nil {
		t.Error("it would not be read again:", err)
	}
}
