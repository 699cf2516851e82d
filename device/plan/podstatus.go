package plan

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// Statuses returns the status of every pod on the device, sorted by namespace and name. It includes
// a deleted pod until the hub drops it, and an undesired pod until its containers are removed.
// engineName is the prefix of container ids.
func Statuses(d wire.Desired, o *Observed, engineName string, now time.Time) []wire.PodStatus {
	out := make([]wire.PodStatus, 0, len(d.Pods))
	known := make(map[types.UID]bool, len(d.Pods))
	for i := range d.Pods {
		pod := &d.Pods[i]
		known[pod.UID] = true
		r := o.Pods[pod.UID]
		if r != nil && r.Cleaned && (r.Final == nil || o.Dismissed) {
			continue
		}
		out = append(out, wire.PodStatus{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name,
			Status: PodStatus(pod, r, o, engineName, now)})
	}
	for i, in := range o.Containers {
		uid := in.Place.Pod
		if known[uid] {
			continue
		}
		if i == 0 || o.Containers[i-1].Place.Pod != uid {
			out = append(out, wire.PodStatus{UID: uid, Namespace: in.Labels[LabelNamespace], Name: in.Labels[LabelPodName],
				Status: corev1.PodStatus{Phase: corev1.PodUnknown, HostIP: o.Node.HostIP,
					Message: "The device has containers of this pod, but not the pod itself."}})
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
			strings.Compare(string(a.UID), string(b.UID))) < 0
	})
	return out
}

// Unobserved returns the status of pods before the engine's first response. They may be running.
func Unobserved(d wire.Desired, hostIP string) []wire.PodStatus {
	out := make([]wire.PodStatus, 0, len(d.Pods))
	for i := range d.Pods {
		pod := &d.Pods[i]
		out = append(out, wire.PodStatus{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name,
			Status: corev1.PodStatus{Phase: corev1.PodUnknown, HostIP: hostIP, Reason: "ContainerEngineUnavailable",
				Message: "The agent has started and its container engine has not answered yet."}})
	}
	return out
}

// PodStatus returns the status of one pod as the kubelet reports it.
func PodStatus(pod *corev1.Pod, r *Record, o *Observed, engineName string, now time.Time) corev1.PodStatus {
	if r != nil && r.Final != nil {
		st := *r.Final.DeepCopy()
		if (pod.DeletionTimestamp != nil && !r.Cleaned || r.SavingFinal) && !IsFinal(pod.Status.Phase) {
			st.Phase = phaseWhileRemoving(&st) // the final phase means that all its containers are gone
		}
		return st
	}
	phase := phaseOf(pod, r, o.Node.Boot)
	st := corev1.PodStatus{ObservedGeneration: observedGeneration(pod, r, o), Phase: phase,
		QOSClass: podspec.QOSClass(pod),
		HostIP:   o.Node.HostIP}
	for _, ip := range o.Node.hostIPs() {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	if r == nil {
		return st
	}
	if !r.Start.IsZero() {
		st.StartTime = &metav1.Time{Time: r.Start.Truncate(time.Second)}
	}
	if IsFinal(phase) && r.Admitted && o.mayRun(pod.UID) {
		st.Phase = phaseWhileRunning(r)
	}
	if r.Verdict != nil {
		st.Reason, st.Message = r.Verdict.Reason, r.Verdict.Message
		if !r.Admitted {
			return st
		}
	}
	if o.Shutdown != nil && st.Reason == "" && r.Admitted && !IsFinal(phase) {
		st.Reason, st.Message = nodeShutdown, shutdownMessage
	}
	if ip := PodIP(pod, r, o.Node); ip != "" && (st.Phase != corev1.PodPending || pod.Spec.HostNetwork) {
		st.PodIP, st.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		if pod.Spec.HostNetwork && o.Node.OtherIP != "" {
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: o.Node.OtherIP})
		}
	}
	inited := initialized(pod, r, o.Node.Boot)
	var unready, uninited, paused []string
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		again := c.Ended != nil && !IsFinal(phase) && pod.DeletionTimestamp == nil && restarts(pod, w, c)
		cs := containerStatus(w, c, inited, again, engineName, now)
		if IsFinal(phase) && isLeaving(pod, r) {
			terminateUnknown(&cs, w, c, inited)
		}
		truncateMessages(&cs, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)+len(pod.Spec.EphemeralContainers))
		cs.AllocatedResources, cs.Resources = w.Spec.Resources.Requests, resourcesOf(pod, w, c, o.Node)
		if IsFinal(phase) {
			cs.Ready = false // a stopping container is not ready
		}
		if w.Kind == podspec.KindInit {
			if !podspec.IsSidecar(w) {
				cs.Ready = cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0 &&
					(inited || initDone(w, c, o.Node.Boot))
			}
			if !inited && !initDone(w, c, o.Node.Boot) {
				uninited = append(uninited, w.Spec.Name)
			}
			st.InitContainerStatuses = append(st.InitContainerStatuses, cs)
		} else {
			st.ContainerStatuses = append(st.ContainerStatuses, cs)
		}
		if !cs.Ready && (w.Kind == podspec.KindApp || podspec.IsSidecar(w)) {
			unready = append(unready, w.Spec.Name)
			if c.State == engine.Paused {
				paused = append(paused, w.Spec.Name)
			}
		}
	}
	for _, w := range podspec.Ephemerals(pod) {
		c := r.Peek(w.Spec.Name)
		cs := containerStatus(w, c, inited, false, engineName, now)
		cs.Started = nil
		cs.Ready = false // as with the kubelet, a stopping pod is not ready
		truncateMessages(&cs, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)+len(pod.Spec.EphemeralContainers))
		st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, cs)
	}
	st.Conditions = conditions(pod, phase, unready, uninited, paused)
	if c, ok := devicesCondition(pod, o); ok && !IsFinal(phase) {
		st.Conditions = append(st.Conditions, c)
	}
	if !IsFinal(phase) {
		st.Conditions = append(st.Conditions, resizeConditions(pod, r, o)...)
	}
	if r.Verdict != nil && (r.Verdict.Reason == Evicted || r.Verdict.Reason == nodeShutdown) {
		st.Conditions = append(st.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: r.Verdict.Message,
		})
	}
	for i := range st.Conditions {
		st.Conditions[i].ObservedGeneration = st.ObservedGeneration
	}
	return st
}

// observedGeneration is the pod's generation that the status reflects. While a resize is neither
// granted nor refused, it is not the newest generation.
func observedGeneration(pod *corev1.Pod, r *Record, o *Observed) int64 {
	if o.Requested[pod.UID] != nil && (r == nil || r.ResizePending == nil) {
		return pod.Generation - 1
	}
	return pod.Generation
}

// phaseWhileRunning is the phase of an ended pod while a container still runs. As with the kubelet,
// the final phase comes last: a replacement could use the same volumes and ports at the same time.
func phaseWhileRunning(r *Record) corev1.PodPhase {
	for name, c := range r.Container {
		if name != "" && (c.Running() || c.Ended != nil || c.Last != nil) {
			return corev1.PodRunning
		}
	}
	return corev1.PodPending
}

// phaseWhileRemoving is the phase of a pod with a final status while its containers are removed.
func phaseWhileRemoving(st *corev1.PodStatus) corev1.PodPhase {
	if slices.ContainsFunc(slices.Concat(st.InitContainerStatuses, st.ContainerStatuses),
		func(cs corev1.ContainerStatus) bool { return cs.ContainerID != "" }) {
		return corev1.PodRunning
	}
	return corev1.PodPending
}

// terminateUnknown gives a container of a deleted pod a terminated state, as the kubelet does: the
// container's own state or, once the pod was initialized, ContainerStatusUnknown.
func terminateUnknown(cs *corev1.ContainerStatus, w podspec.Container, c *ContainerRecord, inited bool) {
	switch {
	case cs.State.Terminated != nil:
	case c.Ended != nil:
		cs.State = corev1.ContainerState{Terminated: c.Ended}
	case inited && w.Kind == podspec.KindApp:
		cs.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown",
			Message: "The container could not be located when the pod was terminated",
		}}
	}
}

// conditions are the pod's conditions. MergeConditions sets their times.
func conditions(pod *corev1.Pod, phase corev1.PodPhase, unready, uninited, paused []string) []corev1.PodCondition {
	is := func(t corev1.PodConditionType, reason, message string) corev1.PodCondition {
		s := corev1.ConditionTrue
		if reason != "" && !(t == corev1.PodInitialized && reason == "PodCompleted") {
			s = corev1.ConditionFalse
		}
		return corev1.PodCondition{Type: t, Status: s, Reason: reason, Message: message}
	}
	init := is(corev1.PodInitialized, "", "")
	if len(uninited) > 0 {
		init = is(corev1.PodInitialized, "ContainersNotInitialized",
			fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(uninited, " ")))
	}
	var reason, message string
	switch {
	case phase == corev1.PodSucceeded:
		reason = "PodCompleted"
		if len(uninited) == 0 {
			init = is(corev1.PodInitialized, "PodCompleted", "")
		}
	case phase == corev1.PodFailed:
		reason = "PodFailed"
	case len(unready) > 0:
		reason, message = "ContainersNotReady", fmt.Sprintf("containers with unready status: [%s]",
			strings.Join(unready, " "))
		if len(paused) > 0 {
			message += fmt.Sprintf("; paused on the device by its container engine, as by docker pause: [%s]",
				strings.Join(paused, " "))
		}
	}
	// The hub stores the conditions of readiness gates, and evaluates them.
	ready := is(corev1.PodReady, reason, message)
	scheduled := is(corev1.PodScheduled, "", "")
	return []corev1.PodCondition{init, ready, is(corev1.ContainersReady, reason, message), scheduled}
}

// containerStatus is the status of one container. again says that the container restarts after it
// has ended.
func containerStatus(w podspec.Container, c *ContainerRecord, inited, again bool, engineName string,
	now time.Time) corev1.ContainerStatus {
	started := w.Kind == podspec.KindApp && startedUp(w.Spec, c) || podspec.IsSidecar(w) && startedUp(w.Spec, c)
	cs := corev1.ContainerStatus{Name: w.Spec.Name, Image: w.Spec.Image, ImageID: c.ImageID,
		RestartCount: int32(max(c.Attempt, 0)), Started: &started}
	if c.Image != "" {
		cs.Image = c.Image
	}
	if c.ID != "" {
		cs.ContainerID = engineName + "://" + c.ID
	}
	last := c.Last
	switch {
	case postStartPending(w.Spec, c) || c.HookError != "" && c.Running(): // the container is being stopped
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	case c.Running():
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.StartedAt)}
		cs.Ready = isReady(w.Spec, c)
	case c.Failure != nil:
		cs.State.Waiting = waitingAfterFailure(c, now)
		if c.Ended != nil {
			last = c.Ended
		}
	case again && c.Crashing: // the kubelet's state until the container runs, even after the back-off
		// The message is constant during the back-off, because every change is sent to the hub.
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
			Message: fmt.Sprintf("back-off %s restarting failed container=%s", c.BackOff, w.Spec.Name)}
		if c.HookError != "" {
			cs.State.Waiting.Message += ": " + c.HookError
		}
		last = c.Ended
	case again && c.HookError != "":
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PostStartHookError", Message: c.HookError}
		last = c.Ended
	case c.Ended != nil:
		cs.State.Terminated = c.Ended
	case w.Kind == podspec.KindInit && !podspec.IsSidecar(w) && inited: // another client removed the container
		cs.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as " +
				"exited normally"}
	case w.Kind == podspec.KindApp && !inited:
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
	default:
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating", Message: c.Pulling}
		if w.Kind == podspec.KindInit && !inited { // the kubelet's reason, whether or not the container exists
			cs.State.Waiting.Reason = "PodInitializing"
		}
	}
	if last != nil {
		cs.LastTerminationState.Terminated = withEngine(last, engineName)
	}
	if t := cs.State.Terminated; t != nil {
		cs.State.Terminated = withEngine(t, engineName)
	}
	return cs
}

func withEngine(t *corev1.ContainerStateTerminated, engineName string) *corev1.ContainerStateTerminated {
	c := *t
	if c.ContainerID != "" {
		c.ContainerID = engineName + "://" + c.ContainerID
	}
	return &c
}

// waitingAfterFailure is the waiting state of a container that could not run: first the failure,
// then the back-off.
func waitingAfterFailure(c *ContainerRecord, now time.Time) *corev1.ContainerStateWaiting {
	w := &corev1.ContainerStateWaiting{Reason: c.Failure.Reason, Message: c.Failure.Message}
	if c.Failure.Reason == "ErrImagePull" && c.Failures > 1 && now.Before(c.RetryAt) {
		w.Reason, w.Message = "ImagePullBackOff", "Back-off pulling image: "+c.Failure.Message
	}
	return w
}

// MergeConditions keeps the transition times of unchanged conditions and sets now for all others.
func MergeConditions(old, next []corev1.PodCondition, now time.Time) {
	for i := range next {
		next[i].LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		for _, o := range old {
			if o.Type == next[i].Type && o.Status == next[i].Status {
				next[i].LastTransitionTime = o.LastTransitionTime
			}
		}
	}
}

// The kubelet's limits of termination messages, in bytes.
const (
	MaxMessage  = 4096  // limit of one container
	maxMessages = 12288 // limit of a pod
)

// truncateMessages truncates a termination message to the container's share of the pod's limit.
func truncateMessages(cs *corev1.ContainerStatus, containers int) {
	most := min(MaxMessage, maxMessages/max(containers, 1))
	for _, t := range []**corev1.ContainerStateTerminated{&cs.State.Terminated, &cs.LastTerminationState.Terminated} {
		if *t != nil && (*t).Message != "" {
			c := **t
			c.Message = strings.ToValidUTF8(c.Message[:min(len(c.Message), most)], "")
			*t = &c
		}
	}
}
