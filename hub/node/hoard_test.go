package node

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/wire"
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

func TestAPartOfAListThatComesAgainIsNotPiledUp(t *testing.T) {
	const lists, pods = 50, 10
	part := func(n, list int) wire.Pods {
		p := wire.Pods{Boot: "b", Seq: 2, Part: n, Parts: 2}
		for i := range pods {
			p.Pods = append(p.Pods, wire.PodStatus{UID: types.UID(fmt.Sprintf("%d-%d-%d", n, list, i)), Namespace: "default", Name: "p"})
		}
		return p
	}
	var p liveness
	for list := range lists {
		if _, whole := p.gather(part(1, list)); whole {
			t.Fatal("one part of two is all")
		}
		p.gathered(part(1, list), false)
	}
	holds, whole := p.gather(part(2, 0))
	if !whole || len(holds) != 2*pods || !holds[part(1, lists-1).Pods[0].UID] {
		t.Errorf("%d pods are held, want those of two parts, as they were said last; whole: %v", len(holds), whole)
	}
}
