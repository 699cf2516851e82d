package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func TestScenarioOrphans(t *testing.T) {
	gone := state.Key{Kind: state.Nodes, Name: "pi-1"}
	for _, c := range []struct {
		name string
		act  func(*fleet)
		left string
	}{
		{"S10.gc.1 pods of an existing node stay", func(f *fleet) { f.pass(time.Hour) }, "done run"},
		{"S10.gc.3 after twice the quarantine of a node all pods are removed, the running one is marked Failed first", func(f *fleet) { f.remove(gone).pass(2 * DefaultQuarantine) }, ""},
		{"S10.gc.4 after half the quarantine of a node its pods stay", func(f *fleet) { f.remove(gone).pass(DefaultQuarantine / 2) }, "done run"},
		{"S10.gc.5 pods of a node that returns before the check stay", func(f *fleet) {
			f.remove(gone).pass(DefaultQuarantine / 2).put(node("pi-1")).pass(time.Hour)
		}, "done run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("pi-1"), bare("run", running("pi-1")), bare("done", running("pi-1"),
				in(corev1.PodSucceeded))).settle()
			c.act(f)
			f.settle().quiet()
			if got := strings.Join(f.pods(), " "); got != c.left {
				t.Errorf("the pods %q remain, want %q", got, c.left)
			}
			var failed []string
			for _, ch := range f.changes {
				if p, ok := ch.Object.(*corev1.Pod); ok && !ch.Delete && p.Status.Phase == corev1.PodFailed {
					failed = append(failed, p.Name)
				}
			}
			if want := c.left == ""; want != slices.Equal(failed, []string{"run"}) {
				t.Errorf("the pods marked Failed are %v", failed)
			}
		})
	}
}

func TestScenarioTerminating(t *testing.T) {
	silent := func(taints ...corev1.Taint) *corev1.Node {
		n := node("pi-1", taints...)
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		return n
	}
	out := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}
	for _, c := range []struct {
		name string
		node *corev1.Node
		left string
	}{
		{"S10.gc.6 on a node that is not ready, without the taint out-of-service, every pod stays", silent(), "goes stays"},
		{"S10.gc.7 with the taint only the pod that is being deleted is removed", silent(out), "stays"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(c.node, bare("stays", running("pi-1")), bare("goes", running("pi-1"), leaving)).settle().quiet()
			if got := strings.Join(f.pods(), " "); got != c.left {
				t.Errorf("the pods %q remain, want %q", got, c.left)
			}
		})
	}
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed,
		corev1.PodUnknown} {
		t.Run(fmt.Sprintf("S10.gc.8 a terminating pod without a node is removed in phase %s", phase), func(t *testing.T) {
			f := newFleet(t).put(bare("goes", leaving, in(phase)), bare("stays", in(phase))).settle().quiet()
			if got := strings.Join(f.pods(), " "); got != "stays" {
				t.Errorf("the pods %q remain, want stays", got)
			}
		})
	}
	t.Run("S10.gc.9 surplus finished pods are removed: evicted pods first, then the oldest", func(t *testing.T) {
		f := newFleet(t)
		f.d.FinishedPods = 1
		for i, reason := range []string{"", "Evicted", "", "Evicted"} {
			f.put(bare(fmt.Sprint("p", i), in(corev1.PodFailed), func(p *corev1.Pod) {
				p.CreationTimestamp, p.Status.Reason = metav1.NewTime(start.Add(time.Duration(i)*time.Second)), reason
			}))
		}
		var went []string
		f.pass(time.Minute).quiet()
		for _, ch := range f.changes {
			if ch.Delete {
				went = append(went, ch.Object.GetName())
			}
		}
		if got := strings.Join(went, " "); got != "p1 p3 p0" {
			t.Errorf("removed in the order %q", got)
		}
	})
}

func TestScenarioDaemonSet(t *testing.T) {
	no := corev1.TaintEffectNoSchedule
	for _, c := range []struct {
		name   string
		taints []corev1.Taint
		edit   func(*corev1.Node)
	}{
		{"S12.daemonset.1 a DaemonSet runs on a node that is not ready", []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: no}, {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}},
			func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }},
		{"S12.daemonset.2 a DaemonSet runs on an unschedulable node", []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: no}}, func(n *corev1.Node) { n.Spec.Unschedulable = true }},
		{"S12.daemonset.3 a DaemonSet runs under memory, disk and PID pressure", []corev1.Taint{{Key: corev1.TaintNodeMemoryPressure, Effect: no}, {Key: corev1.TaintNodeDiskPressure, Effect: no}, {Key: corev1.TaintNodePIDPressure, Effect: no}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node("pi-1", c.taints...)
			if c.edit != nil {
				c.edit(n)
			}
			f := newFleet(t).put(daemonSet()).settle().put(n).settle().quiet()
			if pods := f.livePods(); len(pods) != 1 || targetOf(pods[0]) != "pi-1" {
				t.Errorf("the pods are %v, want one for pi-1", f.pods())
			}
		})
	}
	for _, c := range []struct {
		name   string
		effect corev1.TaintEffect
		left   int
	}{
		{"S12.daemonset.4 a later NoSchedule taint removes no pod of a DaemonSet", no, 1},
		{"S12.daemonset.5 a later NoExecute taint removes the pod of a DaemonSet", corev1.TaintEffectNoExecute, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			nodes(f, 1)
			f.put(daemonSet()).settle().run().settle()
			f.edit(state.Key{Kind: state.Nodes, Name: "pi-1"}, func(o state.Object) {
				o.(*corev1.Node).Spec.Taints = []corev1.Taint{{Key: "mine", Effect: c.effect}}
			}).settle().quiet()
			if got := len(f.livePods()); got != c.left ||
				f.s.Get(probeKey).(*appsv1.DaemonSet).Status.DesiredNumberScheduled != 0 {
				t.Errorf("%d pods live, want %d", got, c.left)
			}
		})
	}
}
