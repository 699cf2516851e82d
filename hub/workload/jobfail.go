package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

// hasFailed tells whether a pod counts as failed. One that has been asked to leave does at once,
// unless its replacement has to wait until it has left. Of one that is forced to go nobody will say
// that.
func (r *run) hasFailed(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if pod.DeletionTimestamp == nil || pod.Status.Phase == corev1.PodSucceeded {
		return false
	}
	return pod.Spec.NodeName == "" || state.Forced(pod) ||
		ptr.Deref(r.job.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) != batchv1.Failed
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
					return rule.Action, i, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d", c.Name, pod.Namespace,
						pod.Name, end.ExitCode)
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
		l, _ := r.s.Get(k).(*state.Backoff)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && l != nil:
			r.do(state.Remove(l, ""))
			continue
		case pod.Status.Phase == corev1.PodSucceeded:
			continue
		case l == nil:
			l = &state.Backoff{ObjectMeta: metav1.ObjectMeta{
				Namespace: k.Namespace, Name: k.Name, CreationTimestamp: r.stamp(),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.was, jobKind)},
			}}
		default:
			l = l.DeepCopy()
		}
		l.Count, l.Last, l.Failed = l.Count+1, metav1.NewMicroTime(r.now), l.Failed || byItself(pod)
		if action, _, _ := r.policy(pod); r.job.Spec.BackoffLimitPerIndex != nil &&
			action != batchv1.PodFailurePolicyActionIgnore {
			l.Failures = max(l.Failures, failures(pod)+1) // the pod may be gone before its index has another
		}
		r.do(state.Put(l, ""))
	}
}

// lossKey is where the failures of a pod's index are remembered, or of the whole Job.
func (r *run) lossKey(pod *corev1.Pod) state.Key {
	index, ok := r.index(pod)
	if !ok {
		return lossKey(r.was, "")
	}
	return r.indexKey(strconv.Itoa(int(index)))
}

func (r *run) indexKey(index string) state.Key {
	k := lossKey(r.was, "")
	if index != "" && r.job.Spec.BackoffLimitPerIndex != nil {
		k.Name += "." + index
	}
	return k
}

// jobHold is how long the next pod waits after so many failures: 10 s, doubling to 10 min.
func jobHold(strikes int) time.Duration {
	return doubled(10*time.Second, max(strikes, 1)-1, 10*time.Minute)
}

// heldBack returns until when nothing is made in the place of what failed.
func (r *run) heldBack(index string) time.Time {
	l, _ := r.s.Get(r.indexKey(index)).(*state.Backoff)
	if l == nil {
		return time.Time{}
	}
	return l.Last.Add(jobHold(l.Count))
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
