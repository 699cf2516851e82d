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

// hasFailed reports whether a pod counts as failed. A terminating pod counts at once, unless its
// replacement must wait until it has stopped. A force-deleted pod always counts at once, because no
// device reports its end.
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

// failurePolicy returns the action of the Job's pod failure policy for a failed pod, with the rule
// and the reason.
func (r *run) failurePolicy(pod *corev1.Pod) (action batchv1.PodFailurePolicyAction, rule int, why string) {
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

// failures returns how often the index of a pod had failed before the pod.
func failures(pod *corev1.Pod) int32 {
	n, _ := strconv.ParseUint(pod.Annotations[batchv1.JobIndexFailureCountAnnotation], 10, 31)
	return int32(n)
}

// strikes stores the number of failures since the last success, and the time of the newest by the
// hub's clock. Both set the back-off of the next pod.
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
		l.Count, l.Last, l.Failed = l.Count+1, metav1.NewMicroTime(r.now), l.Failed || failedItself(pod)
		if action, _, _ := r.failurePolicy(pod); r.job.Spec.BackoffLimitPerIndex != nil &&
			action != batchv1.PodFailurePolicyActionIgnore {
			l.Failures = max(l.Failures, failures(pod)+1) // this pod may be removed before its index gets another one
		}
		r.do(state.Put(l, ""))
	}
}

// lossKey returns the key of the stored failures of a pod's index, or of the whole Job.
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

// jobBackoff returns the back-off after a number of failures: 10 s, doubled up to 10 min.
func jobBackoff(strikes int) time.Duration {
	return doubled(10*time.Second, max(strikes, 1)-1, 10*time.Minute)
}

// backoffEnd returns when the failed pods may be replaced.
func (r *run) backoffEnd(index string) time.Time {
	l, _ := r.s.Get(r.indexKey(index)).(*state.Backoff)
	if l == nil {
		return time.Time{}
	}
	return l.Last.Add(jobBackoff(l.Count))
}

// restarted reports whether containers that restart in place have failed too often.
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

// applySuccessPolicy ends the Job as successful if a rule of its success policy matches.
func (r *run) applySuccessPolicy() {
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
