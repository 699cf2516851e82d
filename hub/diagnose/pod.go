package diagnose

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

const (
	// startTime is how long a pod may take to be placed, to start, or to become ready.
	startTime = 2 * time.Minute
	// stopSlack is how much longer than its grace period a pod may take to stop.
	stopSlack = time.Minute
)

// Pod returns the problem of a pod. A problem of its node takes precedence, because then the pod's
// own status is outdated.
func Pod(s state.Snapshot, p *corev1.Pod) Finding {
	if p.Spec.NodeName == "" || state.Terminated(p) {
		return PodItself(p)
	}
	n := s.Node(p.Spec.NodeName)
	if n == nil {
		return Finding{Cause: NodeGone, About: aboutNode(p.Spec.NodeName), Args: Args{Node: p.Spec.NodeName},
			Since: p.CreationTimestamp.UTC()}
	}
	if p.DeletionTimestamp == nil && !Ready(n) {
		return NotReady(n)
	}
	f := PodItself(p)
	if wait := f.Due.Sub(f.Since); !f.Due.IsZero() && Ready(n) {
		// The device could not act before it came back.
		if back := state.NodeCondition(n, corev1.NodeReady).LastTransitionTime.UTC(); back.After(f.Since) {
			f.Since, f.Due = back, back.Add(wait)
		}
	}
	return f
}

// PodItself returns the problem in a pod's own status; it ignores the node's state. A nil pod has
// none.
func PodItself(p *corev1.Pod) Finding {
	if p == nil || p.Status.Phase == corev1.PodSucceeded && p.DeletionTimestamp == nil {
		return Finding{}
	}
	f, wait := causeOf(p)
	if f.Cause == "" {
		return Finding{}
	}
	f.About = fleet.IncidentObject{Kind: state.Pods.Row().Name, Namespace: p.Namespace, Name: p.Name}
	f.Node, f.Since = p.Spec.NodeName, since(p)
	if wait > 0 {
		f.Due = f.Since.Add(wait)
	}
	return f
}

// causeOf returns a pod's cause with its arguments, and how long it stays pending.
func causeOf(p *corev1.Pod) (f Finding, wait time.Duration) {
	scheduled, ready := state.PodCondition(p, corev1.PodScheduled), state.PodCondition(p, corev1.PodReady)
	switch {
	case p.DeletionTimestamp != nil:
		f.Cause = DoesNotStop
		if c := state.PodCondition(p, corev1.DisruptionTarget); c != nil {
			f.Message = c.Message
		}
		return f, stopSlack
	case p.Status.Phase == corev1.PodFailed:
		f.Cause, f.Args = PodFailed, Args{Reason: p.Status.Reason, Message: p.Status.Message}
		if isReplaced(p) {
			f.Cause = PodReplaced
		}
		for i := range p.Status.ContainerStatuses {
			if c := &p.Status.ContainerStatuses[i]; !f.End.Known && c.State.Terminated != nil &&
				c.State.Terminated.ExitCode != 0 {
				f.Container, f.End = c.Name, EndOf(c.State.Terminated)
			}
		}
		return f, 0
	case p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) > 0:
		gates := make([]string, len(p.Spec.SchedulingGates))
		for i, g := range p.Spec.SchedulingGates {
			gates[i] = g.Name
		}
		f.Cause, f.Message = PodGated, strings.Join(gates, ", ")
		return f, 0
	case p.Spec.NodeName == "":
		f.Cause, wait = CannotBePlaced, startTime
		if scheduled != nil && scheduled.Status == corev1.ConditionFalse {
			f.Reason, f.Message, wait = scheduled.Reason, scheduled.Message, 0
		}
		if name := p.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
			f.Reason, f.Message = "", "It names the scheduler "+name+", which is not the hub's, so it is not placed."
		}
		return f, wait
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if f := container(p, &list[i]); f.Cause != "" {
				return f, 0
			}
		}
	}
	switch {
	case p.Status.Phase != corev1.PodRunning:
		f.Cause = NotStarting
		return f, startTime
	case ready != nil && ready.Status == corev1.ConditionFalse:
		f.Cause, f.Reason, f.Message = PodNotReady, ready.Reason, ready.Message
		return f, startTime
	}
	return Finding{}, 0
}

// container returns the problem of a container. The first restart is not a problem yet.
func container(p *corev1.Pod, c *corev1.ContainerStatus) (f Finding) {
	f.Container = c.Name
	if t := c.LastTerminationState.Terminated; t != nil {
		f.End = EndOf(t)
	}
	switch w, t := c.State.Waiting, c.State.Terminated; {
	case w != nil && !IsStarting(w.Reason):
		f.Cause, f.Reason, f.Message = CannotStart, w.Reason, w.Message
		switch {
		case WaitsForImage(w.Reason):
			f.Cause, f.Image = ImageNotPulled, ImageOf(p, c.Name)
		case w.Reason == "CrashLoopBackOff":
			f.Cause = CrashLoop
		}
	case t != nil && t.ExitCode != 0:
		switch {
		case !restarts(p, c):
			f.Cause = ContainerExited
		case c.RestartCount > 0:
			f.Cause = CrashLoop
		}
		f.End = EndOf(t)
	}
	return f
}

// WaitsForImage tells whether a waiting reason of the kubelet means a missing image.
func WaitsForImage(reason string) bool { return slices.Contains(pulls, reason) }

var pulls = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
	"RegistryUnavailable", "SignatureValidationFailed"}

// IsStarting tells whether a waiting reason is a normal step of a start. Any other reason is a
// failure.
func IsStarting(reason string) bool {
	return reason == "" || reason == "ContainerCreating" || reason == "PodInitializing"
}

// restarts tells whether a failed container is restarted. An init container with restartPolicy
// Always is, whatever the pod's policy.
func restarts(p *corev1.Pod, c *corev1.ContainerStatus) bool {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if own := list[i].RestartPolicy; list[i].Name == c.Name && own != nil {
				return *own != corev1.ContainerRestartPolicyNever
			}
		}
	}
	return p.Spec.RestartPolicy != corev1.RestartPolicyNever
}

// isReplaced tells whether a failed pod belongs to one of the hub's workloads, which replaces the
// pod or reports why not.
func isReplaced(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && IsWork(state.KindNamed(ref.Kind))
}

// ShouldRun tells whether a pod should run: it is not being deleted, has not completed, and is not
// replaced.
func ShouldRun(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded &&
		(p.Status.Phase != corev1.PodFailed || !isReplaced(p))
}

// since returns when a pod's problem began, as far as the pod shows it.
func since(p *corev1.Pod) time.Time {
	since := p.CreationTimestamp.Time
	t := corev1.PodReady
	switch {
	case p.DeletionTimestamp != nil:
		return p.DeletionTimestamp.UTC()
	case p.Spec.NodeName == "":
		t = corev1.PodScheduled
	}
	if c := state.PodCondition(p, t); c != nil && c.Status != corev1.ConditionTrue && c.LastTransitionTime.After(since) {
		since = c.LastTransitionTime.Time
	}
	return since.UTC()
}

// EndOf returns how a container ended.
func EndOf(t *corev1.ContainerStateTerminated) End {
	return End{true, t.ExitCode, t.Reason, t.Message}
}

// ImageOf returns the image of a pod's container.
func ImageOf(p *corev1.Pod, container string) string {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].Image
			}
		}
	}
	return ""
}
