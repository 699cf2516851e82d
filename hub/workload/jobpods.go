package workload

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

// tracked reports whether a pod has the finalizer of pods that are not counted yet.
func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

func without(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == batchv1.JobTrackingFinalizer })
}

// untrack removes the finalizer of a counted pod.
func (p *pass) untrack(pod *corev1.Pod) {
	left := pod.DeepCopy()
	if left.Finalizers = without(pod.Finalizers); state.Released(left) {
		p.do(state.Remove(pod, fmt.Sprintf("remove %s: its job has counted it", state.Display(pod))))
		return
	}
	p.do(state.Put(left, ""))
}

// untracked removes the finalizer of a pod whose Job is removed. It returns the pod, or nil if this
// removes the pod too.
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

// stop deletes pods. failed says whether they count as failed.
func (r *run) stop(pods []*corev1.Pod, because string, failed bool) {
	for _, pod := range pods {
		if !failed {
			pod = pod.DeepCopy()
			pod.Finalizers = without(pod.Finalizers)
		}
		if c, ok := state.Delete(pod, r.now, nil,
			fmt.Sprintf("delete %s of %s: %s", state.Display(pod), r.was.Name, because)); ok {
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

// start creates missing pods, or stops surplus ones.
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
	r.stopDuplicates()
	if spare := len(r.live) - int(want); spare > 0 {
		rankForDeletion(r.live, nil)
		r.stop(r.live[:spare], fmt.Sprintf("%d pods are wanted", want), false)
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
	if at := r.backoffEnd(""); at.After(r.now) {
		setEarlier(&r.next, at)
		return
	}
	n := missing
	if room := min(burst-createdAt(r.stamp(), r.all), maxUnplaced-unplaced(r.live)); n > room {
		n = max(room, 0)
		setEarlier(&r.next, nextMultiple(r.now, time.Second))
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

// full reports whether a quota refuses another pod.
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

// stopDuplicates stops all pods of an index except the oldest, and the pods of indexes that are not
// needed.
func (r *run) stopDuplicates() {
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
	r.stop(spare, "its index has another pod, or is not needed", false)
}

// pending returns the first n indexes that need a pod now.
func (r *run) pending(n int) (list []int32) {
	taken := map[int32]bool{}
	for _, pod := range r.all {
		if i, ok := r.index(pod); ok &&
			(active(pod) || !state.Terminated(pod) &&
				ptr.Deref(r.job.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) == batchv1.Failed) {
			taken[i] = true
		}
	}
	for i := int32(0); i < min(*r.job.Spec.Completions, maxIndexes) && len(list) < n; i++ {
		if taken[i] || r.done.has(i) || r.lost.has(i) {
			continue
		}
		if r.job.Spec.BackoffLimitPerIndex != nil {
			if at := r.backoffEnd(strconv.Itoa(int(i))); at.After(r.now) {
				setEarlier(&r.next, at)
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
	if pod.Spec.Hostname == "" && len(validation.IsDNS1123Label(base)) == 0 {
		pod.Spec.Hostname = base
	}
	if r.job.Spec.BackoffLimitPerIndex != nil {
		var before int32
		if l, _ := r.s.Get(r.indexKey(text)).(*state.Backoff); l != nil {
			before = l.Failures
		}
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(before))
	}
	env := corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1",
			FieldPath: fmt.Sprintf("metadata.annotations['%s']", batchv1.JobCompletionIndexAnnotation)},
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
	c := state.Put(r.admitted(pod),
		fmt.Sprintf("create %s for %s", state.Display(pod), r.was.Name)).Event("SuccessfulCreate")
	c.About, c.Source = r.was, "job-controller"
	r.do(c)
	r.live = append(r.live, pod)
}

// jobFailedCreate is a condition that Kubernetes lacks; its Job controller repeats an event
// instead.
const jobFailedCreate batchv1.JobConditionType = failedCreate

// refuse records why pods may not be created; "" if they may.
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
			setEarlier(&r.next, r.retryAt(c.LastTransitionTime))
		}
	}
}

// indexes is a set of completion indexes.
type indexes map[int32]bool

// parseIndexes parses indexes in the form of a Job's status: "1,3-5". It skips parts that are not
// numbers or not in order.
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
		if err != nil || a <= last || b < a || b >= maxIndexes {
			continue
		}
		last = b
		for i := a; i <= b; i++ {
			all[int32(i)] = true
		}
	}
	return all
}

// maxIndexes is Kubernetes' limit for the completions of an Indexed Job.
const maxIndexes = 100_000

func (x indexes) add(i int32)      { x[i] = true }
func (x indexes) has(i int32) bool { return x[i] }
func (x indexes) len() int32       { return int32(len(x)) }

// below removes the indexes that are not below end.
func (x indexes) below(end int32) {
	maps.DeleteFunc(x, func(i int32, _ bool) bool { return i >= end })
}

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
