package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// Only a pod's device sets, changes and removes the condition for present hardware.
func TestADeviceReportsPresentHardware(t *testing.T) {
	p := &corev1.Pod{}
	hear := func(c ...corev1.PodCondition) []corev1.PodCondition {
		mergeStatus(p, corev1.PodStatus{Conditions: c}, time.Now())
		return p.Status.Conditions
	}
	c := corev1.PodCondition{Type: fleet.ConditionDevicesPresent, Status: corev1.ConditionTrue}
	hear(c)
	c.Status, c.Message = corev1.ConditionFalse, "unplugged"
	if got := hear(c); len(got) != 1 || got[0].Status != corev1.ConditionFalse || got[0].Message != "unplugged" {
		t.Errorf("unplugged, the pod has %+v", got)
	}
	if got := hear(); len(got) != 0 {
		t.Errorf("after the device has removed the condition, the pod has %+v", got)
	}
}
