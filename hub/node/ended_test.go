package node_test

import (
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/node"
	"flotilla.dev/hub/node/nodetest"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// Whoever watches a pod that is deleted sees first how it ended, then that it is gone.
func TestHowADeletedPodEndedIsSeen(t *testing.T) {
	code := func(name string, phase corev1.PodPhase, code int32) wire.PodStatus {
		p := said(name, phase)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "a", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
		return p
	}
	listening(t, "its last status is shown before its end", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		left, _ := h.leaving("p1", "p2", "p3")
		kept := h.l.Snapshot().Pod("default", "p3").DeepCopy()
		kept.Finalizers = []string{"example.org/keep"}
		h.write(kept)
		synctest.Wait()
		g := h.l.Snapshot().Record("pi-1").Generation
		since := h.l.Snapshot().Revision
		list := wire.Pods{Boot: "b", Seq: 2, Generation: g, Pods: []wire.PodStatus{code("p1", corev1.PodFailed, 137), code("p2", corev1.PodRunning, 0),
			code("p3", corev1.PodSucceeded, 0)}}
		if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"}, list); err != nil {
			h.t.Fatal(err)
		}
		synctest.Wait()
		seen := map[string][]string{}
		applied, _, err := h.l.Since(since)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, a := range applied {
			if a.Key.Kind != state.Pods {
				continue
			}
			p, what := a.Change.Object.(*corev1.Pod), "changed"
			if a.New == nil {
				what = "deleted"
			}
			if len(p.Status.ContainerStatuses) == 0 {
				h.t.Errorf("%s is %s without the codes of its containers", p.Name, what)
			}
			seen[p.Name] = append(seen[p.Name], what+" "+string(p.Status.Phase))
		}
		for name, want := range map[string][]string{
			"p1": {"changed Failed", "deleted Failed"}, "p2": {"changed Running"}, "p3": {"changed Succeeded"},
		} {
			if !slices.Equal(seen[name], want) {
				h.t.Errorf("of %s was seen %q, want %q", name, seen[name], want)
			}
		}
		if n := left(); n != 2 {
			h.t.Errorf("%d pods are left, want the one that runs and the one that somebody keeps", n)
		}
	})
}
