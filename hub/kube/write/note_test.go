package write

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// The audit records what an update of a node or a workload did.
func TestTheAuditDescribesAnUpdate(t *testing.T) {
	node := func(cordoned, drains bool) state.Object {
		n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: cordoned}}
		if drains {
			n.Annotations = map[string]string{state.DrainAnnotation: "{}"}
		}
		return n
	}
	scaled := func(n int32) state.Object { return &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: &n}} }
	for _, c := range []struct {
		live, next state.Object
		want       string
	}{
		{node(false, false), node(true, false), "cordon"}, {node(true, false), node(false, false), "uncordon"},
		{node(false, false), node(true, true), "drain"}, {node(true, true), node(true, false), "stop the drain"},
		{node(true, true), node(false, false), "uncordon"}, {node(true, true), node(true, true), ""},
		{scaled(1), scaled(3), "scale from 1 to 3"}, {scaled(3), scaled(3), ""},
		{&corev1.Pod{}, &corev1.Pod{}, ""},
	} {
		if got := changed(c.live, c.next); got != c.want {
			t.Errorf("change from %+v to %+v: %q, want %q", c.live, c.next, got, c.want)
		}
	}
}
