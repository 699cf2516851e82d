package node_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A watcher of a deleted pod first receives how it ended, then its deletion.
func TestWatchersSeeHowADeletedPodEnded(t *testing.T) {
	code := func(name string, phase corev1.PodPhase, code int32) wire.PodStatus {
		p := said(name, phase)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "a",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
		return p
	}
	listening(t, "the last status is shown before the deletion", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		left, _ := h.leaving("p1", "p2", "p3")
		kept := h.l.Snapshot().Pod("default", "p3").DeepCopy()
		kept.Finalizers = []string{"example.org/keep"}
		h.write(kept)
		synctest.Wait()
		g := h.l.Snapshot().Record("pi-1").Generation
		since := h.l.Snapshot().Revision
		list := wire.Pods{Boot: "b", Seq: 2, Generation: g,
			Pods: []wire.PodStatus{code("p1", corev1.PodFailed, 137), code("p2", corev1.PodRunning, 0),
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
				h.t.Errorf("%s is %s without the exit codes of its containers", p.Name, what)
			}
			seen[p.Name] = append(seen[p.Name], what+" "+string(p.Status.Phase))
		}
		for name, want := range map[string][]string{
			"p1": {"changed Failed", "deleted Failed"}, "p2": {"changed Running"}, "p3": {"changed Succeeded"},
		} {
			if !slices.Equal(seen[name], want) {
				h.t.Errorf("watchers of %s saw %q, want %q", name, seen[name], want)
			}
		}
		if n := left(); n != 2 {
			h.t.Errorf("%d pods exist, want the running one and the one with a finalizer", n)
		}
	})
}

// A device may not have a deleted pod, for example because it never started the pod, and then
// reports no phase for it. If such a pod has a finalizer, as a Job's pod has, the hub marks it as
// failed.
func TestAKeptPodFailsWhenItsDeviceNoLongerHasIt(t *testing.T) {
	listening(t, "the pod fails once", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		tell := func(seq uint64, pods ...wire.PodStatus) {
			h.t.Helper()
			synctest.Wait()
			if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"},
				wire.Pods{Boot: "b", Seq: seq, Generation: h.l.Snapshot().Record("pi-1").Generation, Pods: pods}); err != nil {
				h.t.Fatal(err)
			}
			synctest.Wait()
		}
		phase := func(name string) corev1.PodPhase {
			if p := h.l.Snapshot().Pod("default", name); p != nil {
				return p.Status.Phase
			}
			return "gone"
		}
		h.leaving("free", "held", "done", "holding")
		for _, name := range []string{"held", "done", "holding"} {
			p := h.l.Snapshot().Pod("default", name).DeepCopy()
			p.Finalizers = []string{"batch.kubernetes.io/job-tracking.example.org"}
			h.write(p)
		}
		tell(2, said("done", corev1.PodSucceeded), said("holding", corev1.PodRunning), said("held", corev1.PodPending),
			said("free", corev1.PodPending))
		tell(3, said("holding", corev1.PodRunning))
		since := h.l.Snapshot().Revision
		tell(4, said("holding", corev1.PodRunning))
		for name, want := range map[string]corev1.PodPhase{"free": "gone", "held": corev1.PodFailed,
			"done": corev1.PodSucceeded, "holding": corev1.PodRunning} {
			if got := phase(name); got != want {
				h.t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		if is := h.l.Snapshot().Revision; is != since {
			h.t.Errorf("the repeated list has changed the fleet: %d, %d", since, is)
		}
	})
	listening(t, "the waiting Job creates another pod", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		failed := batchv1.Failed
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "copy"}, Spec: batchv1.JobSpec{
			Parallelism: new(int32(1)), Completions: new(int32(1)), BackoffLimit: new(int32(6)), PodReplacementPolicy: &failed,
			CompletionMode: new(batchv1.NonIndexedCompletion),
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"job": "copy"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job": "copy"}},
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
					Containers: []corev1.Container{{Name: "a", Image: "a"}}}},
		}}
		h.write(job)
		synctest.Wait()
		pods := func() (all []*corev1.Pod) {
			for p := range h.l.Snapshot().Pods("default") {
				all = append(all, p)
			}
			return all
		}
		made := pods()
		if len(made) != 1 {
			h.t.Fatalf("the Job has made %d pods", len(made))
		}
		was := made[0].DeepCopy()
		was.Spec.NodeName = "pi-1"
		h.write(was)
		if _, err := h.l.Do(h.t.Context(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			c, _ := state.Delete(s.Pod("default", was.Name), now, nil, "")
			return []state.Change{c}, nil
		}); err != nil {
			h.t.Fatal(err)
		}
		synctest.Wait()
		if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"},
			wire.Pods{Boot: "b", Seq: 2, Generation: h.l.Snapshot().Record("pi-1").Generation}); err != nil {
			h.t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if now := pods(); len(now) != 1 || now[0].UID == was.UID {
			h.t.Errorf("a minute later the Job has %d pods, the first %s, %s, deleted at %v", len(now), now[0].Name,
				now[0].Status.Phase, now[0].DeletionTimestamp)
		}
	})
}
