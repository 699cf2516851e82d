package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// SeverityPill is the pill of an incident.
func SeverityPill(s fleet.IncidentSeverity) frame.Pill {
	switch s {
	case fleet.SeverityCritical:
		return frame.Pill{Kind: "bad", Text: "Critical"}
	case fleet.SeverityWarning:
		return frame.Pill{Kind: "warn", Text: "Warning"}
	}
	return frame.Pill{Kind: "idle", Text: "Note"}
}

// PodTrouble says in one sentence why a pod does not do what it should, with the pill's kind; "": the
// pod is fine or still starting.
func PodTrouble(s state.Snapshot, p *corev1.Pod, now time.Time) (why, kind string) {
	f := PodFault(s, p, now)
	return PodWhy(s, p, f), PillKind(f)
}

// PodFault returns a pod's finding unless it is still pending.
func PodFault(s state.Snapshot, p *corev1.Pod, now time.Time) diagnose.Finding {
	if f := diagnose.Pod(s, p); !f.Pending(now) {
		return f
	}
	return diagnose.Finding{}
}

// PillKind returns the pill's kind for a finding.
func PillKind(f diagnose.Finding) string {
	if f.Cause == "" {
		return ""
	}
	return SeverityPill(f.Severity()).Kind
}

// PodWhy says what is wrong with a pod.
func PodWhy(s state.Snapshot, p *corev1.Pod, f diagnose.Finding) string {
	switch f.Cause {
	case "":
		return ""
	case diagnose.NodeDark:
		return "Its node does not answer."
	case diagnose.NodeNotReady, diagnose.NodeNeverReported:
		why, _ := NodeWhy(s.Node(f.Node))
		return "Its node is not ready: " + why
	case diagnose.NodeGone:
		return "Its node " + f.Node + " does not exist."
	case diagnose.DoesNotStop:
		asked := cmp.Or(f.Message, "It was told to leave")
		if n := s.Node(f.Node); n != nil && !diagnose.Ready(n) {
			return asked + "; it stays Terminating until " + f.Node + " comes back and confirms that it has stopped."
		}
		return asked + "; its device has not confirmed that it has stopped."
	case diagnose.PodFailed, diagnose.PodReplaced:
		return cmp.Or(f.Message, containerEnd(f), f.Reason, "It has failed.")
	case diagnose.PodGated:
		return "It is held by its scheduling gates until somebody takes them away: " + f.Message + "."
	case diagnose.CannotBePlaced:
		return cmp.Or(f.Message, f.Reason, "It waits to be placed.")
	case diagnose.NotStarting:
		if e := frame.NewestWarning(frame.EventsOf(s, "Pod", p.Namespace, p.Name), ""); e != nil {
			return "It has not started: " + e.Message
		}
		return "It has not started: its device has not said why."
	case diagnose.PodNotReady:
		return "It runs but is not ready: " + cmp.Or(f.Message, f.Reason, "its device has not said why.")
	}
	if f.Reason == "" {
		return containerEnd(f)
	}
	last := EndText(f.End)
	if last != "" {
		last = "last " + last
	}
	return format.Join(fmt.Sprintf("Container %s: %s", f.Container, f.Reason), f.Message, last)
}

func containerEnd(f diagnose.Finding) string {
	if !f.End.Known {
		return ""
	}
	return fmt.Sprintf("Container %s: %s", f.Container, EndText(f.End))
}

// EndText says how a container ended; "": not known.
func EndText(e diagnose.End) string {
	if !e.Known {
		return ""
	}
	return format.Join(fmt.Sprintf("ended with exit code %d", e.Code), strings.TrimSpace(e.Reason), e.Message)
}

// PodChain says why a pod is in trouble, and what follows.
func PodChain(s state.Snapshot, p *corev1.Pod, now time.Time) (chain []string) {
	n := s.Node(p.Spec.NodeName)
	if n == nil {
		return nil
	}
	if state.ReadyOf(n) != corev1.ConditionTrue {
		if p.DeletionTimestamp == nil {
			chain = append(chain, stays(s, n, p, now)...)
		}
		for _, why := range NodeChain(s, n, now) {
			chain = append(chain, "Node "+n.Name+": "+why)
		}
		return chain
	}
	if p.DeletionTimestamp != nil {
		if len(p.Finalizers) > 0 {
			chain = append(chain, "It is kept until these finalizers are removed: "+strings.Join(p.Finalizers, ", ")+".")
		}
		return chain
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && !diagnose.IsStarting(w.Reason) {
			if c.RestartCount == 0 && c.LastTerminationState.Terminated == nil {
				chain = append(chain, fmt.Sprintf("Container %s has not been started yet.", c.Name))
				continue
			}
			chain = append(chain, fmt.Sprintf("Container %s was started %s.", c.Name, format.Times(c.RestartCount+1)))
		}
	}
	if f := PodFault(s, p, now); f.Cause != "" {
		e := frame.NewestWarning(frame.EventsOf(s, "Pod", p.Namespace, p.Name), cmp.Or(f.Reason, f.End.Reason))
		if e != nil && f.Cause != diagnose.NotStarting { // PodWhy has shown that event already
			chain = append(chain, e.Reason+": "+e.Message)
		}
	}
	return chain
}

// stays says until when a pod stays on a node that is not ready.
func stays(s state.Snapshot, n *corev1.Node, p *corev1.Pod, now time.Time) []string {
	leave := eviction.LeaveBy(n, p)
	switch {
	case leave.Must && leave.At.After(now):
		return []string{fmt.Sprintf("It is evicted at %s: %s.", format.Stamp(leave.At), leave.Why)}
	case leave.Must:
		return []string{"It is to be evicted now: " + leave.Why + "."}
	case state.NoExecuteOf(n) != nil:
		return []string{"It stays: it tolerates the taints of its node without an end."}
	}
	return nil // the node's page says what it waits for
}
