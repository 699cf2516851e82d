package agent

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/fleet"
)

// The agent sends each change of the status at once, and nothing else (scenario S11,
// TestNodeStatusHasChanged).
func TestChangesOfTheStatus(t *testing.T) {
	at := func(sec int64) metav1.Time { return metav1.Unix(sec, 0) }
	base := func() corev1.NodeStatus {
		return corev1.NodeStatus{
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, LastHeartbeatTime: at(1), LastTransitionTime: at(1)},
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: at(1), LastTransitionTime: at(1)},
			},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.NodeStatus)
		same   bool
	}{
		{"no change", func(*corev1.NodeStatus) {}, true},
		{"heartbeat times", func(s *corev1.NodeStatus) { s.Conditions[0].LastHeartbeatTime = at(99) }, true},
		{"another order of conditions", func(s *corev1.NodeStatus) { s.Conditions[0], s.Conditions[1] = s.Conditions[1], s.Conditions[0] }, true},
		{"the same quantity in another notation", func(s *corev1.NodeStatus) { s.Capacity[corev1.ResourceCPU] = resource.MustParse("4000m") }, true},
		{"a condition's status", func(s *corev1.NodeStatus) { s.Conditions[1].Status = corev1.ConditionFalse }, false},
		{"a condition's transition time", func(s *corev1.NodeStatus) { s.Conditions[1].LastTransitionTime = at(2) }, false},
		{"a condition's message", func(s *corev1.NodeStatus) { s.Conditions[1].Message = "x" }, false},
		{"an additional condition", func(s *corev1.NodeStatus) {
			s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: "X"})
		}, false},
		{"capacity", func(s *corev1.NodeStatus) { s.Capacity[corev1.ResourceCPU] = resource.MustParse("2") }, false},
		{"an address", func(s *corev1.NodeStatus) { s.Addresses = []corev1.NodeAddress{{Address: "192.0.2.1"}} }, false},
	} {
		next := base()
		c.change(&next)
		if got := fleet.SameStatus(base(), next); got != c.same {
			t.Errorf("%s: same=%v, want %v", c.name, got, c.same)
		}
	}
}

func TestTransitionTimesStayWhileTheStatusIsUnchanged(t *testing.T) {
	old := []corev1.NodeCondition{{Type: "A", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(5, 0)},
		{Type: "B", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(5, 0)}}
	next := []corev1.NodeCondition{{Type: "A", Status: corev1.ConditionTrue},
		{Type: "B", Status: corev1.ConditionFalse}, {Type: "C"}}
	keepTimes(old, next, time.Unix(9, 0))
	for i, want := range []int64{5, 9, 9} {
		if got := next[i].LastTransitionTime.Unix(); got != want {
			t.Errorf("condition %s changed at second %d, want %d", next[i].Type, got, want)
		}
	}
}

func TestAnIdleDeviceSendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Minute)
		d.mu.Lock()
		status, pods := d.status, d.pods
		d.mu.Unlock()
		d.fake.Record()
		time.Sleep(time.Hour)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.status != status || d.pods != pods {
			t.Errorf("in an idle hour the agent announced %d statuses and %d pod lists", d.status-status, d.pods-pods)
		}
		if calls := d.fake.Calls(); len(calls) > 0 {
			t.Errorf("in an idle hour the agent called %q, want no call", calls)
		}
	})
}

func TestAStatusHasTheFiftyBiggestImages(t *testing.T) {
	var all []engine.Image
	for i := range 60 {
		all = append(all, engine.Image{ID: fmt.Sprint("id", i), Tags: []string{fmt.Sprint("image:", i)},
			Size: int64(i)})
	}
	got := imagesOf(all)
	if len(got) != 50 || got[0].SizeBytes != 59 || got[49].SizeBytes != 10 {
		t.Errorf("%d images from %d to %d bytes, want 50 from 59 to 10", len(got), got[0].SizeBytes,
			got[len(got)-1].SizeBytes)
	}
}
