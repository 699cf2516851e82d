package workload

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// The scheduler does not handle a pod that is created with a nodeName.
func TestAPodWithANodeName(t *testing.T) {
	named := func(selector map[string]string) *corev1.Pod {
		t := template("kiosk:1")
		t.Spec.NodeName, t.Spec.NodeSelector = "pi-9", selector
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk", Labels: t.Labels},
			Spec: t.Spec, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	}
	camera := map[string]string{"camera": "yes"}
	with := func() *corev1.Node {
		n := node("pi-9")
		n.Labels["camera"] = "yes"
		return n
	}
	warned := func(f *fleet, reason string) (about []string) {
		for _, c := range f.changes {
			if c.Reason == reason && c.Warn {
				o := c.Object
				if c.About != nil {
					o = c.About
				}
				about = append(about, string(state.KindOf(o))+" "+o.GetName()+": "+c.Why)
			}
		}
		return about
	}
	one := func(t *testing.T, got []string, want ...string) {
		t.Helper()
		if len(got) != 1 {
			t.Fatalf("the events are %q, want one", got)
		}
		for _, w := range want {
			if !strings.Contains(got[0], w) {
				t.Errorf("the event %q lacks %q", got[0], w)
			}
		}
	}
	t.Run("a pod on an unknown node gets a warning and is removed later", func(t *testing.T) {
		f := newFleet(t).put(named(nil)).settle().quiet()
		one(t, warned(f, "NodeNotFound"), "pods kiosk:", "pi-9")
		if c := state.PodCondition(f.s.Pod("default", "kiosk"), corev1.PodScheduled); c == nil ||
			c.Status != corev1.ConditionFalse || c.Reason != "NodeNotFound" || !strings.Contains(c.Message, "pi-9") {
			t.Errorf("the pod's condition is %+v, want NodeNotFound", c)
		}
		if f.pass(DefaultQuarantine).quiet(); len(f.pods()) != 0 {
			t.Errorf("the pod is not removed: %v", f.pods())
		}
		one(t, warned(f, "NodeNotFound"))
	})
	t.Run("the pod stays if its node joins in time", func(t *testing.T) {
		f := newFleet(t).put(named(camera)).settle().put(with()).settle().quiet().pass(2 * DefaultQuarantine).quiet()
		if pod := f.s.Pod("default", "kiosk"); pod == nil || pod.Status.Phase != corev1.PodPending {
			t.Errorf("the pod is %+v, want it pending", pod)
		}
	})
	t.Run("the pod fails if the joined node does not match its selector", func(t *testing.T) {
		f := newFleet(t).put(named(camera)).settle().put(node("pi-9")).settle().quiet()
		one(t, warned(f, "NodeAffinity"), "pods kiosk:")
	})
	t.Run("the pod fails if the node does not match its selector", func(t *testing.T) {
		f := newFleet(t).put(node("pi-9"), named(camera)).settle().quiet()
		one(t, warned(f, "NodeAffinity"), "pods kiosk:", "pi-9")
		if st := f.s.Pod("default", "kiosk").Status; st.Phase != corev1.PodFailed || st.Reason != "NodeAffinity" ||
			st.Message == "" {
			t.Errorf("the pod is %+v, want it failed with NodeAffinity", st)
		}
	})
	t.Run("the pod fails if the node does not match its affinity", func(t *testing.T) {
		pod := named(nil)
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "camera", Operator: corev1.NodeSelectorOpExists}}}}}}}
		f := newFleet(t).put(node("pi-9"), pod).settle().quiet()
		if st := f.s.Pod("default", "kiosk").Status; st.Reason != "NodeAffinity" {
			t.Errorf("the pod is %+v, want the reason NodeAffinity", st)
		}
	})
	t.Run("a running or scheduled pod stays when the label is removed", func(t *testing.T) {
		f := newFleet(t).put(with(), named(camera)).settle().ready("kiosk", "pi-9").settle()
		f.edit(state.Key{Kind: state.Nodes, Name: "pi-9"}, func(o state.Object) {
			delete(o.GetLabels(),
				"camera")
		}).settle().quiet()
		if st := f.s.Pod("default", "kiosk").Status; st.Phase != corev1.PodRunning {
			t.Errorf("the pod is %+v, want it running", st)
		}
	})
	t.Run("the event of a workload's pod names the workload, which backs off", func(t *testing.T) {
		for what, put := range map[string][]state.Object{"NodeNotFound": nil, "NodeAffinity": {node("pi-9")}} {
			d := deployment(1)
			d.Spec.Template.Spec.NodeName, d.Spec.Template.Spec.NodeSelector = "pi-9", camera
			f := newFleet(t).put(put...).put(d).settle().pass(20 * 60e9).quiet()
			got := warned(f, what)
			if len(got) == 0 || len(got) > 40 {
				t.Errorf("%s: %d events in 20 min, want 1 to 40: %q", what, len(got), got)
			}
			for _, text := range got {
				if what == "NodeNotFound" && !strings.HasPrefix(text, "replicasets kiosk-") {
					t.Errorf("the event %q does not begin with the ReplicaSet", text)
				}
			}
		}
	})
}
