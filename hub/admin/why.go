package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// nodePill is a node's status; shapes and colours follow its Ready condition.
func nodePill(n *corev1.Node) pill {
	switch {
	case state.NeverReported(n):
		return pill{"idle", "Never seen"}
	case state.ReadyOf(n) == corev1.ConditionUnknown:
		return pill{"bad", "Unknown"}
	case state.ReadyOf(n) == corev1.ConditionFalse:
		return pill{"bad", "Not ready"}
	case n.Spec.Unschedulable:
		return pill{"warn", "Ready, cordoned"}
	case len(unhealthy(n)) > 0:
		return pill{"warn", "Ready, " + trouble(unhealthy(n)[0])}
	}
	return pill{"ok", "Ready"}
}

// meaning is what a node's conditions mean, by type: "trouble" when True (as those
// of Kubernetes), "health" when it is lost, or a "feature" that some boards lack for
// good. What is not here is shown and judged by nobody.
var meaning = map[corev1.NodeConditionType]string{
	corev1.NodeMemoryPressure: "trouble", corev1.NodeDiskPressure: "trouble", corev1.NodePIDPressure: "trouble", corev1.NodeNetworkUnavailable: "trouble",
	fleet.ConditionOutOfDisk: "trouble", fleet.ConditionFlapping: "trouble", fleet.ConditionIdentityConflict: "trouble",
	corev1.NodeReady: "health", "PowerOK": "health", "StorageHealthy": "health",
	"ClockSynced": "feature", "MemoryLimits": "feature",
}

// conditionKind is the shape of a condition.
func conditionKind(c corev1.NodeCondition) string {
	m := meaning[c.Type]
	switch {
	case m == "":
		return "idle"
	case (c.Status == corev1.ConditionTrue) == (m != "trouble") && c.Status != corev1.ConditionUnknown:
		return "ok"
	case m == "feature", c.Status == corev1.ConditionUnknown && c.Type != corev1.NodeReady:
		return "warn"
	}
	return "bad"
}

// unhealthy returns the conditions other than Ready that need attention.
func unhealthy(n *corev1.Node) (bad []corev1.NodeCondition) {
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady && conditionKind(c) == "bad" {
			bad = append(bad, c)
		}
	}
	return bad
}

// trouble names a condition that needs attention.
func trouble(c corev1.NodeCondition) string {
	if meaning[c.Type] == "trouble" {
		return string(c.Type)
	}
	return cmp.Or(c.Reason, "not "+string(c.Type))
}

// nodeWhy says in one sentence what is wrong with a node, and since when; "":
// nothing. Where the hub has said it before, in event and log, it is that sentence.
func nodeWhy(s state.Snapshot, n *corev1.Node) (why string, since time.Time) {
	ready := state.NodeCondition(n, corev1.NodeReady)
	switch {
	case state.NeverReported(n):
		return "No device has reported as this node yet.", n.CreationTimestamp.Time
	case ready.Status != corev1.ConditionTrue:
		if said := lastSaid(eventsOf(s, "Node", "default", n.Name), "NodeNotReady"); said != "" {
			return said, ready.LastTransitionTime.Time
		}
		return fmt.Sprintf("Ready=%s: %s", ready.Status, cmp.Or(ready.Message, ready.Reason, "no reason given")), ready.LastTransitionTime.Time
	}
	if bad := unhealthy(n); len(bad) > 0 {
		return fmt.Sprintf("%s: %s", trouble(bad[0]), cmp.Or(bad[0].Message, bad[0].Reason)), bad[0].LastTransitionTime.Time
	}
	if n.Spec.Unschedulable {
		return "Cordoned: no new pods are placed here.", time.Time{}
	}
	return "", time.Time{}
}

// nodeChain is what stands behind a node's trouble, and what follows from it.
func nodeChain(s state.Snapshot, n *corev1.Node, now time.Time) (chain []string) {
	why, _ := nodeWhy(s, n)
	ready := state.NodeCondition(n, corev1.NodeReady)
	if ready != nil && ready.Status != corev1.ConditionTrue {
		if m := cmp.Or(ready.Message, ready.Reason); m != "" && !strings.Contains(why, strings.TrimSuffix(m, ".")) {
			chain = append(chain, "Condition Ready is "+string(ready.Status)+": "+m)
		}
		switch t := state.NoExecuteOf(n); {
		case t != nil && t.TimeAdded != nil:
			chain = append(chain, fmt.Sprintf("Since %s it has the taint %s: its pods leave when their tolerations end.", stamp(t.TimeAdded.Time), t.ToString()))
		case t != nil:
			chain = append(chain, "It has the taint "+t.ToString()+": its pods leave when their tolerations end.")
		case state.Waits(n):
			chain = append(chain, waits(s, n, now))
		}
	}
	for _, c := range unhealthy(n) {
		if m := cmp.Or(c.Message, c.Reason); !strings.Contains(why, m) {
			chain = append(chain, fmt.Sprintf("Condition %s: %s", c.Type, m))
		}
	}
	if n.Spec.Unschedulable && !strings.HasPrefix(why, "Cordoned") {
		chain = append(chain, "It is cordoned: no new pods are placed here.")
	}
	return chain
}

// waits says why a silent node keeps its pods for now.
func waits(s state.Snapshot, n *corev1.Node, now time.Time) string {
	name := state.SiteOf(n)
	site := s.Site(name)
	switch {
	case site == nil:
		return "Its pods stay until it gets its NoExecute taint."
	case site.Status.Held != "":
		return fmt.Sprintf("Its pods stay: evictions on site %s are held, %s.", name, site.Status.Held)
	case site.Status.NextEviction != nil && site.Status.NextEviction.After(now):
		return fmt.Sprintf("Its pods stay for now: site %s gives up %s nodes per second, the next at %s.", name, site.Status.EvictionRate, stamp(site.Status.NextEviction.Time))
	}
	return fmt.Sprintf("Its pods stay until site %s gives it the NoExecute taint, at %s nodes per second.", name, cmp.Or(site.Status.EvictionRate, "0"))
}

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
	scheduled, ready := state.PodCondition(p, corev1.PodScheduled), state.PodCondition(p, corev1.PodReady)
	switch {
	case p.DeletionTimestamp != nil:
		return leaving(s, p, now)
	case p.Status.Phase == corev1.PodSucceeded:
		return "", ""
	case p.Status.Phase == corev1.PodFailed:
		return cmp.Or(p.Status.Message, ended(p), p.Status.Reason, "It has failed."), "bad"
	case scheduled != nil && scheduled.Status == corev1.ConditionFalse:
		return cmp.Or(scheduled.Message, scheduled.Reason), "warn"
	case p.Spec.NodeName == "":
		return "It waits to be placed.", "warn"
	}
	if n := s.Node(p.Spec.NodeName); n == nil {
		return fmt.Sprintf("Its node %s does not exist.", p.Spec.NodeName), "bad"
	} else if state.ReadyOf(n) != corev1.ConditionTrue {
		why, _ := nodeWhy(s, n)
		return "Its node is not ready: " + why, "bad"
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch w, t := c.State.Waiting, c.State.Terminated; {
		case w != nil && waitingKind(w.Reason) == "bad":
			return join(fmt.Sprintf("Container %s: %s", c.Name, w.Reason), w.Message, lastEnd(c)), "bad"
		case t != nil && t.ExitCode != 0:
			return fmt.Sprintf("Container %s: %s", c.Name, end(t)), "bad"
		}
	}
	switch old := now.Sub(p.CreationTimestamp.Time) > patient; {
	case p.Status.Phase == corev1.PodPending && old:
		return "It has not started: " + cmp.Or(lastSaid(eventsOf(s, "Pod", p.Namespace, p.Name), ""), "its device has not said why."), "warn"
	case p.Status.Phase == corev1.PodRunning && old && ready != nil && ready.Status == corev1.ConditionFalse:
		return "It runs but is not ready: " + cmp.Or(ready.Message, ready.Reason, "its device has not said why."), "warn"
	}
	return "", ""
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

// eventsOf returns the events about an object, the newest first. Their names
// begin with the object's.
func eventsOf(s state.Snapshot, kind, namespace, name string) (found []*corev1.Event) {
	for o := range s.From(state.Events, namespace, namespace, name+".") {
		e := o.(*corev1.Event)
		if !strings.HasPrefix(e.Name, name+".") {
			break
		}
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, newestFirst)
	return found
}

func newestFirst(a, b *corev1.Event) int { return eventTime(b).Compare(eventTime(a)) }

func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// lastSaid returns the newest sentence with the reason, "" for any warning.
func lastSaid(events []*corev1.Event, reason string) string {
	for _, e := range events {
		if e.Reason == reason || reason == "" && e.Type == corev1.EventTypeWarning {
			return e.Message
		}
	}
	return ""
}
