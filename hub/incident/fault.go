package incident

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A fault is what is wrong with a pod, by what it says itself: the zero fault is nothing.
type fault struct {
	cause  fleet.IncidentCause
	image  string // of ImageNotPulled
	detail string
	wait   time.Duration // how long it is no trouble yet
}

const (
	// patient is how long a pod may take to start, or to become ready.
	patient = 2 * time.Minute
	// stopping is how much longer than its grace a pod may take to stop.
	stopping = time.Minute
)

// What containers wait for, in the kubelet's words: an image, or nothing but a moment. Any
// other reason is why it cannot be started.
var (
	pulls  = map[string]bool{"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true, "ImageInspectError": true, "RegistryUnavailable": true, "SignatureValidationFailed": true}
	begins = map[string]bool{"": true, "ContainerCreating": true, "PodInitializing": true}
)

// faultOf returns what is wrong with a pod. It asks neither the time nor the node.
func faultOf(p *corev1.Pod) fault {
	if p == nil {
		return fault{}
	}
	scheduled, ready := state.PodCondition(p, corev1.PodScheduled), state.PodCondition(p, corev1.PodReady)
	switch {
	case p.DeletionTimestamp != nil:
		return fault{cause: DoesNotStop, wait: stopping}
	case p.Status.Phase == corev1.PodSucceeded:
		return fault{}
	case p.Status.Phase == corev1.PodFailed:
		if len(p.OwnerReferences) > 0 {
			return fault{} // whoever owns it makes another, or says why not
		}
		return fault{cause: PodFailed, detail: cmp.Or(p.Status.Message, ended(p), p.Status.Reason)}
	case p.Spec.NodeName == "" && scheduled != nil && scheduled.Status == corev1.ConditionFalse && scheduled.Reason != corev1.PodReasonSchedulingGated:
		return fault{cause: CannotBePlaced, detail: scheduled.Message}
	case p.Spec.NodeName == "":
		return fault{}
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			switch w, t := c.State.Waiting, c.State.Terminated; {
			case w != nil && pulls[w.Reason]:
				f := fault{cause: ImageNotPulled, image: imageOf(p, c.Name)}
				if w.Reason != "ImagePullBackOff" {
					f.detail = w.Message
				}
				return f
			case w != nil && w.Reason == "CrashLoopBackOff":
				return fault{cause: CrashLoop, detail: crash(c.Name, c.LastTerminationState.Terminated)}
			case w != nil && !begins[w.Reason]:
				return fault{cause: CannotStart, detail: w.Reason + ": " + w.Message}
			case t != nil && t.ExitCode != 0 && c.RestartCount > 0 && p.Spec.RestartPolicy != corev1.RestartPolicyNever:
				return fault{cause: CrashLoop, detail: crash(c.Name, t)}
			}
		}
	}
	switch {
	case p.Status.Phase == corev1.PodPending:
		return fault{cause: NotStarting, wait: patient}
	case p.Status.Phase == corev1.PodRunning && ready != nil && ready.Status == corev1.ConditionFalse:
		return fault{cause: PodNotReady, detail: ready.Message, wait: patient}
	}
	return fault{}
}

// faultSince is since when something is wrong with a pod, so far as it says.
func faultSince(p *corev1.Pod) time.Time {
	since := p.CreationTimestamp.Time
	t := corev1.PodReady
	switch {
	case p.DeletionTimestamp != nil:
		return p.DeletionTimestamp.Time
	case p.Spec.NodeName == "":
		t = corev1.PodScheduled
	}
	if c := state.PodCondition(p, t); c != nil && c.Status != corev1.ConditionTrue && c.LastTransitionTime.After(since) {
		since = c.LastTransitionTime.Time
	}
	return since
}

func imageOf(p *corev1.Pod, container string) string {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].Image
			}
		}
	}
	return ""
}

func crash(container string, t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	said := fmt.Sprintf("container %s ended with exit code %d", container, t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" {
		said += ", " + t.Reason
	}
	return said
}

func ended(p *corev1.Pod) string {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 {
			return crash(c.Name, c.State.Terminated)
		}
	}
	return ""
}
