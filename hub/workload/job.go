package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

var jobKind = batchv1.SchemeGroupVersion.WithKind("Job")

// A run is the work on one Job. Kubernetes' way: a pod carries a finalizer until it is
// counted, and is counted in the transaction that takes it away: none counts twice, none is
// lost, whoever deletes it and whenever the hub ends.
type run struct {
	*pass
	key  state.Key
	was  *batchv1.Job
	job  *batchv1.Job // with its new status
	live []*corev1.Pod
	all  []*corev1.Pod // its own, finished ones too
	next time.Time

	terminating, uncounted int32
	failed, succeeded      []*corev1.Pod // counted now
	done, lost             indexes
	verdict                *batchv1.JobCondition // how it ends: SuccessCriteriaMet or FailureTarget
	tell                   func(state.Change) state.Change
}

// job brings the pods of a Job to what it asks for, and its status to what there is.
func (p *pass) job(k state.Key, orphans []state.Object) {
	was, ok := p.s.Get(k).(*batchv1.Job)
	if !ok || p.born[k] || managed(was) || !finds(was.Spec.Selector, &was.Spec.Template) {
		return
	}
	if was.DeletionTimestamp != nil || p.dying(k.Namespace) {
		p.letGo(was)
		return
	}
	r := &run{pass: p, key: k, was: was, job: was.DeepCopy()}
	if end := state.JobEnd(was); end != nil {
		r.over(end)
		return
	}
	r.gather(orphans)
	r.count()
	r.judge()
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
		p.wake(k, r.next)
	}
}

// managed tells whether somebody else keeps the Job.
func managed(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

// over is what is left to do for a Job that has ended: to forget it in time.
func (r *run) over(end *batchv1.JobCondition) {
	r.letGo(r.was)
	ttl := r.was.Spec.TTLSecondsAfterFinished
	if ttl == nil {
		return
	}
	if at := end.LastTransitionTime.Add(time.Duration(*ttl) * time.Second); at.After(r.now) {
		r.wake(r.key, at)
		return
	}
	r.removeObject(r.was, fmt.Sprintf("delete job %s: it ended %d s ago", state.Display(r.was), *ttl))
}

// letGo holds no pod of a Job any more: nobody will count it.
func (p *pass) letGo(j *batchv1.Job) {
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

// gather looks who is there.
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

// tracked tells whether a pod has not been counted yet.
func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

func without(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == batchv1.JobTrackingFinalizer })
}

// untrack lets a pod go, as its Job needs it no more.
func (p *pass) untrack(pod *corev1.Pod) {
	left := without(pod.Finalizers)
	if len(left) == 0 && pod.DeletionTimestamp != nil && (pod.Spec.NodeName == "" || state.Terminated(pod)) {
		p.do(state.Remove(pod, fmt.Sprintf("remove %s: its job has counted it", state.Display(pod))))
		return
	}
	pod = pod.DeepCopy()
	pod.Finalizers = left
	p.do(state.Put(pod, ""))
}

// untracked lets go a pod that was tracked for a Job that is no more, and returns it as it
// is then, nil if it is gone.
func (p *pass) untracked(o state.Object) state.Object {
	pod, ok := o.(*corev1.Pod)
	if !ok || !tracked(pod) {
		return o
	}
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		if j, ok := p.s.ByUID(ref.UID).(*batchv1.Job); ok && j.DeletionTimestamp == nil {
			return o
		}
	}
	p.untrack(pod)
	return p.s.Get(state.KeyOf(pod))
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
			switch {
			case !r.indexed():
				st.Succeeded++
			case index < *r.job.Spec.Completions: // scaled down, it would be too many
				r.done.add(index)
			}
		case r.hasFailed(pod):
			r.failed = append(r.failed, pod)
			action, rule, why := r.policy(pod)
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
		st.Succeeded = r.done.len()
		st.CompletedIndexes = r.done.String()
	}
	if r.job.Spec.BackoffLimitPerIndex != nil {
		text := r.lost.String()
		st.FailedIndexes = &text
	}
	r.strikes()
}

// hasFailed tells whether a pod counts as failed. One that has been asked to leave does at
// once, unless its replacement has to wait until it has left.
func (r *run) hasFailed(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if pod.DeletionTimestamp == nil || pod.Status.Phase == corev1.PodSucceeded {
		return false
	}
	return pod.Spec.NodeName == "" || ptr.Deref(r.job.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) != batchv1.Failed
}

// policy says what the Job's rules want for a failed pod: which of them, and why.
func (r *run) policy(pod *corev1.Pod) (action batchv1.PodFailurePolicyAction, rule int, why string) {
	if r.job.Spec.PodFailurePolicy == nil || pod.Status.Phase != corev1.PodFailed {
		return batchv1.PodFailurePolicyActionCount, 0, ""
	}
	for i, rule := range r.job.Spec.PodFailurePolicy.Rules {
		if on := rule.OnExitCodes; on != nil {
			for _, c := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
				end := c.State.Terminated
				if end == nil || end.ExitCode == 0 || on.ContainerName != nil && *on.ContainerName != c.Name {
					continue
				}
				if slices.Contains(on.Values, end.ExitCode) == (on.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
					return rule.Action, i, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d", c.Name, pod.Namespace, pod.Name, end.ExitCode)
				}
			}
		}
		for _, want := range rule.OnPodConditions {
			if c := state.PodCondition(pod, want.Type); c != nil && c.Status == cmp.Or(want.Status, corev1.ConditionTrue) {
				return rule.Action, i, fmt.Sprintf("Pod %s/%s has condition %s", pod.Namespace, pod.Name, want.Type)
			}
		}
	}
	return batchv1.PodFailurePolicyActionCount, 0, ""
}

func (r *run) indexed() bool {
	return ptr.Deref(r.job.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion && r.job.Spec.Completions != nil
}

// index is a pod's completion index; ok is false where it has none.
func (r *run) index(pod *corev1.Pod) (i int32, ok bool) {
	n, err := strconv.ParseUint(pod.Annotations[batchv1.JobCompletionIndexAnnotation], 10, 31)
	return int32(n), err == nil
}

// failures is how often the pod's index had failed before it.
func failures(pod *corev1.Pod) int32 {
	n, _ := strconv.ParseUint(pod.Annotations[batchv1.JobIndexFailureCountAnnotation], 10, 31)
	return int32(n)
}

// strikes remembers how many pods have failed since one succeeded, by the hub's own clock:
// the next one waits for it.
func (r *run) strikes() {
	for _, pod := range slices.Concat(r.failed, r.succeeded) {
		k := r.lossKey(pod)
		l, _ := r.s.Get(k).(*state.Loss)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && l != nil:
			r.do(state.Remove(l, ""))
			continue
		case pod.Status.Phase == corev1.PodSucceeded:
			continue
		case l == nil:
			l = &state.Loss{ObjectMeta: metav1.ObjectMeta{
				Namespace: k.Namespace, Name: k.Name, CreationTimestamp: r.stamp(), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.was, jobKind)},
			}}
		default:
			l = l.DeepCopy()
		}
		l.Strikes, l.Last, l.Failed = l.Strikes+1, metav1.NewMicroTime(r.now), true
		r.do(state.Put(l, ""))
	}
}

// lossKey is where the failures of a pod's index are remembered, or of the whole Job.
func (r *run) lossKey(pod *corev1.Pod) state.Key {
	k := lossKey(r.was, "")
	if index, ok := r.index(pod); ok && r.job.Spec.BackoffLimitPerIndex != nil {
		k.Name += "." + strconv.Itoa(int(index))
	}
	return k
}

// jobHold is how long the next pod waits after so many failures: 10 s, doubling to 10 min.
func jobHold(strikes int) time.Duration {
	if strikes > 6 {
		return 10 * time.Minute
	}
	return 10 * time.Second << (max(strikes, 1) - 1)
}

// heldBack returns until when nothing is made in the place of what failed.
func (r *run) heldBack(index string) time.Time {
	k := lossKey(r.was, "")
	if index != "" && r.job.Spec.BackoffLimitPerIndex != nil {
		k.Name += "." + index
	}
	l, _ := r.s.Get(k).(*state.Loss)
	if l == nil {
		return time.Time{}
	}
	return l.Last.Add(jobHold(l.Strikes))
}

// fail notes that the Job fails, and why; the first reason stands.
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

// judge decides whether the Job ends: what was decided once stands.
func (r *run) judge() {
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
		if at := st.StartTime.Add(time.Duration(*spec.ActiveDeadlineSeconds) * time.Second); at.After(r.now) {
			sooner(&r.next, at)
		} else {
			r.fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		}
	}
	if m := spec.MaxFailedIndexes; m != nil && r.lost.len() > *m {
		r.fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	}
	r.metRule()
	switch {
	case spec.Completions == nil:
		if st.Succeeded > 0 && len(r.live) == 0 {
			r.succeed(batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		}
	case st.Succeeded >= *spec.Completions && (len(r.live) == 0 || r.indexed()):
		r.succeed(batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	case r.lost.len() > 0 && st.Succeeded+r.lost.len() >= *spec.Completions:
		r.fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	}
}

// restarted tells whether the containers of its pods, which are started again where they
// are, have failed too often.
func (r *run) restarted() bool {
	if r.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, pod := range r.live {
		if pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodPending {
			for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
				n += c.RestartCount
			}
		}
	}
	limit := ptr.Deref(r.job.Spec.BackoffLimit, 6)
	return limit == 0 && n > 0 || limit > 0 && n >= limit
}

// metRule ends the Job with success where one of its own rules says so.
func (r *run) metRule() {
	if r.job.Spec.SuccessPolicy == nil {
		return
	}
	for i, rule := range r.job.Spec.SuccessPolicy.Rules {
		done := r.done
		if rule.SucceededIndexes != nil {
			done = r.done.within(parseIndexes(*rule.SucceededIndexes))
		}
		all := rule.SucceededIndexes != nil && done.len() == parseIndexes(*rule.SucceededIndexes).len()
		if rule.SucceededCount != nil && done.len() >= *rule.SucceededCount || rule.SucceededCount == nil && all {
			r.succeed(batchv1.JobReasonSuccessPolicy, fmt.Sprintf("Matched rules at index %d", i))
			return
		}
	}
}

// stop deletes pods, which count as failed or not.
func (r *run) stop(pods []*corev1.Pod, because string, failed bool) {
	for _, pod := range pods {
		if !failed {
			pod = pod.DeepCopy()
			pod.Finalizers = without(pod.Finalizers)
		}
		if c, ok := state.Delete(pod, r.now, nil, fmt.Sprintf("delete %s of %s: %s", state.Display(pod), r.was.Name, because)); ok {
			c = c.Event("SuccessfulDelete")
			c.About, c.Source = r.was, "job-controller"
			r.do(c)
			if !c.Delete {
				r.terminating++
			}
		}
	}
	r.live = slices.DeleteFunc(slices.Clone(r.live), func(p *corev1.Pod) bool { return slices.Contains(pods, p) })
}

// start makes the pods that are missing, or stops those that are too many.
func (r *run) start() {
	spec := &r.job.Spec
	want := max(ptr.Deref(spec.Parallelism, 1), 0)
	switch left := int32(0); {
	case spec.Completions != nil:
		left = *spec.Completions - r.job.Status.Succeeded - r.lost.len()
		want = max(min(want, left), 0)
	case r.job.Status.Succeeded > 0:
		want = int32(len(r.live))
	}
	r.alike()
	if spare := len(r.live) - int(want); spare > 0 {
		rankForDeletion(r.live, nil)
		r.stop(r.live[:spare], fmt.Sprintf("%d are to run", want), false)
		return
	}
	occupied := len(r.live)
	if ptr.Deref(spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) == batchv1.Failed {
		occupied += int(r.terminating)
	}
	missing := int(want) - occupied
	if missing <= 0 {
		return
	}
	if why := r.refused(r.was, &spec.Template); why != "" {
		r.refuse(why)
		return
	}
	r.refuse("")
	if at := r.heldBack(""); at.After(r.now) {
		sooner(&r.next, at)
		return
	}
	n := missing
	if room := min(burst-madeAt(r.stamp(), r.all), mostUnplaced-unplaced(r.live)); n > room {
		n = max(room, 0)
		sooner(&r.next, until(r.now, time.Second))
	}
	if !r.indexed() {
		for i := range n {
			if i > 0 && r.full() {
				return
			}
			r.launch(r.newPod(r.was, jobKind, &spec.Template))
		}
		return
	}
	for i, index := range r.pending(n) {
		if i > 0 && r.full() {
			return
		}
		r.launchIndex(index)
	}
}

// full tells whether a quota has no room for one more pod.
func (r *run) full() bool {
	if !r.counted(r.was.Namespace) {
		return false
	}
	why := r.refused(r.was, &r.was.Spec.Template)
	if why != "" {
		r.refuse(why)
	}
	return why != ""
}

// alike stops all pods of an index but the oldest, and those whose index is not asked for.
func (r *run) alike() {
	if !r.indexed() {
		return
	}
	var spare []*corev1.Pod
	have := map[int32]bool{}
	slices.SortFunc(r.live, byAge)
	for _, pod := range r.live {
		i, ok := r.index(pod)
		if !ok || have[i] || i >= *r.job.Spec.Completions || r.done.has(i) || r.lost.has(i) {
			spare = append(spare, pod)
		}
		have[i] = true
	}
	r.stop(spare, "another has its index, or none is needed", false)
}

// pending returns the first indexes, so many at most, that want a pod now.
func (r *run) pending(n int) (list []int32) {
	taken := map[int32]bool{}
	for _, pod := range r.all {
		if i, ok := r.index(pod); ok && (active(pod) || !state.Terminated(pod) && ptr.Deref(r.job.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) == batchv1.Failed) {
			taken[i] = true
		}
	}
	for i := int32(0); i < min(*r.job.Spec.Completions, mostIndexes) && len(list) < n; i++ {
		if taken[i] || r.done.has(i) || r.lost.has(i) {
			continue
		}
		if r.job.Spec.BackoffLimitPerIndex != nil {
			if at := r.heldBack(strconv.Itoa(int(i))); at.After(r.now) {
				sooner(&r.next, at)
				continue
			}
		}
		list = append(list, i)
	}
	return list
}

func (r *run) launchIndex(index int32) {
	text := strconv.Itoa(int(index))
	pod := r.newPod(r.was, jobKind, &r.job.Spec.Template)
	base := r.was.Name + "-" + text
	pod.Name, pod.GenerateName = r.freeName(state.Pods, pod.Namespace, base, r.was.UID), base+"-"
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	if len(base) <= 63 && pod.Spec.Hostname == "" {
		pod.Spec.Hostname = base
	}
	if r.job.Spec.BackoffLimitPerIndex != nil {
		var before int32
		for _, old := range r.all {
			if i, ok := r.index(old); ok && i == index && !active(old) {
				before = max(before, failures(old)+1)
			}
		}
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(before))
	}
	env := corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: fmt.Sprintf("metadata.annotations['%s']", batchv1.JobCompletionIndexAnnotation)},
	}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !slices.ContainsFunc(list[i].Env, func(e corev1.EnvVar) bool { return e.Name == env.Name }) {
				list[i].Env = append(list[i].Env, env)
			}
		}
	}
	r.launch(pod)
}

func (r *run) launch(pod *corev1.Pod) {
	pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	c := state.Put(r.admitted(pod), fmt.Sprintf("create %s for %s", state.Display(pod), r.was.Name)).Event("SuccessfulCreate")
	c.About, c.Source = r.was, "job-controller"
	r.do(c)
	r.live = append(r.live, pod)
}

// jobFailedCreate is ours: Kubernetes tells it by events alone, over and over.
const jobFailedCreate batchv1.JobConditionType = failedCreate

// refuse notes why no pod may be made, or that they may.
func (r *run) refuse(why string) {
	conditions := &r.job.Status.Conditions
	at := slices.IndexFunc(*conditions, func(c batchv1.JobCondition) bool { return c.Type == jobFailedCreate })
	switch {
	case why == "" && at >= 0:
		*conditions = slices.Delete(*conditions, at, at+1)
	case why == "" || at >= 0 && (*conditions)[at].Message == why:
	default:
		r.set(batchv1.JobCondition{Type: jobFailedCreate, Status: corev1.ConditionTrue, Reason: failedCreate, Message: why})
		r.tell = func(c state.Change) state.Change { return refusal(c.Object, why, "job-controller") }
	}
	for _, c := range *conditions {
		if c.Type == jobFailedCreate && r.Complete != nil {
			sooner(&r.next, r.tryAgain(c.LastTransitionTime))
		}
	}
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
		c.Why, c.Reason, c.Message, c.Warn, c.Source = fmt.Sprintf("job %s: %s", state.Display(r.was), message), reason, message, warn, "job-controller"
		return c
	}
}

// status writes down what there is.
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

// suspension keeps the condition Suspended.
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
		r.set(batchv1.JobCondition{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse, Reason: "JobResumed", Message: "Job resumed"})
		r.event("Resumed", "Job resumed", false)
	}
}

// finish ends the Job: nothing of it runs any more.
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
		sooner(&r.next, r.now.Add(time.Duration(*ttl)*time.Second))
	}
}

// indexes are completion indexes.
type indexes map[int32]bool

// parseIndexes reads indexes as a Job's status has them: "1,3-5". What is no number
// is left out, as is what does not come in order.
func parseIndexes(text string) indexes {
	all := indexes{}
	last := int64(-1)
	for part := range strings.SplitSeq(text, ",") {
		from, to, span := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.ParseInt(from, 10, 32)
		b := a
		if span && err == nil {
			b, err = strconv.ParseInt(to, 10, 32)
		}
		if err != nil || a <= last || b < a || b >= mostIndexes {
			continue
		}
		last = b
		for i := a; i <= b; i++ {
			all[int32(i)] = true
		}
	}
	return all
}

// mostIndexes is Kubernetes' bound of an Indexed Job's completions.
const mostIndexes = 100_000

func (x indexes) add(i int32)      { x[i] = true }
func (x indexes) has(i int32) bool { return x[i] }
func (x indexes) len() int32       { return int32(len(x)) }

func (x indexes) within(y indexes) indexes {
	both := indexes{}
	for i := range x {
		if y[i] {
			both[i] = true
		}
	}
	return both
}

func (x indexes) String() string {
	var b strings.Builder
	list := slices.Sorted(maps.Keys(x))
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(list[i])))
		switch {
		case j == i+1:
			b.WriteString("," + strconv.Itoa(int(list[j])))
		case j > i+1:
			b.WriteString("-" + strconv.Itoa(int(list[j])))
		}
		i = j + 1
	}
	return b.String()
}
