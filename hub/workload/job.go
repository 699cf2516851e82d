package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

var jobKind = batchv1.SchemeGroupVersion.WithKind("Job")

// A run is the work on one Job. As in Kubernetes, a pod has a finalizer until it is counted. The
// transaction that counts the pod also removes the finalizer. So each pod counts exactly once, even
// if a user deletes it or the hub stops.
type run struct {
	*pass
	key  state.Key
	was  *batchv1.Job
	job  *batchv1.Job // with its new status
	live []*corev1.Pod
	all  []*corev1.Pod // the Job's pods, including finished ones
	next time.Time

	terminating, uncounted int32
	failed, succeeded      []*corev1.Pod // the pods that this pass counts
	done, lost             indexes
	verdict                *batchv1.JobCondition // how the Job ends: SuccessCriteriaMet or FailureTarget
	tell                   func(state.Change) state.Change
}

// job creates and deletes the pods of a Job, and updates its status. It counts the pods of a large
// Job only at intervals, but applies a change of its spec at once.
func (p *pass) job(k state.Key, orphans []state.Object, turn bool) {
	was, ok := p.s.Get(k).(*batchv1.Job)
	if !ok || p.born[k] {
		return
	}
	if managed(was) {
		p.expire(was)
		return
	}
	if !selectsOwn(was.Spec.Selector, &was.Spec.Template) {
		return
	}
	if p.deferWalk(k, state.PodsOf(p.s, was), turn || len(orphans) > 0) {
		return
	}
	if was.DeletionTimestamp != nil || p.terminating(k.Namespace) {
		p.untrackAll(was)
		return
	}
	if state.JobEnd(was) != nil {
		p.untrackAll(was)
		p.expire(was)
		return
	}
	r := &run{pass: p, key: k, was: was, job: was.DeepCopy()}
	r.gather(orphans)
	r.count()
	r.decideEnd()
	switch {
	case r.verdict != nil:
		r.stop(r.live, "it ends", r.verdict.Type == batchv1.JobFailureTarget)
	case ptr.Deref(r.job.Spec.Suspend, false):
		r.stop(r.live, "it is suspended", false)
	default:
		r.start()
	}
	r.status()
	if !r.next.IsZero() {
		p.wakeTurn(k, r.next)
	}
}

// managed reports whether an external controller manages the Job.
func managed(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

// expire deletes a Job that ended ttlSecondsAfterFinished ago, even an externally managed one.
func (p *pass) expire(j *batchv1.Job) {
	end, ttl := state.JobEnd(j), j.Spec.TTLSecondsAfterFinished
	if end == nil || ttl == nil {
		return
	}
	if at := end.LastTransitionTime.Add(time.Duration(*ttl) * time.Second); at.After(p.now) {
		p.wakeTurn(state.KeyOf(j), at)
		return
	}
	p.removeObject(j, fmt.Sprintf("delete job %s: it ended %d s ago", state.Display(j), *ttl))
}

// untrackAll removes the finalizers of a Job's pods that will not be counted any more.
func (p *pass) untrackAll(j *batchv1.Job) {
	var held []*corev1.Pod
	for o := range p.s.Owned(j.UID, state.Pods) {
		if pod := o.(*corev1.Pod); tracked(pod) {
			held = append(held, pod)
		}
	}
	for _, pod := range held {
		p.untrack(pod)
	}
}

// gather collects the Job's pods.
func (r *run) gather(orphans []state.Object) {
	var own []*corev1.Pod
	for o := range r.s.Owned(r.was.UID, state.Pods) {
		if pod := o.(*corev1.Pod); controlledBy(pod, r.was) {
			own = append(own, pod)
		}
	}
	for _, pod := range own {
		if !matches(r.was.Spec.Selector, pod.Labels) {
			if pod.DeletionTimestamp == nil {
				free := release(pod, r.was)
				free.SetFinalizers(without(free.GetFinalizers()))
				r.do(state.Put(free, fmt.Sprintf("release %s from %s: its labels no longer match", state.Display(pod), r.was.Name)))
			}
			continue
		}
		r.all = append(r.all, pod)
	}
	for _, pod := range r.adoptPods(r.was, jobKind, r.was.Spec.Selector, orphans) {
		pod = pod.DeepCopy()
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
		r.do(state.Put(pod, ""))
		r.all = append(r.all, pod)
	}
	for _, pod := range r.all {
		switch {
		case active(pod):
			r.live = append(r.live, pod)
		case !state.Terminated(pod):
			r.terminating++
		}
	}
	slices.SortFunc(r.all, byAge)
}

// count counts the pods that have finished since the last pass.
func (r *run) count() {
	st := &r.job.Status
	r.done, r.lost = parseIndexes(st.CompletedIndexes), indexes{}
	if st.FailedIndexes != nil {
		r.lost = parseIndexes(*st.FailedIndexes)
	}
	for _, pod := range r.all {
		if !tracked(pod) {
			continue
		}
		index, _ := r.index(pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			r.succeeded = append(r.succeeded, pod)
			if r.indexed() {
				r.done.add(index)
			} else {
				st.Succeeded++
			}
		case r.hasFailed(pod):
			r.failed = append(r.failed, pod)
			action, rule, why := r.failurePolicy(pod)
			switch action {
			case batchv1.PodFailurePolicyActionIgnore:
			case batchv1.PodFailurePolicyActionFailJob:
				st.Failed++
				r.fail(batchv1.JobReasonPodFailurePolicy, fmt.Sprintf("%s matching FailJob rule at index %d", why, rule))
			default:
				st.Failed++
				if limit := r.job.Spec.BackoffLimitPerIndex; limit != nil &&
					(action == batchv1.PodFailurePolicyActionFailIndex || failures(pod)+1 > *limit) {
					r.lost.add(index)
				}
			}
		case pod.DeletionTimestamp != nil || state.Terminated(pod):
			r.uncounted++
			continue
		default:
			continue
		}
		r.untrack(pod)
	}
	if r.indexed() {
		r.done.below(*r.job.Spec.Completions) // after completions was reduced, higher indexes are not needed
		r.lost.below(*r.job.Spec.Completions)
		st.Succeeded = r.done.len()
		st.CompletedIndexes = r.done.String()
	}
	if r.job.Spec.BackoffLimitPerIndex != nil {
		text := r.lost.String()
		st.FailedIndexes = &text
	}
	r.strikes()
}

func (r *run) indexed() bool {
	return ptr.Deref(r.job.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion &&
		r.job.Spec.Completions != nil
}

// index returns a pod's completion index; ok is false if it has none.
func (r *run) index(pod *corev1.Pod) (i int32, ok bool) {
	n, err := strconv.ParseUint(pod.Annotations[batchv1.JobCompletionIndexAnnotation], 10, 31)
	return int32(n), err == nil
}

// fail records why the Job fails. It keeps the first reason.
func (r *run) fail(reason, message string) {
	if r.verdict == nil {
		r.verdict = &batchv1.JobCondition{Type: batchv1.JobFailureTarget, Reason: reason, Message: message}
	}
}

func (r *run) succeed(reason, message string) {
	if r.verdict == nil {
		r.verdict = &batchv1.JobCondition{Type: batchv1.JobSuccessCriteriaMet, Reason: reason, Message: message}
	}
}

// decideEnd decides whether the Job ends. It keeps an earlier decision.
func (r *run) decideEnd() {
	spec, st := &r.job.Spec, &r.job.Status
	for _, t := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		if c := state.JobCondition(r.was, t); c != nil {
			r.verdict = &batchv1.JobCondition{Type: t, Reason: c.Reason, Message: c.Message}
			return
		}
	}
	if st.StartTime == nil && !ptr.Deref(spec.Suspend, false) {
		at := r.stamp()
		st.StartTime = &at
	}
	if st.Failed > ptr.Deref(spec.BackoffLimit, 6) || r.restarted() {
		r.fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if spec.ActiveDeadlineSeconds != nil && !ptr.Deref(spec.Suspend, false) {
		if at := r.deadline(); at.After(r.now) {
			setEarlier(&r.next, at)
		} else {
			r.fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		}
	}
	if m := spec.MaxFailedIndexes; m != nil && r.lost.len() > *m {
		r.fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	}
	if spec.Completions != nil && r.lost.len() > 0 && st.Succeeded+r.lost.len() >= *spec.Completions {
		r.fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	}
	r.applySuccessPolicy()
	switch {
	case spec.Completions == nil:
		if st.Succeeded > 0 && len(r.live) == 0 {
			r.succeed(batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		}
	case st.Succeeded >= *spec.Completions && (len(r.live) == 0 || r.indexed()):
		r.succeed(batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
}

// deadline returns when activeDeadlineSeconds ends. If that was while the hub could not receive
// reports, devices get a grace period first, because the pods may have finished in time.
func (r *run) deadline() time.Time {
	began := r.job.Status.StartTime.Time
	at := began.Add(time.Duration(*r.job.Spec.ActiveDeadlineSeconds) * time.Second)
	if !began.Before(r.s.Listening()) {
		return at
	}
	for _, pod := range slices.Concat(r.live, r.succeeded) {
		if n := r.s.Node(pod.Spec.NodeName); n != nil {
			if reported := r.Silence.UnseenUntil(r.s, n); reported.After(at) {
				at = reported
			}
		}
	}
	return at
}

// set sets a condition of the status.
func (r *run) set(c batchv1.JobCondition) {
	at := r.stamp()
	c.LastProbeTime, c.LastTransitionTime = at, at
	c.Status = cmp.Or(c.Status, corev1.ConditionTrue)
	conditions := &r.job.Status.Conditions
	i := slices.IndexFunc(*conditions, func(o batchv1.JobCondition) bool { return o.Type == c.Type })
	if i < 0 {
		*conditions = append(*conditions, c)
		return
	}
	if have := (*conditions)[i]; have.Status == c.Status && have.Reason == c.Reason && have.Message == c.Message {
		return
	}
	(*conditions)[i] = c
}

func (r *run) event(reason, message string, warn bool) {
	r.tell = func(c state.Change) state.Change {
		c.Why, c.Reason, c.Message, c.Warn, c.Source = fmt.Sprintf("job %s: %s", state.Display(r.was), message), reason,
			message, warn, "job-controller"
		return c
	}
}

// status updates the status.
func (r *run) status() {
	st := &r.job.Status
	r.suspension()
	st.Active = int32(len(r.live))
	ready, leaving := int32(0), r.terminating
	for _, pod := range r.live {
		if c := state.PodCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
			ready++
		}
	}
	st.Ready, st.Terminating = &ready, &leaving
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if v := r.verdict; v != nil {
		r.set(*v)
		if st.Active == 0 && leaving == 0 && r.uncounted == 0 {
			r.finish(v)
		}
	}
	if equality.Semantic.DeepEqual(r.was.Status, *st) {
		return
	}
	c := state.Put(r.job, "")
	if r.tell != nil {
		c = r.tell(c)
	}
	r.do(c)
}

// suspension updates the condition Suspended.
func (r *run) suspension() {
	suspended := state.JobCondition(r.was, batchv1.JobSuspended) != nil
	switch {
	case r.verdict != nil:
	case ptr.Deref(r.job.Spec.Suspend, false) && !suspended:
		r.job.Status.StartTime = nil
		r.set(batchv1.JobCondition{Type: batchv1.JobSuspended, Reason: "JobSuspended", Message: "Job suspended"})
		r.event("Suspended", "Job suspended", false)
	case !ptr.Deref(r.job.Spec.Suspend, false) && suspended:
		at := r.stamp()
		r.job.Status.StartTime = &at
		r.set(batchv1.JobCondition{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse, Reason: "JobResumed",
			Message: "Job resumed"})
		r.event("Resumed", "Job resumed", false)
	}
}

// finish ends the Job once all of its pods have stopped.
func (r *run) finish(v *batchv1.JobCondition) {
	end := batchv1.JobCondition{Type: batchv1.JobFailed, Reason: v.Reason, Message: v.Message}
	if v.Type == batchv1.JobSuccessCriteriaMet {
		end.Type = batchv1.JobComplete
		at := r.stamp()
		r.job.Status.CompletionTime = &at
		r.event("Completed", "Job completed", false)
	} else {
		r.event(v.Reason, v.Message, true)
	}
	r.set(end)
	if ttl := r.job.Spec.TTLSecondsAfterFinished; ttl != nil {
		setEarlier(&r.next, r.now.Add(time.Duration(*ttl)*time.Second))
	}
}
