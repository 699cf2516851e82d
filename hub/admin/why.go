package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

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

// conditionKind is the shape of a condition.
func conditionKind(c corev1.NodeCondition) string {
	m := fleet.MeaningOf(c.Type)
	switch {
	case m == fleet.Unjudged:
		return "idle"
	case (c.Status == corev1.ConditionTrue) == (m != fleet.Trouble) && c.Status != corev1.ConditionUnknown:
		return "ok"
	case m == fleet.Feature, c.Status == corev1.ConditionUnknown && c.Type != corev1.NodeReady:
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
	if fleet.MeaningOf(c.Type) == fleet.Trouble {
		return string(c.Type)
	}
	return cmp.Or(c.Reason, "not "+string(c.Type))
}

// nodeWhy says in one sentence what is wrong with a node, and since when; "":
// nothing. Where the hub has said it before, in event and log, it is that sentence.
func nodeWhy(s state.Snapshot, n *corev1.Node) (why string, since time.Time) {
	ready, since := state.NodeCondition(n, corev1.NodeReady), nodeSince(n)
	switch {
	case state.NeverReported(n):
		return "No device has reported as this node yet.", since
	case ready.Status != corev1.ConditionTrue:
		if said := lastSaid(eventsOf(s, "Node", "default", n.Name), "NodeNotReady"); said != "" {
			return said, since
		}
		return fmt.Sprintf("Ready=%s: %s", ready.Status, cmp.Or(ready.Message, ready.Reason, "no reason given")), since
	}
	if bad := unhealthy(n); len(bad) > 0 {
		return fmt.Sprintf("%s: %s", trouble(bad[0]), cmp.Or(bad[0].Message, bad[0].Reason)), since
	}
	if n.Spec.Unschedulable {
		return "Cordoned: no new pods are placed here.", since
	}
	return "", since
}

// nodeSince is since when something is wrong with a node; zero: nothing, or not known.
func nodeSince(n *corev1.Node) time.Time {
	if state.NeverReported(n) {
		return n.CreationTimestamp.Time
	}
	if ready := state.NodeCondition(n, corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		return ready.LastTransitionTime.Time
	}
	if bad := unhealthy(n); len(bad) > 0 {
		return bad[0].LastTransitionTime.Time
	}
	return time.Time{}
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

// waits says why a silent node keeps its pods for now: what holds its site, or its
// place in the site's queue.
func waits(s state.Snapshot, n *corev1.Node, now time.Time) string {
	name := state.SiteOf(n)
	site := s.Site(name)
	switch {
	case site == nil:
		return "Its pods stay until it gets its NoExecute taint."
	case site.Status.Held != "":
		return fmt.Sprintf("Its pods stay: evictions on site %s are held, %s.", name, site.Status.Held)
	}
	if rateText(site.Status.EvictionRate) == "none" {
		return fmt.Sprintf("Its pods stay: the rate of site %s is 0, so no node is given up there.", name)
	}
	for _, q := range queueOf(s, site, 0) {
		if q.Name != n.Name {
			continue
		}
		turn := "it is next"
		if q.Place > 1 {
			turn = fmt.Sprintf("it is number %d of %d", q.Place, site.Status.Waiting)
		}
		when := ""
		if q.at.After(now) {
			when = ", at about " + stamp(q.at)
		}
		return fmt.Sprintf("Its pods stay for now: site %s gives up %s, and %s%s.", name, rateText(site.Status.EvictionRate), turn, when)
	}
	return fmt.Sprintf("Its pods stay until site %s gives it the NoExecute taint; the site gives up %s.", name, rateText(site.Status.EvictionRate))
}

// A queued node waits for its NoExecute taint.
type queued struct {
	Name, Href string
	Place      int // from 1
	When       *moment
	at         time.Time // zero: not known, or never while it is as it is
}

// queueOf returns the first nodes that wait on a site, in the order of their turns;
// most 0 means all of them.
func queueOf(s state.Snapshot, site *fleet.Site, most int) (queue []queued) {
	var rate float64
	_, _ = fmt.Sscan(site.Status.EvictionRate, &rate) // none: nobody's turn comes
	for n := range s.Waiting(site.Name) {
		q := queued{Name: n.Name, Href: nodeHref(n.Name), Place: len(queue) + 1}
		if next := site.Status.NextEviction; next != nil && rate > 0 && site.Status.Held == "" {
			q.at = next.Add(time.Duration(float64(len(queue)) / rate * float64(time.Second)))
		}
		if queue = append(queue, q); len(queue) == most {
			break
		}
	}
	return queue
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
