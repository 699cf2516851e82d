package workloads

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
)

func TestWhatAPodAsksForInWords(t *testing.T) {
	want := []frame.Fact{
		{Name: "Priority", Value: "1000, tills"}, {Name: "Node selector", Value: "disk=ssd, room=2"},
		{Name: "Affinity", Value: "needs a node with the label gpu and no label old, or board in (a, b); prefers a node with fast=yes (weight 5); must be near pods with app=cache, by kubernetes.io/hostname; would rather be away from pods with app=till, by kubernetes.io/hostname (weight 7)"},
		{Name: "Spread", Value: "over topology.kubernetes.io/zone, by 1 at most, if it can be"},
		{Name: "Tolerates", Value: "node.kubernetes.io/unreachable:NoExecute for 5m; camera=broken:NoSchedule; every taint; old:NoExecute for 292y"}, {Name: "Service account", Value: "robot"}, {Name: "Network", Value: "that of its node"},
	}
	if got := askFacts(admintest.Pod("p", "pi-1", admintest.Choosy)); !slices.Equal(got, want) {
		t.Errorf("%v, want\n%v", got, want)
	}
	if got := askFacts(admintest.Pod("p", "pi-1", nil)); len(got) > 0 {
		t.Errorf("a pod without rules has %v", got)
	}
	for text, r := range map[string]corev1.ResourceRequirements{
		"Requests nothing, and has no limit.":           {},
		"Requests 250m cpu, 64Mi memory; has no limit.": {Requests: corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("250m")}},
		"Requests nothing; limit 1 example.com/tpu.":    {Limits: corev1.ResourceList{"example.com/tpu": resource.MustParse("1")}},
		"Requests 250m cpu; limit 1 cpu.":               {Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	} {
		if got := asksText(corev1.Container{Resources: r}); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
}
