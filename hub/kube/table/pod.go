package table

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func init() {
	show(state.Pods, columns("Name", "Ready", "Status", "Restarts", "Age", "(w)IP", "(w)Node", "(w)Nominated Node",
		"(w)Readiness Gates"), podCells)
}

// PodStatus returns kubectl's word for the state of a pod, such as CrashLoopBackOff.
func PodStatus(p *corev1.Pod) string { return summarize(p).status }

func podCells(obj state.Object, o *Options) []any {
	p := obj.(*corev1.Pod)
	s := summarize(p)
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.status, s.restarts.say(o), age(p.CreationTimestamp, o),
		orNone(ip), orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), gates(p),
	}
}

// rowConditions marks the rows of finished pods, which some clients show differently.
func rowConditions(obj state.Object) []metav1.TableRowCondition {
	p, ok := obj.(*corev1.Pod)
	if !ok || !state.Terminated(p) {
		return nil
	}
	message := "The pod has completed successfully."
	if p.Status.Phase == corev1.PodFailed {
		message = "The pod failed."
	}
	return []metav1.TableRowCondition{{
		Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(p.Status.Phase), Message: message,
	}}
}

// restarts counts restarts, and has the time of the last one.
type restarts struct {
	n    int32
	last time.Time
}

func (r *restarts) add(c corev1.ContainerStatus) {
	r.n += c.RestartCount
	if t := c.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(r.last) {
		r.last = t.FinishedAt.Time
	}
}

func (r restarts) say(o *Options) string {
	if r.n == 0 || r.last.IsZero() {
		return strconv.Itoa(int(r.n))
	}
	return fmt.Sprintf("%d (%s ago)", r.n, since(r.last, o))
}

type podSummary struct {
	ready, total int
	status       string
	restarts     restarts
}

// summarize returns a pod's state in one word: its deletion first, then its init containers, then
// its containers.
func summarize(p *corev1.Pod) podSummary {
	s := podSummary{total: len(p.Spec.Containers), status: cmp.Or(p.Status.Reason, string(p.Status.Phase))}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.status = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := map[string]bool{} // init containers that keep running
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
			s.total++
		}
	}

	var ofSidecars restarts
	initializing := false
	for i, c := range p.Status.InitContainerStatuses {
		s.restarts.add(c)
		if sidecars[c.Name] {
			ofSidecars.add(c)
		}
		if sidecars[c.Name] && c.Started != nil && *c.Started && c.Ready {
			s.ready++
		}
		if word, stuck := initWord(c, sidecars[c.Name]); stuck {
			s.status, initializing = "Init:"+cmp.Or(word, fmt.Sprintf("%d/%d", i, len(p.Spec.InitContainers))), true
			break
		}
	}
	initialized := state.PodCondition(p, corev1.PodInitialized)
	if !initializing || initialized != nil && initialized.Status == corev1.ConditionTrue {
		s.restarts = ofSidecars
		s.containers(p)
	}

	switch {
	case p.DeletionTimestamp != nil && p.Status.Reason == "NodeLost":
		s.status = "Unknown"
	case p.DeletionTimestamp != nil && !state.Terminated(p):
		s.status = "Terminating"
	}
	return s
}

// initWord tells whether the pod waits for an init container, and why; "" shows the count alone.
func initWord(c corev1.ContainerStatus, sidecar bool) (word string, stuck bool) {
	switch t, w := c.State.Terminated, c.State.Waiting; {
	case t != nil && t.ExitCode == 0:
		return "", false
	case sidecar && c.Started != nil && *c.Started:
		return "", false
	case t != nil:
		return endWord(t), true
	case w != nil && w.Reason != "PodInitializing":
		return w.Reason, true
	}
	return "", true
}

// containers adds the containers' states; the first container's word has precedence.
func (s *podSummary) containers(p *corev1.Pod) {
	running, failed := false, ""
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := p.Status.ContainerStatuses[i]
		s.restarts.add(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.status = endWord(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failed = s.status
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.status != "Completed" {
		return
	}
	ready := state.PodCondition(p, corev1.PodReady)
	switch { // one container has ended: the word depends on the others
	case running && ready != nil && ready.Status == corev1.ConditionTrue:
		s.status = "Running"
	case failed != "":
		s.status = failed
	case running:
		s.status = "NotReady"
	}
}

func endWord(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

func gates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		if c := state.PodCondition(p, g.ConditionType); c != nil && c.Status == corev1.ConditionTrue {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}
