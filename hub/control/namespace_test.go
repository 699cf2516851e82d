package control_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// No incident says that a workload in a deleted namespace cannot create pods, however long the
// deletion waits for a device.
func TestADeletedNamespaceHasNoMissingPods(t *testing.T) {
	g := newStage(t, deciders()...)
	g.do("node", []string{"pi-1", "site=oslo"})
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}}
	g.put(ns)
	g.put(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("1")}}})
	g.do("pod", []string{"alone", "node=pi-1"})
	g.do("wait", []string{"3s"})
	g.do("deployment", []string{"kiosk", "replicas=2"})
	g.do("wait", []string{"3s"})
	open := func() (n int) {
		for i := range state.Each[*fleet.Incident](g.s, state.Incidents, "") {
			if i.State == fleet.IncidentOpen && i.Cause == "CannotMakePods" {
				n++
			}
		}
		return n
	}
	if open() != 1 {
		t.Fatalf("%d incidents say that kiosk cannot make its pods", open())
	}
	g.do("silence", []string{"pi-1"})
	ns = g.s.Get(state.KeyOf(ns)).DeepCopyObject().(*corev1.Namespace)
	ns.DeletionTimestamp, ns.Status.Phase = ptr.To(metav1.NewTime(g.now)), corev1.NamespaceTerminating
	g.put(ns)
	g.do("wait", []string{"10s"})
	if g.s.Get(state.KeyOf(ns)) == nil || open() != 0 {
		t.Errorf("the namespace waits for pi-1, and %d incidents say that kiosk cannot make its pods", open())
	}
}
