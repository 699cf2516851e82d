package workload

import (
	"math/rand/v2"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// FuzzJobs changes Jobs at random. After each step a full recomputation changes nothing, each
// success counts exactly once even if its pod is deleted, no Job has more active pods than its
// parallelism, and no pod of a finished Job has a finalizer.
func FuzzJobs(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 7))
		fl := newFleet(t).put(node("pi-1"))
		fl.d = Decider{FinishedPods: 20}
		done := map[types.UID]int32{} // succeeded pods, counted independently of the decider
		for range 80 {
			disturbJobs(fl, r, done)
			fl.settle().quiet()
			if r.IntN(3) == 0 {
				fl.pass(time.Duration(r.IntN(120)) * time.Second).quiet()
			}
			for j := range state.Each[*batchv1.Job](fl.s, state.Jobs, "") {
				holdJob(t, seed, fl, j, done)
			}
			for pod := range fl.s.Pods("") {
				ref := metav1.GetControllerOf(pod)
				if tracked(pod) && (ref == nil || fl.s.ByUID(ref.UID) == nil) {
					t.Fatalf("seed %d: %s has the finalizer of a job that has ended", seed, pod.Name)
				}
			}
		}
	})
}

func holdJob(t *testing.T, seed uint64, f *fleet, j *batchv1.Job, done map[types.UID]int32) {
	t.Helper()
	if j.DeletionTimestamp != nil {
		return
	}
	live, indexes := int32(0), map[string]bool{}
	for o := range f.s.Owned(j.UID, state.Pods) {
		pod := o.(*corev1.Pod)
		if !controlledBy(pod, j) {
			continue
		}
		if tracked(pod) && (state.JobEnd(j) != nil || state.Terminated(pod)) {
			t.Fatalf("seed %d: %s is not counted: %+v", seed, pod.Name, j.Status)
		}
		if !active(pod) {
			continue
		}
		live++
		if i := pod.Annotations[batchv1.JobCompletionIndexAnnotation]; i != "" && indexes[i] {
			t.Fatalf("seed %d: two pods of index %s", seed, i)
		} else if i != "" {
			indexes[i] = true
		}
	}
	st := j.Status
	switch {
	case live > *j.Spec.Parallelism || st.Active != live:
		t.Fatalf("seed %d: %d pods of %s are active, want at most %d; its status says %d", seed, live, j.Name,
			*j.Spec.Parallelism, st.Active)
	case *j.Spec.CompletionMode == batchv1.NonIndexedCompletion && st.Succeeded != done[j.UID]:
		t.Fatalf("seed %d: %d pods of %s have succeeded, but its status says %d", seed, done[j.UID], j.Name, st.Succeeded)
	case state.JobCondition(j, batchv1.JobComplete) != nil && st.Succeeded < *j.Spec.Completions &&
		j.Spec.SuccessPolicy == nil:
		t.Fatalf("seed %d: %s is complete with %d of %d completions", seed, j.Name, st.Succeeded, *j.Spec.Completions)
	case st.Failed > *j.Spec.BackoffLimit+4: // so many pods may fail at the same time
		t.Fatalf("seed %d: %d pods of %s have failed, with a back-off limit of %d", seed, st.Failed, j.Name,
			*j.Spec.BackoffLimit)
	}
}

func disturbJobs(f *fleet, r *rand.Rand, done map[types.UID]int32) {
	key := state.Key{Kind: state.Jobs, Namespace: "default", Name: []string{"a", "b"}[r.IntN(2)]}
	job, _ := f.s.Get(key).(*batchv1.Job)
	var pods []*corev1.Pod
	for pod := range f.s.Pods("") {
		pods = append(pods, pod)
	}
	switch r.IntN(12) {
	case 0, 1: // create a Job
		if job != nil {
			return
		}
		j := aJob(func(s *batchv1.JobSpec) {
			s.Completions, s.Parallelism, s.BackoffLimit = new(int32(1+r.IntN(6))), new(int32(1+r.IntN(4))),
				new(int32(r.IntN(6)))
			if r.IntN(2) == 0 {
				s.CompletionMode = new(batchv1.IndexedCompletion)
				if r.IntN(2) == 0 {
					s.BackoffLimitPerIndex = new(int32(r.IntN(2)))
				}
			}
			if r.IntN(2) == 0 {
				s.PodReplacementPolicy = new(batchv1.Failed)
			}
			if r.IntN(4) == 0 {
				s.ActiveDeadlineSeconds = new(int64(60))
			}
			if r.IntN(4) == 0 {
				s.TTLSecondsAfterFinished = new(int32(30))
			}
		})
		j.Name = key.Name
		f.put(j)
	case 2: // delete it in one of several ways
		if job == nil || job.DeletionTimestamp != nil {
			return
		}
		if how := r.IntN(3); how == 0 {
			f.remove(key)
		} else {
			at := metav1.NewTime(f.now)
			f.edit(key, func(o state.Object) {
				o.SetDeletionTimestamp(&at)
				o.SetFinalizers([]string{[]string{"", metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}[how]})
			})
		}
	case 3: // change it
		if job != nil && job.DeletionTimestamp == nil {
			f.edit(key, func(o state.Object) {
				s := &o.(*batchv1.Job).Spec
				if r.IntN(2) == 0 {
					*s.Suspend = !*s.Suspend
				} else {
					*s.Parallelism = int32(1 + r.IntN(4))
				}
			})
		}
	case 4: // create or delete a CronJob
		k := state.Key{Kind: state.CronJobs, Namespace: "default", Name: "nightly"}
		if f.s.Get(k) != nil {
			f.remove(k)
		} else {
			f.put(aCronJob("* * * * *", func(s *batchv1.CronJobSpec) {
				s.ConcurrencyPolicy = []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent,
					batchv1.ReplaceConcurrent}[r.IntN(3)]
			}))
		}
	default: // change a pod
		if len(pods) == 0 {
			return
		}
		pod := pods[r.IntN(len(pods))]
		end := func(phase corev1.PodPhase, code int32) {
			if state.Terminated(pod) {
				return
			}
			ref := metav1.GetControllerOf(pod)
			if j, _ := f.s.Get(state.Key{Kind: state.Jobs, Namespace: "default",
				Name: ownerName(ref)}).(*batchv1.Job); phase == corev1.PodSucceeded && tracked(pod) && j != nil &&
				j.UID == ref.UID {
				done[ref.UID]++
			}
			f.edit(state.KeyOf(pod), func(o state.Object) {
				p := o.(*corev1.Pod)
				p.Spec.NodeName, p.Status.Phase = "pi-1", phase
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c",
					State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
			})
		}
		switch r.IntN(7) {
		case 0, 1:
			end(corev1.PodSucceeded, 0)
		case 2:
			end(corev1.PodFailed, 1)
		case 3:
			f.edit(state.KeyOf(pod), func(o state.Object) { o.(*corev1.Pod).Spec.NodeName = "pi-1" })
		case 4, 5:
			if c, ok := state.Delete(pod, f.now, nil, ""); ok {
				f.apply(c)
			}
		case 6:
			if len(pod.Finalizers) == 0 {
				f.apply(state.Remove(pod, ""))
			}
		}
	}
}

func ownerName(ref *metav1.OwnerReference) string {
	if ref == nil {
		return ""
	}
	return ref.Name
}
