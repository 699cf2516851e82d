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

func TestTheStatusNamesConditionsInTrouble(t *testing.T) {
	for _, c := range []struct {
		name      string
		condition corev1.NodeConditionType
		status    corev1.ConditionStatus
		want      frame.Pill
	}{
		{"DiskPressure is trouble", "DiskPressure", "True", frame.Pill{Kind: "warn", Text: "Ready, DiskPressure"}},
		{"DiskPressure=False is not", "DiskPressure", "False", frame.Pill{Kind: "ok", Text: "Ready"}},
		{"PowerOK=True is not", "PowerOK", "True", frame.Pill{Kind: "ok", Text: "Ready"}},
		{"PowerOK=False is trouble, named by its reason", "PowerOK", "False", frame.Pill{Kind: "warn", Text: "Ready, UnderVoltage"}},
		{"a missing feature of the board is not", "MemoryLimits", "False", frame.Pill{Kind: "ok", Text: "Ready"}},
		{"an unknown condition is not", "Sunny", "True", frame.Pill{Kind: "ok", Text: "Ready"}},
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
		{"evictions are held",
			fleet.SiteStatus{HeldReason: fleet.HeldForMaintenance, Held: "maintenance until noon"},
			"Its pods stay: evictions on site oslo are held, maintenance until noon."},
		{"the rate is 0", fleet.SiteStatus{EvictionRate: "0", Waiting: 1},
			"Its pods stay: the rate of site oslo is 0, so no node is given up there."},
		{"it waits in the queue", fleet.SiteStatus{EvictionRate: "0.1"},
			"Its pods stay for now: site oslo gives up one node every 10s, and it is next."},
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

func TestOnlyARunningDrainHasALine(t *testing.T) {
	n := admintest.Node("pi-a", "oslo", func(n *corev1.Node) {
		n.Annotations = map[string]string{state.DrainAnnotation: "true", state.DrainStatusAnnotation: state.DrainStatus{
			State: state.Draining, By: "ann", Began: time.Now().Add(-time.Minute),
			Until: time.Now().Add(14 * time.Minute), Pods: 11, Left: 3}.String()}
	})
	if drainLine(n) == "" {
		t.Error("a running drain has no line")
	}
	for name, change := range map[string]func(*corev1.Node){
		"a drain that is over":       func(n *corev1.Node) { delete(n.Annotations, state.DrainAnnotation) },
		"a drain that has not begun": func(n *corev1.Node) { delete(n.Annotations, state.DrainStatusAnnotation) },
	} {
		other := n.DeepCopy()
		change(other)
		if got := drainLine(other); got != "" {
			t.Errorf("%s has the line %q", name, got)
		}
	}
}
