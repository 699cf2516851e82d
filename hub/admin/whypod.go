package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/state"
)

// A podLine is a pod in kubectl's words.
type podLine struct{ Ready, Status, Restarts string }

func podLineOf(p *corev1.Pod, now time.Time) podLine {
	row := table.For(state.Pods, []state.Object{p}, table.Options{Include: metav1.IncludeNone, NoHeaders: true, Now: now}).Rows[0].Cells
	return podLine{fmt.Sprint(row[1]), fmt.Sprint(row[2]), fmt.Sprint(row[3])}
}

// patient is how long a pod may take to start, or to become ready, before it
// needs attention.
const patient = 2 * time.Minute

// podTrouble says in one sentence why a pod does not do what it should, and how
// bad that is (a pill's kind); "": it does, or needs only a moment.
func podTrouble(s state.Snapshot, p *corev1.Pod, now time.Time) (why, kind string) {
	f := podFaultOf(s, p, now)
	if f.dark != nil {
		why, _ := nodeWhy(s, f.dark)
		f.why = "Its node is not ready: " + why
	}
	return f.why, f.kind
}

// A podFault is podTrouble for those who look at many pods, or closer.
type podFault struct {
	why, kind string
	dark      *corev1.Node // its node, which is not ready: what that has done to all of its pods is told by the node
	told      string       // the reason of the events that say the same
}

func podFaultOf(s state.Snapshot, p *corev1.Pod, now time.Time) podFault {
	scheduled, ready := state.PodCondition(p, corev1.PodScheduled), state.PodCondition(p, corev1.PodReady)
	switch {
	case p.DeletionTimestamp != nil:
		why, kind := leaving(s, p, now)
		return podFault{why: why, kind: kind}
	case p.Status.Phase == corev1.PodSucceeded:
		return podFault{}
	case p.Status.Phase == corev1.PodFailed:
		return podFault{why: cmp.Or(p.Status.Message, ended(p), p.Status.Reason, "It has failed."), kind: "bad", told: p.Status.Reason}
	case scheduled != nil && scheduled.Status == corev1.ConditionFalse:
		return podFault{why: cmp.Or(scheduled.Message, scheduled.Reason, "It waits to be placed."), kind: "warn"}
	case p.Spec.NodeName == "":
		return podFault{why: "It waits to be placed.", kind: "warn"}
	}
	if n := s.Node(p.Spec.NodeName); n == nil {
		return podFault{why: fmt.Sprintf("Its node %s does not exist.", p.Spec.NodeName), kind: "bad"}
	} else if state.ReadyOf(n) != corev1.ConditionTrue {
		return podFault{kind: "bad", dark: n}
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			switch w, t := c.State.Waiting, c.State.Terminated; {
			case w != nil && waitingKind(w.Reason) == "bad":
				return podFault{why: join(fmt.Sprintf("Container %s: %s", c.Name, w.Reason), w.Message, lastEnd(c)), kind: "bad", told: w.Reason}
			case t != nil && t.ExitCode != 0:
				return podFault{why: fmt.Sprintf("Container %s: %s", c.Name, end(t)), kind: "bad", told: t.Reason}
			}
		}
	}
	switch old := now.Sub(p.CreationTimestamp.Time) > patient; {
	case p.Status.Phase == corev1.PodPending && old:
		f := podFault{why: "It has not started: its device has not said why.", kind: "warn"}
		if e := newestWarning(eventsOf(s, "Pod", p.Namespace, p.Name), ""); e != nil {
			f.why, f.told = "It has not started: "+e.Message, e.Reason
		}
		return f
	case p.Status.Phase == corev1.PodRunning && old && ready != nil && ready.Status == corev1.ConditionFalse:
		return podFault{why: "It runs but is not ready: " + cmp.Or(ready.Message, ready.Reason, "its device has not said why."), kind: "warn"}
	}
	return podFault{}
}

// podSince is since when something is wrong with a pod: as long as its node is not
// ready, or it itself is not, or as it exists.
func podSince(p *corev1.Pod, dark *corev1.Node) (since time.Time) {
	since = p.CreationTimestamp.Time
	if dark != nil {
		return later(since, nodeSince(dark))
	}
	if ready := state.PodCondition(p, corev1.PodReady); ready != nil && ready.Status != corev1.ConditionTrue {
		return later(since, ready.LastTransitionTime.Time)
	}
	return since
}

// leaving says what holds a pod that is asked to leave longer than its grace.
func leaving(s state.Snapshot, p *corev1.Pod, now time.Time) (why, kind string) {
	asked := "It is asked to leave"
	if c := state.PodCondition(p, corev1.DisruptionTarget); c != nil && c.Message != "" {
		asked = c.Message
	}
	if now.Before(p.DeletionTimestamp.Time) {
		return "", ""
	}
	if n := s.Node(p.Spec.NodeName); n != nil && state.ReadyOf(n) != corev1.ConditionTrue {
		return asked + "; it stays Terminating until " + p.Spec.NodeName + " comes back and confirms that it has stopped.", "warn"
	}
	return asked + "; its device has not confirmed that it has stopped.", "warn"
}

func ended(p *corev1.Pod) string {
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("Container %s: %s", c.Name, end(t))
		}
	}
	return ""
}

func end(t *corev1.ContainerStateTerminated) string {
	return join(fmt.Sprintf("ended with exit code %d", t.ExitCode), strings.Trim(t.Reason, " "), t.Message)
}

func lastEnd(c corev1.ContainerStatus) string {
	if t := c.LastTerminationState.Terminated; t != nil {
		return "last " + end(t)
	}
	return ""
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// podChain is what stands behind a pod's trouble, and what follows from it.
func podChain(s state.Snapshot, p *corev1.Pod, now time.Time) (chain []string) {
	n := s.Node(p.Spec.NodeName)
	if n == nil {
		return nil
	}
	if state.ReadyOf(n) != corev1.ConditionTrue {
		if p.DeletionTimestamp == nil {
			chain = append(chain, stays(s, n, p, now)...)
		}
		for _, why := range nodeChain(s, n, now) {
			chain = append(chain, "Node "+n.Name+": "+why)
		}
		return chain
	}
	if p.DeletionTimestamp != nil {
		if len(p.Finalizers) > 0 {
			chain = append(chain, "It is kept until these have done their work: "+strings.Join(p.Finalizers, ", ")+".")
		}
		return chain
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && waitingKind(w.Reason) == "bad" {
			if c.RestartCount == 0 && c.LastTerminationState.Terminated == nil {
				chain = append(chain, fmt.Sprintf("Container %s has not been started yet.", c.Name))
				continue
			}
			chain = append(chain, fmt.Sprintf("Container %s was started %s.", c.Name, times(c.RestartCount+1)))
		}
	}
	if f := podFaultOf(s, p, now); f.why != "" {
		if e := newestWarning(eventsOf(s, "Pod", p.Namespace, p.Name), f.told); e != nil {
			chain = append(chain, e.Reason+": "+e.Message)
		}
	}
	return chain
}

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// stays says until when a pod stays on a node that is not ready.
func stays(s state.Snapshot, n *corev1.Node, p *corev1.Pod, now time.Time) []string {
	leave := eviction.LeaveBy(n, p)
	switch {
	case leave.Must && leave.At.After(now):
		return []string{fmt.Sprintf("It is evicted at %s: %s.", stamp(leave.At), leave.Why)}
	case leave.Must:
		return []string{"It is to be evicted now: " + leave.Why + "."}
	case state.NoExecuteOf(n) != nil:
		return []string{"It stays: it tolerates the taints of its node without an end."}
	}
	return nil // its node's chain says what it waits for
}
