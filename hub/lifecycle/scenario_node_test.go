package lifecycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
)

func readyPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: up}}},
	}
}

func (w *world) podReady(name string) bool {
	return state.PodCondition(w.s.Pod("default", name), corev1.PodReady).Status == up
}

// conditions lists the watched conditions that are not True, such as
// "Ready=Unknown/NodeStatusUnknown".
func (w *world) conditions(name string) string {
	var out []string
	for _, c := range w.s.Node(name).Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
		}
	}
	return strings.Join(out, " ")
}

const (
	neverUpdated = "Ready=Unknown/NodeStatusNeverUpdated MemoryPressure=Unknown/NodeStatusNeverUpdated DiskPressure=Unknown/NodeStatusNeverUpdated PIDPressure=Unknown/NodeStatusNeverUpdated"
	stoppedReady = "Ready=Unknown/NodeStatusUnknown MemoryPressure=Unknown/NodeStatusNeverUpdated DiskPressure=Unknown/NodeStatusNeverUpdated PIDPressure=Unknown/NodeStatusNeverUpdated"
)

// old returns the node as if it was created an hour before noon.
func old(n *corev1.Node) *corev1.Node {
	n.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
	return n
}

// conditionWrites counts the writes of a node's conditions in one pass at d after noon.
func (w *world) conditionWrites(name string, after time.Duration) (count int) {
	have := w.s.Node(name)
	about := []state.Subject{state.About(state.KeyOf(have))}
	for _, c := range (lifecycle.Health{Settings: w.set}).Decide(w.s, about, noon.Add(after)).Changes {
		if n, ok := c.Object.(*corev1.Node); ok && n.Name == name {
			if fmt.Sprint(n.Status.Conditions) != fmt.Sprint(have.Status.Conditions) {
				count++
			}
			have = n
		}
	}
	return count
}

func TestScenarioUnknownPosting(t *testing.T) {
	// begin adds a live node, so that the hub does not suspect its own link.
	begin := func(t *testing.T, n *corev1.Node) *world {
		w := newWorld(t, lifecycle.Defaults)
		w.put(node("b", "oslo", up))
		w.put(n, readyPod("p", n.Name))
		return w
	}
	t.Run("U1 an old node that never reported gets four conditions Unknown, never updated, in one write",
		func(t *testing.T) {
			w := begin(t, old(node("a", "oslo", "")))
			if got := w.conditionWrites("a", time.Hour); got != 1 {
				t.Errorf("%d writes", got)
			}
			w.wait(time.Hour, "b")
			if got := w.conditions("a"); got != neverUpdated {
				t.Errorf("conditions %s", got)
			}
			for _, c := range w.s.Node("a").Status.Conditions {
				if !c.LastHeartbeatTime.Time.Equal(noon.Add(-time.Hour)) || c.LastTransitionTime.Time.Before(noon) {
					t.Errorf("%s: heartbeat %s, want its creation; transition %s, want now", c.Type, c.LastHeartbeatTime,
						c.LastTransitionTime)
				}
			}
			if got := w.conditionWrites("a", 2*time.Hour); got != 0 {
				t.Errorf("%d more writes later", got)
			}
		})
	t.Run("U2 a new node that has not reported yet does not change", func(t *testing.T) {
		w := begin(t, node("a", "oslo", ""))
		if got := w.conditionWrites("a", time.Minute); got != 0 || w.conditions("a") != "" {
			t.Errorf("%d writes, conditions %s", got, w.conditions("a"))
		}
	})
	t.Run("U3 a silent node becomes Unknown and keeps its heartbeat; conditions that it never reported are never updated; its pods are not ready", func(t *testing.T) {
		w := begin(t, old(node("a", "oslo", up)))
		if got := w.conditionWrites("a", time.Hour); got != 1 {
			t.Errorf("%d writes", got)
		}
		w.wait(time.Hour, "b")
		if got := w.conditions("a"); got != stoppedReady {
			t.Errorf("conditions %s", got)
		}
		if c := state.NodeCondition(w.s.Node("a"), corev1.NodeReady); !c.LastHeartbeatTime.Time.Equal(noon) ||
			c.Message != "Kubelet stopped posting node status." {
			t.Errorf("Ready %+v", c)
		}
		if w.podReady("p") || w.s.Pod("default", "p").Status.Phase != corev1.PodRunning {
			t.Errorf("the node's pod: %+v", w.s.Pod("default", "p").Status)
		}
	})
	t.Run("U4 a node with heartbeats does not change", func(t *testing.T) {
		w := begin(t, old(node("a", "oslo", up)))
		w.wait(time.Hour, "a", "b")
		if got := w.conditionWrites("a", time.Hour); got != 0 || w.conditions("a") != "" || !w.podReady("p") {
			t.Errorf("%d writes, conditions %s", got, w.conditions("a"))
		}
	})
}

func TestScenarioTwoHeartbeats(t *testing.T) {
	for _, tt := range []struct {
		name   string
		node   *corev1.Node
		lease  bool          // the lease is renewed
		status bool          // a status is reported every half minute
		after  time.Duration // time of the decision
		want   string
		podUp  bool
	}{
		{"L1 a new node without status and lease: nothing", node("a", "oslo", ""), false, false, time.Minute, "", true},
		{"L2 a new node without status, with a lease: nothing", node("a", "oslo", ""), true, false, time.Minute, "", true},
		{"L3 an old node without status and lease was never updated", old(node("a", "oslo", "")), false, false, time.Hour, neverUpdated, false},
		{"L4 an old node without status whose lease is renewed: nothing, it has no conditions", old(node("a", "oslo", "")), true, false, time.Hour, "", true},
		{"L5 an old node without status whose lease was not renewed for an hour was never updated", old(node("a", "oslo", "")), false, false, time.Hour, neverUpdated, false},
		{"L6 an old status with a lease that is renewed stays True", old(node("a", "oslo", up)), true, false, time.Hour, "", true},
		{"L7 statuses alone keep a node True, without any lease", old(node("a", "oslo", up)), false, true, time.Hour, "", true},
		{"L8 neither status nor lease: Unknown, and its pods are not ready", old(node("a", "oslo", up)), false, false, time.Hour, stoppedReady, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.put(node("b", "oslo", up))
			w.put(tt.node, readyPod("p", "a"))
			alive := []string{"b"}
			if tt.lease {
				alive = append(alive, "a")
			}
			for w.now.Before(noon.Add(tt.after)) {
				w.wait(30*time.Second, alive...)
				if tt.status {
					w.put(w.s.Node("a"))
				}
			}
			if got := w.conditions("a"); got != tt.want {
				t.Errorf("conditions %q, want %q", got, tt.want)
			}
			if got := w.podReady("p"); got != tt.podUp {
				t.Errorf("the node's pod is ready: %v", got)
			}
		})
	}
}

func TestScenarioPodsOfASilentNode(t *testing.T) {
	for _, tt := range []struct {
		name string
		node *corev1.Node
		wait time.Duration
		want bool
	}{
		{"S5.1 a new node without status leaves its pods ready", node("a", "oslo", ""), 30 * time.Second, true},
		{"S5.2 a node with a recent heartbeat leaves its pods ready", old(node("a", "oslo", up)), 0, true},
		{"S5.3 after a minute of silence its pods are not ready", old(node("a", "oslo", up)), time.Minute, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.put(node("b", "oslo", up))
			w.put(tt.node, readyPod("p", "a"))
			w.wait(tt.wait, "b")
			if got := w.podReady("p"); got != tt.want {
				t.Errorf("ready: %v", got)
			}
		})
	}
	t.Run("S5.4 a pod is written once when its node falls silent", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.put(node("b", "oslo", up))
		w.put(node("a", "oslo", up), readyPod("p", "a"))
		w.wait(40*time.Second+1, "b")
		rev := w.s.Pod("default", "p").ResourceVersion
		w.wait(time.Hour, "b")
		if got := w.s.Pod("default", "p").ResourceVersion; got != rev || w.podReady("p") {
			t.Errorf("revision %s became %s", rev, got)
		}
	})
	t.Run("S5.7 the 5000 pods of 50 nodes that fall silent at once are all not ready in the same pass",
		func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.put(node("alive", "oslo", up))
			var objects []state.Object
			for i, n := range names("n", 50) {
				objects = append(objects, node(n, "oslo", up))
				for j := range 100 {
					objects = append(objects, readyPod(fmt.Sprintf("p-%d-%d", i, j), n))
				}
			}
			w.put(objects...)
			w.wait(40*time.Second+1, "alive")
			for p := range w.s.Pods("") {
				if w.podReady(p.Name) {
					t.Fatalf("%s is ready", p.Name)
				}
			}
		})
	t.Run("S5.8 a pod of an unknown node does not change", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.put(node("b", "oslo", up), readyPod("p", "nowhere"))
		w.wait(time.Hour, "b")
		if !w.podReady("p") {
			t.Error("not ready")
		}
	})
	t.Run("S5.9 a pod that comes to a ready node does not change", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.put(node("a", "oslo", up))
		w.put(readyPod("p", "a"))
		w.wait(time.Hour, "a")
		if !w.podReady("p") {
			t.Error("not ready")
		}
	})
	t.Run("S5.10 ours: a device's list of pods counts before its status arrives", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.put(node("a", "oslo", up), node("b", "oslo", up))
		w.wait(time.Minute, "b")
		w.put(readyPod("p", "a")) // the device has sent a message, so it is not silent
		if w.ready("a") != down || !w.podReady("p") {
			t.Errorf("node %s, pod ready %v", w.ready("a"), w.podReady("p"))
		}
	})
}

func TestScenarioTaints(t *testing.T) {
	// begin returns two nodes that may fail, and enough live nodes.
	begin := func(t *testing.T) (*world, []string) {
		w := newWorld(t, lifecycle.Defaults)
		w.put(node("a", "oslo", up), node("b", "oslo", up))
		w.site("oslo", 5, 0)
		return w, names("oslo", 5)
	}
	t.Run("T1 a silent node gets unreachable:NoExecute", func(t *testing.T) {
		w, alive := begin(t)
		w.wait(40*time.Second+1, append(alive, "b")...)
		if got := w.taints("a"); got != "unreachable:NoExecute unreachable:NoSchedule" {
			t.Errorf("taints %q", got)
		}
	})
	t.Run("T1 a node that reports Ready=False gets not-ready:NoExecute, and loses it when it is Ready again",
		func(t *testing.T) {
			w, _ := begin(t)
			w.becomes("a", corev1.ConditionFalse)
			if got := w.taints("a"); got != "not-ready:NoExecute not-ready:NoSchedule" {
				t.Errorf("taints %q", got)
			}
			w.becomes("a", up)
			if got := w.taints("a"); got != "" {
				t.Errorf("afterwards taints %q", got)
			}
		})
	t.Run("T1 a node that loses its Ready condition while it waits does not get NoExecute", func(t *testing.T) {
		w, alive := begin(t)
		w.becomes("a", corev1.ConditionFalse)
		w.becomes("b", corev1.ConditionFalse) // b waits for its taint
		n := w.s.Node("b").DeepCopy()
		n.Status.Conditions = nil
		w.put(n)
		w.wait(30*time.Second, append(alive, "a", "b")...)
		if got := w.expel(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("tainted %v", got)
		}
	})
	t.Run("T2 only the silent node is tainted, a second after its grace period, until its report", func(t *testing.T) {
		w, alive := begin(t)
		if got := w.expel(); len(got) != 0 {
			t.Errorf("tainted at the start: %v", got)
		}
		w.wait(41*time.Second, append(alive, "b")...)
		if got := w.expel(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("tainted a second after the grace period: %v", got)
		}
		w.becomes("a", up)
		for n := range w.s.Nodes() {
			if got := w.taints(n.Name); got != "" {
				t.Errorf("after a report %s has %q", n.Name, got)
			}
		}
	})
	t.Run("T3 a node that recovers while it waits does not delay those behind it", func(t *testing.T) {
		w, alive := begin(t)
		w.put(node("c", "oslo", up))
		w.wait(40*time.Second+1, alive...)
		if got := w.expel(); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("first %v", got)
		}
		w.becomes("b", up)
		w.wait(10*time.Second, append(alive, "b")...)
		if got := w.expel(); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("then %v", got)
		}
	})
	t.Run("T4 unreachable becomes not-ready and back at once, one NoExecute at a time, each with its own time",
		func(t *testing.T) {
			w, alive := begin(t)
			w.wait(40*time.Second+1, append(alive, "b")...)
			first := state.NoExecuteOf(w.s.Node("a")).TimeAdded
			w.wait(20*time.Second, append(alive, "b")...)
			w.becomes("a", corev1.ConditionFalse)
			if got := w.taints("a"); got != "not-ready:NoExecute not-ready:NoSchedule" {
				t.Errorf("taints %q", got)
			}
			w.wait(41*time.Second, append(alive, "b")...)
			if got := w.taints("a"); got != "unreachable:NoExecute unreachable:NoSchedule" {
				t.Errorf("and back: taints %q", got)
			}
			if got := state.NoExecuteOf(w.s.Node("a")).TimeAdded; !got.After(first.Time) {
				t.Errorf("the taint's time was %s and is %s", first, got)
			}
			if past := state.OutageOf(w.s.Node("a")); past == nil || len(past.TaintPeriods) != 2 ||
				!past.TaintPeriods[0].From.Equal(first) {
				t.Errorf("it stores %v", past)
			}
		})
	for _, tt := range []struct {
		name      string
		condition corev1.NodeConditionType
		status    corev1.ConditionStatus
		want      string
	}{
		{"T5 NetworkUnavailable=True gives network-unavailable:NoSchedule", corev1.NodeNetworkUnavailable, up, "network-unavailable:NoSchedule"},
		{"T5 Ready=False gives not-ready:NoSchedule", corev1.NodeReady, corev1.ConditionFalse, "not-ready:NoSchedule"},
		{"T5 Ready=Unknown gives unreachable:NoSchedule", corev1.NodeReady, down, "unreachable:NoSchedule"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, _ := begin(t)
			n := w.s.Node("a").DeepCopy()
			n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions,
				func(c corev1.NodeCondition) bool { return c.Type == tt.condition }),
				corev1.NodeCondition{Type: tt.condition, Status: tt.status})
			w.put(n)
			if got := strings.Fields(w.taints("a")); !slices.Contains(got, tt.want) {
				t.Errorf("taints %v", got)
			}
			w.put(func() *corev1.Node {
				n := w.s.Node("a").DeepCopy()
				n.Status.Conditions = node("a", "oslo", up).Status.Conditions
				return n
			}())
			if got := w.taints("a"); got != "" {
				t.Errorf("afterwards %q", got)
			}
		})
	}
	for _, ready := range []corev1.ConditionStatus{up, corev1.ConditionFalse, down, ""} {
		t.Run(fmt.Sprintf("T6 Ready=%q stays as stored within the grace period, and is Unknown after it", ready),
			func(t *testing.T) {
				w, alive := begin(t)
				w.put(node("c", "oslo", ready))
				grace := 40 * time.Second
				if ready == "" {
					grace = time.Minute // the startup grace period
				}
				alive = append(alive, "a", "b")
				w.wait(grace, alive...)
				if got := w.ready("c"); got != ready {
					t.Errorf("within the grace period %q", got)
				}
				w.wait(1, alive...)
				if got := w.ready("c"); got != down {
					t.Errorf("after the grace period %q", got)
				}
			})
	}
}
