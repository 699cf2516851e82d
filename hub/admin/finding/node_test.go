package finding

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestWhichConditionsNeedAttention(t *testing.T) {
	for _, c := range []struct {
		name      string
		condition corev1.NodeConditionType
		status    corev1.ConditionStatus
		want      frame.Pill
	}{
		{"a pressure does", "DiskPressure", "True", frame.Pill{Kind: "warn", Text: "Ready, DiskPressure"}},
		{"no pressure does not", "DiskPressure", "False", frame.Pill{Kind: "ok", Text: "Ready"}},
		{"good power does not", "PowerOK", "True", frame.Pill{Kind: "ok", Text: "Ready"}},
		{"bad power does, by its reason", "PowerOK", "False", frame.Pill{Kind: "warn", Text: "Ready, UnderVoltage"}},
		{"what a board lacks for good does not", "MemoryLimits", "False", frame.Pill{Kind: "ok", Text: "Ready"}},
		{"what nobody knows does not", "Sunny", "True", frame.Pill{Kind: "ok", Text: "Ready"}},
	} {
		if got := NodePill(admintest.Node("n", "oslo",
			admintest.Condition(c.condition, c.status, "UnderVoltage", "m"))); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A node's status names its worst trouble, whether the node is cordoned or not.
func TestANodesStatusNamesTheWorst(t *testing.T) {
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	memory := admintest.Condition("MemoryPressure", "True", "Low", "m")
	failing := admintest.Condition(fleet.ConditionStorageHealthy, "False", "ReadOnly", "m")
	for _, c := range []struct {
		name string
		give []func(*corev1.Node)
		want string
	}{
		{"cordoned only", []func(*corev1.Node){cordoned}, "Ready, cordoned"},
		{"cordoned and in trouble", []func(*corev1.Node){cordoned, memory}, "Ready, MemoryPressure, cordoned"},
		{"a critical trouble after a warning", []func(*corev1.Node){memory, failing}, "Ready, ReadOnly"},
	} {
		n := admintest.Node("n", "oslo", nil)
		for _, give := range c.give {
			give(n)
		}
		if got := NodePill(n); got != (frame.Pill{Kind: "warn", Text: c.want}) {
			t.Errorf("%s: %v, want %q", c.name, got, c.want)
		}
	}
}

func TestWhyASilentNodeKeepsItsPods(t *testing.T) {
	for _, c := range []struct {
		name   string
		status fleet.SiteStatus
		want   string
	}{
		{"where evictions are held, why",
			fleet.SiteStatus{HeldReason: fleet.HeldForMaintenance, Held: "maintenance until noon"},
			"Its pods stay: evictions on site oslo are held, maintenance until noon."},
		{"where the rate is 0, that", fleet.SiteStatus{EvictionRate: "0", Waiting: 1},
			"Its pods stay: the rate of site oslo is 0, so no node gets the NoExecute taint there."},
		{"where it waits its turn, at which rate", fleet.SiteStatus{EvictionRate: "0.1"},
			"Its pods stay for now: site oslo gives the NoExecute taint to one node every 10s, and it is next."},
	} {
		n := admintest.Node("pi-2", "oslo", admintest.Condition("Ready", "Unknown", "NodeStatusUnknown",
			"Kubelet stopped posting node status."))
		s := admintest.New(n, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}, Status: c.status}).Snapshot()
		chain := NodeChain(s, n, admintest.Now)
		if len(chain) == 0 || chain[len(chain)-1] != c.want {
			t.Errorf("%s: %q, want %q", c.name, chain, c.want)
		}
	}
}

func TestOnlyADrainThatGoesOnIsTold(t *testing.T) {
	n := admintest.Node("pi-a", "oslo", func(n *corev1.Node) {
		n.Annotations = map[string]string{state.DrainAnnotation: "true", state.DrainStatusAnnotation: state.DrainStatus{
			State: state.Draining, By: "ann", Began: time.Now().Add(-time.Minute),
			Until: time.Now().Add(14 * time.Minute), Pods: 11, Left: 3}.String()}
	})
	if drainLine(n) == "" {
		t.Error("one that goes on is not told")
	}
	for name, change := range map[string]func(*corev1.Node){
		"one that is over":        func(n *corev1.Node) { delete(n.Annotations, state.DrainAnnotation) },
		"one that nobody took up": func(n *corev1.Node) { delete(n.Annotations, state.DrainStatusAnnotation) },
	} {
		other := n.DeepCopy()
		change(other)
		if got := drainLine(other); got != "" {
			t.Errorf("%s says %q", name, got)
		}
	}
}
