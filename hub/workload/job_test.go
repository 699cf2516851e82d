package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func aJob(edits ...func(*batchv1.JobSpec)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "task", Namespace: "default"}, Spec: batchv1.JobSpec{
		Completions: new(int32(1)), Parallelism: new(int32(1)), BackoffLimit: new(int32(6)), Suspend: new(false),
		CompletionMode: new(batchv1.NonIndexedCompletion), PodReplacementPolicy: new(batchv1.TerminatingOrFailed),
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
	for _, e := range edits {
		e(&j.Spec)
	}
	return j
}

func indexedJob(completions, parallelism int32) func(*batchv1.JobSpec) {
	return func(s *batchv1.JobSpec) {
		s.CompletionMode, s.Completions, s.Parallelism = new(batchv1.IndexedCompletion), &completions, &parallelism
	}
}

var taskKey = state.Key{Kind: state.Jobs, Namespace: "default", Name: "task"}

func (f *fleet) job() *batchv1.Job {
	f.t.Helper()
	j, _ := f.s.Get(taskKey).(*batchv1.Job)
	if j == nil {
		f.t.Fatal("the job is removed")
	}
	return j
}

// end ends the oldest n running pods, or the pods of the given indexes, with an exit code.
func (f *fleet) end(n int, code int32, index ...int) *fleet {
	f.t.Helper()
	for _, pod := range f.livePods() {
		if n == 0 {
			break
		}
		if len(index) > 0 && pod.Annotations[batchv1.JobCompletionIndexAnnotation] != fmt.Sprint(index[0]) {
			continue
		}
		n--
		f.edit(state.KeyOf(pod), func(o state.Object) {
			p := o.(*corev1.Pod)
			p.Spec.NodeName, p.Status.Phase = "pi-1", corev1.PodSucceeded
			if code != 0 {
				p.Status.Phase = corev1.PodFailed
			}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
		})
	}
	if n > 0 {
		f.t.Fatalf("there are %d pods too few to end", n)
	}
	return f.settle().quiet()
}

// tally returns a Job's status as a line.
func (f *fleet) tally() string {
	f.t.Helper()
	j := f.job()
	text := fmt.Sprintf("%d active, %d succeeded, %d failed", j.Status.Active, j.Status.Succeeded, j.Status.Failed)
	if j.Status.CompletedIndexes != "" {
		text += ", indexes " + j.Status.CompletedIndexes
	}
	if x := j.Status.FailedIndexes; x != nil && *x != "" {
		text += ", failed " + *x
	}
	if end := state.JobEnd(j); end != nil {
		text += ", " + string(end.Type) + " " + end.Reason
	}
	return text
}

func (f *fleet) is(want string) *fleet {
	f.t.Helper()
	if got := f.tally(); got != want {
		f.t.Errorf("the job has %s, want %s", got, want)
	}
	return f
}

func TestAJobRunsToItsEnd(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) {
		s.Completions, s.Parallelism = new(int32(5)),
			new(int32(2))
	})).settle().quiet()
	f.is("2 active, 0 succeeded, 0 failed")
	j := f.job()
	if uid := string(j.UID); j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] != uid ||
		j.Spec.Template.Labels["job-name"] != "task" || j.Status.StartTime == nil {
		t.Errorf("the labels or the start time are missing: spec %+v, status %+v", j.Spec, j.Status)
	}
	f.end(2, 0).is("2 active, 2 succeeded, 0 failed")
	f.end(1, 0).is("2 active, 3 succeeded, 0 failed")
	f.end(2, 0).is("0 active, 5 succeeded, 0 failed, Complete CompletionsReached")
	for pod := range f.s.Pods("") {
		if len(pod.Finalizers) > 0 {
			t.Errorf("%s still has the finalizers %v", pod.Name, pod.Finalizers)
		}
	}
	if j := f.job(); j.Status.CompletionTime == nil || state.JobCondition(j, batchv1.JobSuccessCriteriaMet) == nil {
		t.Errorf("the completion is missing from the status %+v", j.Status)
	}
	f.pass(24 * time.Hour).is("0 active, 5 succeeded, 0 failed, Complete CompletionsReached")
}

// Failed pods are retried after 10 s, 20 s and so on up to the limit, and not earlier.
func TestAFailingJobBacksOff(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) { s.BackoffLimit = new(int32(3)) })).settle().quiet()
	for i, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		f.end(1, 3).is(fmt.Sprintf("0 active, 0 succeeded, %d failed", i+1))
		f.pass(wait - time.Second).quiet().is(fmt.Sprintf("0 active, 0 succeeded, %d failed", i+1))
		f.pass(time.Second).quiet().is(fmt.Sprintf("1 active, 0 succeeded, %d failed", i+1))
	}
	f.end(1, 3).is("0 active, 0 succeeded, 4 failed, Failed BackoffLimitExceeded")
	if n := len(f.pods()); n != 4 {
		t.Errorf("%d failed pods remain, want 4", n)
	}
}

// A pod that runs for a long time before it fails does not reset the back-off; a success does.
func TestOnlyASuccessResetsAJobsBackOff(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) { s.Completions = new(int32(2)) })).settle().quiet()
	for i, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		f.pass(time.Hour).end(1, 3).is(fmt.Sprintf("0 active, 0 succeeded, %d failed", i+1))
		f.pass(wait - time.Second).quiet().is(fmt.Sprintf("0 active, 0 succeeded, %d failed", i+1))
		f.pass(time.Second).quiet().is(fmt.Sprintf("1 active, 0 succeeded, %d failed", i+1))
	}
	f.end(1, 0).is("1 active, 1 succeeded, 3 failed").end(1,
		3).pass(10 * time.Second).is("1 active, 1 succeeded, 4 failed")
}

// A Job that runs for months on devices that are off each night soon gets a new pod each time.
func TestAnEvictedJobIsRetriedSoon(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) { s.BackoffLimit = new(int32(99)) })).settle()
	for i := range 20 {
		f.pass(24*time.Hour).edit(state.KeyOf(f.livePods()[0]), func(o state.Object) {
			p := o.(*corev1.Pod)
			p.Spec.NodeName, p.Status.Phase = "pi-1", corev1.PodFailed
			state.SetPodCondition(p, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "DeletionByTaintManager"}, f.now)
		})
		f.settle().pass(10 * time.Second).quiet().is(fmt.Sprintf("1 active, 0 succeeded, %d failed", i+1))
	}
}

// Pods that are lost with their node are replaced with the back-off of failures, even if the
// failure policy ignores them.
func TestEvictedPodsOfAJobBackOff(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) {
		s.PodReplacementPolicy = new(batchv1.Failed)
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:          batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget}},
		}}}
	})).settle()
	for end := f.now.Add(time.Hour); f.now.Before(end); f.pass(time.Second) {
		for _, pod := range f.livePods() {
			f.edit(state.KeyOf(pod), func(o state.Object) {
				p := o.(*corev1.Pod)
				p.Spec.NodeName, p.Status.Phase = "pi-1", corev1.PodFailed
				state.SetPodCondition(p, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}, f.now)
			})
		}
	}
	if n := len(f.pods()); n < 8 || n > 14 {
		t.Errorf("%d pods in an hour, want 8 to 14", n)
	}
	f.is("0 active, 0 succeeded, 0 failed")
}

// A pod that a user deletes counts as failed once, when its finalizer is removed.
func TestADeletedPodOfAJobCountsOnce(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob()).settle()
	pod := f.livePods()[0]
	f.edit(state.KeyOf(pod), func(o state.Object) { o.(*corev1.Pod).Spec.NodeName = "pi-1" }).settle()
	c, _ := state.Delete(f.s.Pod("default", pod.Name), f.now, nil, "")
	f.apply(c)
	f.settle().quiet().is("0 active, 0 succeeded, 1 failed")
	if p := f.s.Pod("default", pod.Name); len(p.Finalizers) != 0 || *f.job().Status.Terminating != 1 {
		t.Errorf("the pod has the finalizers %v, want none; the status is %v", p.Finalizers, f.job().Status)
	}
	f.pass(10 * time.Second).is("1 active, 0 succeeded, 1 failed")

	waits := f.livePods()[0] // without a device, only the Job removes the pod's finalizer
	c, _ = state.Delete(waits, f.now, nil, "")
	f.apply(c)
	f.settle().quiet().is("0 active, 0 succeeded, 2 failed")
	if f.s.Pod("default", waits.Name) != nil {
		t.Error("the pod is not removed")
	}
}

// A Job that replaces pods only after they have ended does not wait for a pod on an out-of-service
// node. The taint may come before or after the deletion.
func TestAJobContinuesWithoutAnOutOfServiceNode(t *testing.T) {
	out := func(f *fleet, _ *corev1.Pod) {
		f.edit(state.Key{Kind: state.Nodes, Name: "pi-1"}, func(o state.Object) {
			n := o.(*corev1.Node)
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService,
				Effect: corev1.TaintEffectNoExecute})
		}).settle().quiet()
	}
	leave := func(f *fleet, pod *corev1.Pod) {
		c, _ := state.Delete(f.s.Pod("default", pod.Name), f.now, nil, "")
		f.apply(c)
		f.settle().quiet()
	}
	for name, steps := range map[string][]func(*fleet, *corev1.Pod){"asked before": {leave, out},
		"asked after": {out, leave}} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) { s.PodReplacementPolicy = new(batchv1.Failed) })).settle()
			pod := f.livePods()[0]
			f.edit(state.KeyOf(pod), func(o state.Object) {
				p := o.(*corev1.Pod)
				p.Spec.NodeName, p.Status.Phase = "pi-1", corev1.PodRunning
			}).settle()
			for _, step := range steps {
				step(f, pod)
			}
			if f.is("0 active, 0 succeeded, 1 failed"); f.s.Pod("default", pod.Name) != nil {
				t.Error("the pod is not removed")
			}
			f.pass(10 * time.Second).is("1 active, 0 succeeded, 1 failed")
		})
	}
}

func TestAnIndexedJob(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(indexedJob(4, 2))).settle().quiet()
	for _, pod := range f.livePods() {
		i := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
		if !strings.HasPrefix(pod.Name, "task-"+i+"-") || pod.Spec.Hostname != "task-"+i ||
			pod.Labels[batchv1.JobCompletionIndexAnnotation] != i ||
			pod.Spec.Containers[0].Env[0].ValueFrom.FieldRef.FieldPath != "metadata.annotations['batch.kubernetes.io/job-completion-index']" {
			t.Errorf("the pod's index is not in its name, label and environment: %+v %+v", pod.ObjectMeta, pod.Spec)
		}
	}
	f.end(1, 0, 1).is("2 active, 1 succeeded, 0 failed, indexes 1")
	f.end(1, 1, 2).is("1 active, 1 succeeded, 1 failed, indexes 1")
	f.pass(10 * time.Second).is("2 active, 1 succeeded, 1 failed, indexes 1")
	f.end(1, 0, 2).end(1, 0, 0).is("1 active, 3 succeeded, 1 failed, indexes 0-2")
	f.end(1, 0, 3).is("0 active, 4 succeeded, 1 failed, indexes 0-3, Complete CompletionsReached")
}

// An Indexed Job that is scaled down completes with the remaining indexes.
func TestAnIndexedJobIsScaled(t *testing.T) {
	scale := func(f *fleet, n int32) *fleet {
		return f.edit(taskKey, func(o state.Object) {
			j := o.(*batchv1.Job)
			j.Generation++
			j.Spec.Completions, j.Spec.Parallelism = &n, &n
		}).settle().quiet()
	}
	f := newFleet(t).put(node("pi-1"), aJob(indexedJob(6, 6))).settle().quiet()
	f.end(1, 0, 1).end(1, 0, 3).end(1, 0, 4).end(1, 0, 5).is("2 active, 4 succeeded, 0 failed, indexes 1,3-5")
	scale(f, 3).is("2 active, 1 succeeded, 0 failed, indexes 1")
	scale(f, 4).is("3 active, 1 succeeded, 0 failed, indexes 1")
	scale(f, 3).end(1, 0, 0).end(1, 0, 2).is("0 active, 3 succeeded, 0 failed, indexes 0-2, Complete CompletionsReached")

	limited := func(s *batchv1.JobSpec) {
		s.BackoffLimitPerIndex, s.BackoffLimit, s.PodReplacementPolicy = new(int32(0)), new(int32(1<<31-1)),
			new(batchv1.Failed)
	}
	f = newFleet(t).put(node("pi-1"), aJob(indexedJob(4, 4), limited)).settle().quiet()
	f.end(1, 1, 2).is("3 active, 0 succeeded, 1 failed, failed 2")
	scale(f, 2).is("2 active, 0 succeeded, 1 failed").end(1, 0, 0).end(1, 0,
		1).is("0 active, 2 succeeded, 1 failed, indexes 0,1, Complete CompletionsReached")
}

func TestTheBackoffLimitPerIndex(t *testing.T) {
	limited := func(s *batchv1.JobSpec) { s.BackoffLimitPerIndex, s.BackoffLimit = new(int32(1)), new(int32(1<<31-1)) }
	f := newFleet(t).put(node("pi-1"), aJob(indexedJob(2, 2), limited)).settle().quiet()
	f.end(1, 1, 0).is("1 active, 0 succeeded, 1 failed").pass(10 * time.Second).is("2 active, 0 succeeded, 1 failed")
	f.end(1, 1, 0).is("1 active, 0 succeeded, 2 failed, failed 0").pass(time.Hour).is("1 active, 0 succeeded, 2 failed, failed 0")
	f.end(1, 0, 1).is("0 active, 1 succeeded, 2 failed, indexes 1, failed 0, Failed FailedIndexes")

	f = newFleet(t).put(node("pi-1"), aJob(indexedJob(4, 4), limited, func(s *batchv1.JobSpec) {
		s.MaxFailedIndexes = new(int32(0))
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: batchv1.PodFailurePolicyActionFailIndex,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn,
				Values: []int32{1}},
		}}}
	})).settle()
	f.end(1, 1, 0).is("3 active, 0 succeeded, 1 failed")
	f.end(1, 42, 1)
	if got := f.tally(); !strings.Contains(got, "failed 1, Failed MaxFailedIndexesExceeded") {
		t.Error(got)
	}
}

// The failures of an index count after its pods are removed, even much later. A failure that the
// policy ignores does not count while its pod exists.
func TestFailuresOfAnIndexOutliveItsPods(t *testing.T) {
	limited := func(s *batchv1.JobSpec) { s.BackoffLimitPerIndex, s.BackoffLimit = new(int32(2)), new(int32(1<<31-1)) }
	f := newFleet(t).put(node("pi-1"), aJob(indexedJob(2, 2), limited)).settle().quiet()
	for i, want := range []string{"2 active, 0 succeeded, 1 failed", "2 active, 0 succeeded, 2 failed",
		"1 active, 0 succeeded, 3 failed, failed 0"} {
		pod := f.livePods()[slices.IndexFunc(f.livePods(),
			func(p *corev1.Pod) bool { return p.Annotations[batchv1.JobCompletionIndexAnnotation] == "0" })]
		if got := pod.Annotations[batchv1.JobIndexFailureCountAnnotation]; got != fmt.Sprint(i) {
			t.Errorf("pod %d is annotated with %s failures of its index", i, got)
		}
		f.edit(state.KeyOf(pod), func(o state.Object) { o.(*corev1.Pod).Spec.NodeName = "pi-1" }).settle()
		c, _ := state.Delete(f.s.Pod("default", pod.Name), f.now, nil, "")
		f.apply(c)
		f.settle().quiet().remove(state.KeyOf(pod)).pass(time.Hour).quiet().is(want)
	}

	f = newFleet(t).put(node("pi-1"), aJob(indexedJob(1, 1), limited, func(s *batchv1.JobSpec) {
		s.BackoffLimitPerIndex = new(int32(0))
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: batchv1.PodFailurePolicyActionIgnore,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn,
				Values: []int32{42}},
		}}}
	})).settle()
	for range 2 {
		f.end(1, 42, 0).pass(time.Hour).is("1 active, 0 succeeded, 0 failed")
		if got := f.livePods()[0].Annotations[batchv1.JobIndexFailureCountAnnotation]; got != "0" {
			t.Errorf("an ignored failure counts: %s", got)
		}
	}
	f.end(1, 1, 0).is("0 active, 0 succeeded, 1 failed, failed 0, Failed FailedIndexes")
	f.remove(taskKey).settle().quiet()
	for l := range f.s.All(state.Losses, "") {
		t.Errorf("the back-off %s remains", l.GetName())
	}
}

func TestAPolicyRuleEndsAJob(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(indexedJob(5, 5), func(s *batchv1.JobSpec) {
		s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: new("1,3-4"),
			SucceededCount: new(int32(2))}}}
	})).settle()
	f.end(1, 0, 0).end(1, 0, 3).is("3 active, 2 succeeded, 0 failed, indexes 0,3")
	f.end(1, 0, 4).is("0 active, 3 succeeded, 0 failed, indexes 0,3,4, Complete SuccessPolicy")

	f = newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) {
		s.Completions, s.Parallelism = new(int32(3)), new(int32(3))
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: new("c"),
				Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
		}}}
	})).settle()
	f.end(1, 41).is("2 active, 0 succeeded, 1 failed")
	f.end(1, 42)
	if end := state.JobEnd(f.job()); end == nil || end.Reason != "PodFailurePolicy" || !strings.HasSuffix(end.Message,
		"failed with exit code 42 matching FailJob rule at index 0") {
		t.Errorf("the Job's end is %+v, want the matching rule", end)
	}
}

// A failed Job ends only when all of its pods have stopped.
func TestADeadlineEndsAJob(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) {
		s.ActiveDeadlineSeconds, s.TTLSecondsAfterFinished = new(int64(60)), new(int32(30))
	})).settle()
	pod := f.livePods()[0]
	f.edit(state.KeyOf(pod), func(o state.Object) { o.(*corev1.Pod).Spec.NodeName = "pi-1" })
	f.pass(59 * time.Second).is("1 active, 0 succeeded, 0 failed")
	f.pass(time.Second).quiet().is("0 active, 0 succeeded, 1 failed")
	if c := state.JobCondition(f.job(), batchv1.JobFailureTarget); c == nil || c.Reason != "DeadlineExceeded" {
		t.Errorf("the status is %+v, want FailureTarget with DeadlineExceeded", f.job().Status)
	}
	f.pass(time.Hour).is("0 active, 0 succeeded, 1 failed") // the pod's device is silent
	f.remove(state.KeyOf(pod)).settle().quiet().is("0 active, 0 succeeded, 1 failed, Failed DeadlineExceeded")
	f.pass(29 * time.Second)
	f.job()
	if f.pass(time.Second); f.s.Get(taskKey) != nil {
		t.Error("the job exists after its TTL")
	}
}

func TestAJobIsSuspendedAndResumed(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = new(int64(60)) })).settle()
	suspend := func(yes bool) {
		f.edit(taskKey, func(o state.Object) { o.(*batchv1.Job).Spec.Suspend = &yes }).settle().quiet()
	}
	f.pass(50 * time.Second)
	suspend(true)
	f.is("0 active, 0 succeeded, 0 failed").pass(time.Hour).is("0 active, 0 succeeded, 0 failed")
	if state.JobCondition(f.job(), batchv1.JobSuspended) == nil {
		t.Errorf("the conditions are %+v, want Suspended", f.job().Status.Conditions)
	}
	suspend(false)
	f.pass(59 * time.Second).is("1 active, 0 succeeded, 0 failed") // the deadline starts again
	f.end(1, 0).is("0 active, 1 succeeded, 0 failed, Complete CompletionsReached")
}

// A finished Job with an external controller is deleted after its ttlSecondsAfterFinished. The hub
// changes nothing else of it.
func TestAnExternallyManagedJobExpires(t *testing.T) {
	for _, c := range []struct {
		name string
		end  batchv1.JobConditionType
		ttl  *int32
		left int
	}{
		{"a Job that is complete", batchv1.JobComplete, new(int32(60)), 0},
		{"a Job that has failed", batchv1.JobFailed, new(int32(60)), 0},
		{"a Job that is suspended", batchv1.JobSuspended, new(int32(60)), 1},
		{"a Job without ttlSecondsAfterFinished", batchv1.JobComplete, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(aJob(func(s *batchv1.JobSpec) {
				s.ManagedBy, s.TTLSecondsAfterFinished = new("kueue.x-k8s.io/multikueue"), c.ttl
			})).settle().pass(time.Hour)
			f.edit(state.KeyOf(f.job()), func(o state.Object) {
				o.(*batchv1.Job).Status.Conditions = []batchv1.JobCondition{{Type: c.end, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(f.now)}}
			}).pass(59 * time.Second)
			if n := len(f.jobs()); n != 1 || len(f.pods()) != 0 {
				t.Errorf("before the TTL there are %d Jobs and the pods %v", n, f.pods())
			}
			f.pass(time.Second)
			if n := len(f.jobs()); n != c.left {
				t.Errorf("%d Jobs remain, want %d", n, c.left)
			}
		})
	}
}

func TestADeletedJobReleasesItsPods(t *testing.T) {
	for _, orphan := range []bool{false, true} {
		f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) {
			s.Completions, s.Parallelism = new(int32(3)),
				new(int32(3))
		})).settle()
		f.end(1, 0)
		f.edit(state.KeyOf(f.livePods()[0]), func(o state.Object) { o.(*corev1.Pod).Spec.NodeName = "pi-1" }).settle()
		if orphan {
			f.edit(taskKey, func(o state.Object) {
				at := metav1.NewTime(f.now)
				o.SetFinalizers([]string{metav1.FinalizerOrphanDependents})
				o.SetDeletionTimestamp(&at)
			})
		} else {
			f.remove(taskKey)
		}
		f.settle().quiet()
		if f.s.Get(taskKey) != nil {
			t.Fatal("the job is not removed")
		}
		n := 0
		for pod := range f.s.Pods("") {
			n++
			if len(pod.Finalizers)+len(pod.OwnerReferences) > 0 && orphan || len(pod.Finalizers) > 0 {
				t.Errorf("orphan=%v: pod %s has the finalizers %v and the owners %v", orphan, pod.Name, pod.Finalizers,
					pod.OwnerReferences)
			}
		}
		if want := map[bool]int{false: 1, true: 3}[orphan]; n != want { // the running pod has to stop first
			t.Errorf("orphan=%v: %d pods remain", orphan, n)
		}
	}
}

// If the deadline of a Job passed while the hub could not receive reports, the Job fails only after
// its devices have had time to report.
func TestAJobIsLateOnlyAfterItsDevicesReport(t *testing.T) {
	for _, c := range []struct {
		name string
		does func(*fleet)
		want batchv1.JobConditionType
	}{
		{"the pod reports that it succeeded in time", func(f *fleet) { f.pass(10*time.Second).end(1, 0) }, batchv1.JobComplete},
		{"the pod reports that it runs", func(f *fleet) { f.pass(40 * time.Second).run("pi-1").settle() }, batchv1.JobFailed},
		{"the device may still report", func(f *fleet) { f.pass(39 * time.Second) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			f.d.Silence = state.Timeouts{Grace: 40 * time.Second, Lease: 10 * time.Second}
			f.put(node("pi-1"), aJob(func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = new(int64(60)) })).settle().run("pi-1").settle()
			f.now = f.now.Add(10 * time.Minute)
			f.s = f.s.Listen(f.now)
			c.does(f.settle().quiet())
			f.quiet()
			var got batchv1.JobConditionType
			if end := state.JobEnd(f.job()); end != nil {
				got = end.Type
			}
			if got != c.want {
				t.Errorf("the job ends with %q, want %q: %+v", got, c.want, f.job().Status.Conditions)
			}
		})
	}
}

// A Job adopts matching pods, and releases pods that no longer match.
func TestAJobAdoptsAndReleasesPods(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob()).settle()
	k := state.KeyOf(f.livePods()[0])
	f.edit(k, func(o state.Object) { o.SetOwnerReferences(nil) }).settle().quiet()
	if p := f.s.Pod("default", k.Name); metav1.GetControllerOf(p) == nil || len(f.livePods()) != 1 {
		t.Errorf("the pod is not adopted: %+v", p.ObjectMeta)
	}
	f.edit(k, func(o state.Object) { o.SetLabels(nil) }).settle().quiet()
	if p := f.s.Pod("default", k.Name); metav1.GetControllerOf(p) != nil || len(p.Finalizers) > 0 ||
		len(f.livePods()) != 2 {
		t.Errorf("the pod is not released and replaced: %+v", p.ObjectMeta)
	}
}

func TestIndexesAreWrittenAsKubernetesDoes(t *testing.T) {
	for _, c := range [][2]string{{"", ""}, {"0", "0"}, {"1,2", "1,2"}, {"1-2", "1,2"}, {"0,1,2,5,7,8", "0-2,5,7,8"},
		{"3-1,x,4", "4"}, {"5,1", "5"}, {"0-999999999", ""}} {
		if got := parseIndexes(c[0]).String(); got != c[1] {
			t.Errorf("the indexes %q are written as %q, want %q", c[0], got, c[1])
		}
	}
}

// A Job without defaults, as in a restored database, causes no panic.
func TestAJobWithoutDefaultsIsDecided(t *testing.T) {
	newFleet(t).put(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "task", Namespace: "default"}},
		&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"}}).settle()
}

func aCronJob(schedule string, edits ...func(*batchv1.CronJobSpec)) *batchv1.CronJob {
	c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: "default"}, Spec: batchv1.CronJobSpec{
		Schedule: schedule, ConcurrencyPolicy: batchv1.AllowConcurrent, Suspend: new(false),
		SuccessfulJobsHistoryLimit: new(int32(3)), FailedJobsHistoryLimit: new(int32(1)),
		JobTemplate: batchv1.JobTemplateSpec{Spec: aJob().Spec},
	}}
	for _, e := range edits {
		e(&c.Spec)
	}
	return c
}

func (f *fleet) jobs() (names []string) {
	for j := range state.Each[*batchv1.Job](f.s, state.Jobs, "default") {
		at, _ := time.Parse(time.RFC3339, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
		names = append(names, at.Format("15:04"))
	}
	slices.Sort(names)
	return names
}

// deleteJob deletes the Jobs in the foreground while their pods run.
func (f *fleet) deleteJob() *fleet {
	f.run("pi-1")
	for j := range state.Each[*batchv1.Job](f.s, state.Jobs, "default") {
		f.edit(state.KeyOf(j), func(o state.Object) {
			o.SetDeletionTimestamp(&metav1.Time{Time: f.now})
			o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
		})
	}
	return f.settle()
}

// A force-deleted pod counts and is removed, despite its Job's finalizer.
func TestAForceDeletedPodOfAJobIsRemoved(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob()).settle().run("pi-1").settle()
	pod := f.livePods()[0]
	c, _ := state.Delete(pod, f.now, new(int64(0)), "")
	f.apply(c)
	f.settle().quiet()
	if f.s.Pod(pod.Namespace, pod.Name) != nil {
		t.Error("the force-deleted pod waits for its device")
	}
	f.is("0 active, 0 succeeded, 1 failed").pass(time.Minute).is("1 active, 0 succeeded, 1 failed")
	f.run("pi-1").settle()
	pod = f.livePods()[0] // the Job and its pod are deleted at the same time
	f.edit(taskKey, func(o state.Object) { o.(*batchv1.Job).Spec.Suspend = new(true) }).settle()
	c, _ = state.Delete(f.s.Pod(pod.Namespace, pod.Name), f.now, new(int64(0)), "")
	f.apply(c)
	if f.settle().quiet(); len(f.pods()) != 0 {
		t.Errorf("the pods %v remain, want none", f.pods())
	}
}

// A force-deleted pod is also removed if the Job waits for the end of its pods, as with a
// podFailurePolicy, and if the pod was evicted long ago from a silent device.
func TestAForceDeletedPodOfAWaitingJobIsRemoved(t *testing.T) {
	for _, policy := range []batchv1.PodReplacementPolicy{batchv1.TerminatingOrFailed, batchv1.Failed} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprint(policy, " evicted before ", before), func(t *testing.T) {
				f := newFleet(t).put(node("pi-1"), aJob(func(s *batchv1.JobSpec) { s.PodReplacementPolicy = &policy })).settle().run("pi-1").settle()
				pod := f.livePods()[0]
				if before {
					c, _ := state.Evict(pod, f.now, "DeletionByTaintManager", "")
					f.apply(c)
					f.settle().pass(time.Hour)
				}
				if c, ok := state.Delete(f.s.Pod(pod.Namespace, pod.Name), f.now, new(int64(0)), ""); ok {
					f.apply(c)
				}
				f.settle().quiet()
				if f.s.Pod(pod.Namespace, pod.Name) != nil {
					t.Error("the force-deleted pod waits for its device")
				}
				f.pass(time.Minute).is("1 active, 0 succeeded, 1 failed")
			})
		}
	}
}

// stopped reports for all devices that the terminating pods have stopped.
func (f *fleet) stopped() *fleet {
	for p := range f.s.Pods("") {
		if p.DeletionTimestamp != nil {
			f.remove(state.KeyOf(p))
		}
	}
	return f.settle()
}

// byHand creates a Job as "kubectl create job --from" does.
func (f *fleet) byHand(cron string) *fleet {
	c := f.s.Get(state.Key{Kind: state.CronJobs, Namespace: "default", Name: cron}).(*batchv1.CronJob)
	job := aJob()
	job.Name, job.Annotations = "by-hand", map[string]string{"cronjob.kubernetes.io/instantiate": "manual"}
	job.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: cron, UID: c.UID,
		Controller: new(true)}}
	return f.put(job).settle()
}

// A CronJob gets one event for each end of a Job, in Kubernetes' words.
func TestACronJobHasEventsForItsJobs(t *testing.T) {
	forbid := func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ForbidConcurrent }
	for _, c := range []struct {
		name string
		edit func(*batchv1.CronJobSpec)
		does func(*fleet)
		want []string
	}{
		{"a Job that has ended", nil, func(f *fleet) { f.pass(15*time.Minute).end(1, 0) },
			[]string{"SuccessfulCreate Created job nightly-", "SawCompletedJob Saw completed job: nightly-"}},
		{"one event for each start that waits for the last Job", forbid, func(f *fleet) {
			f.pass(15 * time.Minute).run("pi-1").pass(10 * time.Minute).settle().pass(5 * time.Minute).pass(5 * time.Minute)
		}, []string{"SuccessfulCreate Created job nightly-",
			"JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid",
			"JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid"}},
		{"a start that waits for the last Job, which ends", forbid, func(f *fleet) { f.pass(25*time.Minute).end(1, 0) },
			[]string{"SuccessfulCreate Created job nightly-", "JobAlreadyActive Not starting job", "SuccessfulCreate Created job nightly-", "SawCompletedJob Saw completed job: nightly-"}},
		{"a Job that a user created", nil, func(f *fleet) { f.settle().byHand("nightly").settle() },
			[]string{"UnexpectedJob Saw a job that the controller did not create or forgot: "}},
		{"a Job that a user deleted", nil, func(f *fleet) {
			f.pass(15 * time.Minute)
			for j := range state.Each[*batchv1.Job](f.s, state.Jobs, "default") {
				f.remove(state.KeyOf(j))
			}
			f.settle()
		}, []string{"SuccessfulCreate Created job nightly-", "MissingJob Active job went missing: nightly-"}},
		{"a Job that replaces another", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ReplaceConcurrent }, func(f *fleet) { f.pass(25 * time.Minute) },
			[]string{"SuccessfulCreate Created job nightly-", "SuccessfulDelete Deleted job nightly-", "SuccessfulCreate Created job nightly-"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cj := aCronJob("*/10 * * * *")
			if c.edit != nil {
				c.edit(&cj.Spec)
			}
			f := newFleet(t).put(node("pi-1"), cj)
			c.does(f)
			f.settle().quiet()
			var got []string
			for _, x := range f.changes {
				if x.Source == "cronjob-controller" {
					if about := cmp.Or(x.About, x.Object); state.KindOf(about) != state.CronJobs {
						t.Errorf("the event %s is about %s, want the CronJob", x.Reason, state.KeyOf(about))
					}
					got = append(got, x.Reason+" "+x.Message)
				}
			}
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("the events are %q, want %q", got, c.want)
			}
		})
	}
}

func TestACronJobStartsItsJobs(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*batchv1.CronJobSpec)
		does func(*fleet)
		want string
	}{
		{"each Job when it is due", nil, func(f *fleet) { f.pass(25 * time.Minute) }, "[12:10 12:20]"},
		{"none while suspended", func(s *batchv1.CronJobSpec) { s.Suspend = new(true) }, func(f *fleet) { f.pass(time.Hour) }, "[]"},
		{"one Job for all missed starts", nil, func(f *fleet) { f.settle().now = start.Add(10 * time.Hour); f.settle() }, "[22:00]"},
		{"none after its starting deadline", func(s *batchv1.CronJobSpec) { s.StartingDeadlineSeconds = new(int64(60)) },
			func(f *fleet) { f.settle().now = start.Add(15 * time.Minute); f.settle() }, "[]"},
		{"Forbid: none while a Job runs", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ForbidConcurrent },
			func(f *fleet) { f.pass(35 * time.Minute) }, "[12:10]"},
		{"Forbid: late, after the running Job has ended", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ForbidConcurrent },
			func(f *fleet) { f.pass(35*time.Minute).end(1, 0) }, "[12:10 12:30]"},
		{"Replace: a new Job replaces the running one", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ReplaceConcurrent },
			func(f *fleet) { f.pass(35 * time.Minute) }, "[12:30]"},
		{"Forbid: none while the pods of a deleted Job stop", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ForbidConcurrent },
			func(f *fleet) { f.pass(15 * time.Minute).deleteJob().pass(20 * time.Minute) }, "[12:10]"},
		{"Forbid: late, after the pods of a deleted Job have stopped", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ForbidConcurrent },
			func(f *fleet) { f.pass(15 * time.Minute).deleteJob().pass(20 * time.Minute).stopped() }, "[12:30]"},
		{"Forbid: a manually started Job does not block", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ForbidConcurrent },
			func(f *fleet) { f.settle().byHand("nightly").pass(15 * time.Minute) }, "[00:00 12:10]"},
		{"Replace: a manually started Job is not replaced", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ReplaceConcurrent },
			func(f *fleet) { f.settle().byHand("nightly").pass(25 * time.Minute) }, "[00:00 12:20]"},
		{"in the CronJob's time zone", func(s *batchv1.CronJobSpec) { s.Schedule, s.TimeZone = "0 15 * * *", new("Europe/Oslo") },
			func(f *fleet) { f.pass(3 * time.Hour) }, "[15:00]"},
		{"an interval counts from the last start", func(s *batchv1.CronJobSpec) { s.Schedule, s.ConcurrencyPolicy = "@every 1h", batchv1.ForbidConcurrent }, func(f *fleet) {
			f.pass(time.Hour)
			for range 3 {
				f.pass(50*time.Minute).end(1, 0).pass(10 * time.Minute)
			}
		}, "[13:00 14:00 15:00 16:00]"},
		{"a late start of an interval within its starting deadline", func(s *batchv1.CronJobSpec) { s.Schedule, s.StartingDeadlineSeconds = "@every 1h", new(int64(60)) },
			func(f *fleet) { f.pass(130 * time.Minute) }, "[13:00 14:00]"},
		{"none after the starting deadline of an interval", func(s *batchv1.CronJobSpec) { s.Schedule, s.StartingDeadlineSeconds = "@every 1h", new(int64(60)) },
			func(f *fleet) { f.settle().now = start.Add(90 * time.Minute); f.settle().pass(30 * time.Minute) }, "[14:00]"},
		{"three successful Jobs are kept", nil, func(f *fleet) {
			for range 6 {
				f.pass(10*time.Minute).end(1, 0)
			}
		}, "[12:40 12:50 13:00]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cj := aCronJob("*/10 * * * *")
			if c.edit != nil {
				c.edit(&cj.Spec)
			}
			f := newFleet(t).put(node("pi-1"), cj)
			c.does(f)
			f.quiet()
			if got := fmt.Sprint(f.jobs()); got != c.want {
				t.Errorf("jobs %s, want %s", got, c.want)
			}
		})
	}
}

// A Job that a user deletes is not started again for the same minute.
func TestAStartIsNotRepeated(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aCronJob("*/10 * * * *")).pass(10 * time.Minute)
	for j := range state.Each[*batchv1.Job](f.s, state.Jobs, "default") {
		f.remove(state.KeyOf(j))
		break
	}
	if f.settle().quiet(); len(f.jobs()) != 0 {
		t.Error(f.jobs())
	}
}

// The last missed start is found quickly, however long the hub was down.
func TestTheLastMissedStartIsFound(t *testing.T) {
	p := &pass{now: time.Date(2026, 2, 15, 9, 30, 30, 0, time.UTC)}
	for schedule, want := range map[string]string{
		"* * * * *": "2026-02-15 09:30", "0,1 0 1 1 *": "2026-01-01 00:01", "* * * 1 *": "2026-01-31 23:59", "0 0 29 2 *": "2024-02-29 00:00",
		"0 0 31 2 *": "0001-01-01 00:00", "30 9 15 2 *": "2026-02-15 09:30", "31 9 15 2 *": "2025-02-15 09:31",
	} {
		c := aCronJob(schedule)
		c.CreationTimestamp = metav1.NewTime(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC))
		s, err := state.Schedule(&c.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if at, _ := p.dueAt(c, s); at.Format("2006-01-02 15:04") != want {
			t.Errorf("the last missed start of %s is %s, want %s", schedule, at, want)
		}
	}
}

// A Job without labels gets its pods' labels, because clients list Jobs by them.
func TestAJobWithoutLabelsGetsItsPodsLabels(t *testing.T) {
	bare, labelled := aJob(), aJob()
	bare.Name, bare.Labels, bare.Spec.Template.Labels = "bare", nil, map[string]string{"app": "kiosk"}
	labelled.Name, labelled.Labels = "labelled", map[string]string{"own": "yes"}
	f := newFleet(t).put(bare, labelled).settle()
	job := func(name string) *batchv1.Job {
		return f.s.Get(state.Key{Kind: state.Jobs, Namespace: "default", Name: name}).(*batchv1.Job)
	}
	if l := job("bare").Labels; l["app"] != "kiosk" || l[batchv1.JobNameLabel] != "bare" || l["job-name"] != "bare" ||
		l[batchv1.ControllerUidLabel] != string(job("bare").UID) {
		t.Errorf("a job without labels gets the labels %v", l)
	}
	if l := job("labelled").Labels; len(l) != 1 {
		t.Errorf("a job with labels gets the labels %v", l)
	}
}

// A failure takes precedence over a success policy when both apply in the same pass.
func TestAFailureTakesPrecedenceOverASuccessPolicy(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aJob(indexedJob(2, 2), func(s *batchv1.JobSpec) {
		s.BackoffLimitPerIndex, s.BackoffLimit = new(int32(0)), new(int32(6))
		s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}}
	})).settle()
	for _, pod := range f.livePods() {
		phase := corev1.PodSucceeded
		if pod.Annotations[batchv1.JobCompletionIndexAnnotation] == "1" {
			phase = corev1.PodFailed
		}
		f.edit(state.KeyOf(pod), func(o state.Object) {
			o.(*corev1.Pod).Spec.NodeName, o.(*corev1.Pod).Status.Phase = "pi-1", phase
		})
	}
	f.settle().quiet().is("0 active, 1 succeeded, 1 failed, indexes 0, failed 1, Failed FailedIndexes")
}
