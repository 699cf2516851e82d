package node_test

import (
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/shared/wire"
)

// leaving creates deleted pods that are bound to pi-1. left returns how many of them still exist.
func (h *listener) leaving(names ...string) (left func() int, generation int64) {
	h.t.Helper()
	now, grace := metav1.Now(), int64(30)
	for _, name := range names {
		h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid(name),
			DeletionTimestamp: &now, DeletionGracePeriodSeconds: &grace},
			Spec: corev1.PodSpec{NodeName: "pi-1", Containers: []corev1.Container{{Name: "a", Image: "a"}}}})
	}
	synctest.Wait()
	return func() (n int) {
		for range h.l.Snapshot().PodsOn("pi-1") {
			n++
		}
		return n
	}, h.l.Snapshot().Record("pi-1").Generation
}

func uid(name string) types.UID { return types.UID("uid-" + name) }

func said(name string, phase corev1.PodPhase) wire.PodStatus {
	return wire.PodStatus{UID: uid(name), Namespace: "default", Name: name, Status: corev1.PodStatus{Phase: phase}}
}

func TestAListOfPodsMayComeInParts(t *testing.T) {
	tell := func(h *listener, p wire.Pods) {
		h.t.Helper()
		p.Boot = "b"
		if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"}, p); err != nil {
			h.t.Error(err)
		}
		synctest.Wait()
	}
	listening(t, "a pod has stopped when all parts have arrived", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		left, g := h.leaving("p1", "p2", "p3")
		part := func(seq uint64, n int, pods ...wire.PodStatus) {
			tell(h, wire.Pods{Seq: seq, Generation: g, Part: n, Parts: 2, Pods: pods})
		}
		part(2, 1, said("p1", corev1.PodRunning))
		if n := left(); n != 3 {
			t.Fatalf("%d pods exist after one of two parts, want 3", n)
		}
		if p := h.l.Snapshot().Pod("default", "p1"); p.Status.Phase != corev1.PodRunning {
			t.Errorf("the pod's status is not accepted with its part: %s", p.Status.Phase)
		}
		part(3, 2, said("p2", corev1.PodRunning)) // the second part of another list, because that of the first list is lost
		if n := left(); n != 3 {
			t.Fatalf("%d pods exist after one part of each of two lists, want 3", n)
		}
		part(3, 1, said("p1", corev1.PodRunning))
		if n := left(); n != 2 {
			t.Errorf("%d pods exist after all parts, want 2", n)
		}
		h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 2, Status: 1, Pods: 3})
		if _, _, asked := h.book.Counts(); asked > 0 {
			t.Errorf("an accepted list is requested %d times", asked)
		}
	})
	listening(t, "an unchanged entry keeps the pod and its status", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		left, g := h.leaving("p1", "p2")
		tell(h, wire.Pods{Seq: 4, Generation: g, Pods: []wire.PodStatus{said("p1", corev1.PodRunning),
			said("p2", corev1.PodRunning)}})
		tell(h, wire.Pods{Seq: 5, Generation: g, Base: 4, Pods: []wire.PodStatus{{UID: uid("p1")}}})
		if n := left(); n != 1 || h.l.Snapshot().Pod("default", "p1").Status.Phase != corev1.PodRunning {
			t.Errorf("%d pods exist, want p1 unchanged", n)
		}
	})
	listening(t, "a list that refers to a lost one is requested again", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		left, g := h.leaving("p1")
		tell(h, wire.Pods{Seq: 5, Generation: g, Base: 4, Pods: []wire.PodStatus{}})
		if n := left(); n != 1 {
			t.Error("an invalid list removed a pod")
		}
		if _, _, asked := h.book.Counts(); asked != 1 {
			t.Errorf("the list is requested %d times, want once", asked)
		}
	})
	listening(t, "a part that could not be stored is not accepted", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		for _, name := range []string{"p1", "p2"} {
			h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid(name)},
				Spec: corev1.PodSpec{NodeName: "pi-1", Containers: []corev1.Container{{Name: "a", Image: "a"}}}})
		}
		synctest.Wait()
		g := h.l.Snapshot().Record("pi-1").Generation
		part := func(n int, name string) wire.Pods {
			return wire.Pods{Boot: "b", Seq: 2, Generation: g, Part: n, Parts: 2,
				Pods: []wire.PodStatus{said(name, corev1.PodRunning)}}
		}
		h.book.FailWith(errors.New("disk full"))
		if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"}, part(1, "p1")); err == nil {
			h.t.Fatal("a part that is not stored is acknowledged")
		}
		h.book.FailWith(nil)
		tell(h, part(2, "p2"))
		if phase := h.l.Snapshot().Pod("default", "p2").Status.Phase; phase != corev1.PodRunning {
			h.t.Fatalf("the second part gives %s", phase)
		}
		h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 2, Status: 1, Pods: 2, Desired: g})
		if _, _, asked := h.book.Counts(); asked != 1 {
			h.t.Errorf("the lost part is requested %d times, want once", asked)
		}
		tell(h, part(1, "p1")) // the first part was not acknowledged
		if phase := h.l.Snapshot().Pod("default", "p1").Status.Phase; phase != corev1.PodRunning {
			h.t.Errorf("the first part, sent again, gives %s", phase)
		}
	})
}
