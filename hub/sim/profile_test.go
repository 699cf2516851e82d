package sim

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A joining device may have less capacity after it has received its board profile. Until then no
// pod is bound to it.
func TestFleetAJoiningDeviceGetsNoPodBeforeItsBoardProfile(t *testing.T) {
	t.Parallel()
	for what, before := range map[string]*corev1.Node{
		"a new node": nil,
		"a node made by hand": {ObjectMeta: metav1.ObjectMeta{Name: "oslo-1",
			Labels: map[string]string{corev1.LabelTopologyZone: "oslo"}}},
	} {
		t.Run(what, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.startHub()
				p := &fleet.BoardProfile{TypeMeta: metav1.TypeMeta{APIVersion: "flotilla.dev/v1alpha1", Kind: "BoardProfile"},
					ObjectMeta: metav1.ObjectMeta{Name: "pi"}}
				p.Spec.Match = fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"}}
				p.Spec.Resources.SystemReserved = map[string]string{"cpu": "300m"}
				w.put(p)
				if before != nil {
					w.put(before)
				}
				w.deploy("greedy", 1, func(s *corev1.PodSpec) {
					s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3900m")}
				})
				d := w.newDevice("oslo-1", "oslo")
				d.start()
				w.until(10*time.Second, "ready", func() bool {
					n := w.snapshot().Node(d.name)
					return n != nil && state.ReadyOf(n) == corev1.ConditionTrue
				})
				if cpu := w.node(d.name).Status.Allocatable.Cpu(); cpu.String() != "3700m" {
					t.Errorf("the node is ready with %s of cpu", cpu)
				}
				time.Sleep(time.Minute)
				for _, p := range w.pods("greedy") {
					if p.Spec.NodeName != "" || p.Status.Phase != corev1.PodPending {
						t.Errorf("the pod is %s on %q: %s", p.Status.Phase, p.Spec.NodeName, p.Status.Reason)
					}
				}
				if n := len(w.look.sentences("node " + d.name + " Ready=")); n > 1 {
					t.Errorf("the node became ready %d times", n)
				}
				// A later change of the profile does not make the node not ready.
				p = w.snapshot().Get(state.KeyOf(p)).(*fleet.BoardProfile).DeepCopy()
				p.Spec.Resources.SystemReserved["cpu"] = "400m"
				w.put(p)
				w.until(time.Minute, "3600m", func() bool { return w.node(d.name).Status.Allocatable.Cpu().String() == "3600m" })
				if n := len(w.look.sentences("node " + d.name + " Ready=False")); n > 0 {
					t.Errorf("the node became not ready %d times", n)
				}
			})
		})
	}
}
