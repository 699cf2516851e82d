package admin

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A cause is in a few words what keeps a workload from being what it should be: what is wrong
// with the worst of its pods, and which that is.
type cause struct{ Text, Href string }

// mostExplained is how many pods a list explains that find no place: each looks at every node.
const mostExplained = 5

// causes finds the causes of the rows of one list.
type causes struct {
	*request
	explained int
}

func (c *causes) of(o state.Object) (worst cause) {
	kind := ""
	for _, p := range podsOf(c.Snapshot, o) {
		f := podFaultOf(c.Snapshot, p, c.now)
		if f.kind == "" || kind != "" && rank(f.kind) >= rank(kind) {
			continue
		}
		kind, worst = f.kind, cause{Href: podHref(p)}
		if worst.Text = shortFault(p, f); worst.Text == "" {
			worst.Text = "cannot be placed"
			if c.explained < mostExplained {
				c.explained++
				worst.Text = shortly(c.Snapshot, p, c.now)
			}
		}
	}
	return worst
}

// shortFault is a pod's fault in a few words; "": it waits for a node.
func shortFault(p *corev1.Pod, f podFault) string {
	switch {
	case f.dark != nil && state.ReadyOf(f.dark) == corev1.ConditionUnknown:
		return f.dark.Name + " does not answer"
	case f.dark != nil:
		return f.dark.Name + " is not ready"
	case p.DeletionTimestamp != nil:
		return "does not stop on " + p.Spec.NodeName
	case p.Status.Phase == corev1.PodFailed:
		for _, s := range p.Status.ContainerStatuses {
			if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
				return "failed, " + shortExit(t)
			}
		}
		return "failed: " + cmp.Or(p.Status.Reason, "no reason given")
	case len(p.Spec.SchedulingGates) > 0:
		return "held by the scheduling gate " + p.Spec.SchedulingGates[0].Name
	case p.Spec.NodeName == "":
		return ""
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w, t, last := s.State.Waiting, s.State.Terminated, s.LastTerminationState.Terminated
		switch image := imageTroubleOf(s.Name, imageOf(p, s.Name), w); {
		case image != nil:
			return image.Cause + ": " + image.short
		case w != nil && w.Reason == "CrashLoopBackOff" && last != nil:
			return "crash loop, " + shortExit(last)
		case w != nil && w.Reason == "CrashLoopBackOff":
			return "crash loop"
		case w != nil && waitingKind(w.Reason) == "bad":
			return w.Reason
		case t != nil && t.ExitCode != 0 && s.RestartCount > 0:
			return "crash loop, " + shortExit(t)
		case t != nil && t.ExitCode != 0:
			return shortExit(t)
		}
	}
	if p.Status.Phase == corev1.PodPending {
		return "has not started on " + p.Spec.NodeName
	}
	return "runs, but is not ready"
}

func shortExit(t *corev1.ContainerStateTerminated) string {
	if t.Reason == "OOMKilled" {
		return "out of memory"
	}
	return fmt.Sprintf("exit %d", t.ExitCode)
}

// troubled tells whether a row is to say its cause.
func (p pill) troubled() bool { return p.Kind == "bad" || p.Kind == "warn" }
