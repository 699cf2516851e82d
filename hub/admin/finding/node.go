package finding

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// drainLine says how far a node's drain is; "": it is not being drained.
func drainLine(n *corev1.Node) string {
	st := state.DrainStatusOf(n)
	if _, is := n.Annotations[state.DrainAnnotation]; !is || !st.Going() {
		return ""
	}
	return fmt.Sprintf("Being drained: %d of %s left to go.", st.Left, format.Plural(st.Pods, "pod"))
}

// SitePill is the status of a site.
func SitePill(s *fleet.Site) frame.Pill {
	switch s.Status.State {
	case fleet.SitePartialDisruption:
		return frame.Pill{Kind: "warn", Text: "Partial disruption"}
	case fleet.SiteFullDisruption:
		return frame.Pill{Kind: "bad", Text: "Dark"}
	}
	if n := s.Status.NotReady; n > 0 {
		return frame.Pill{Kind: "warn", Text: fmt.Sprintf("%d not ready", n)}
	}
	return frame.Pill{Kind: "ok", Text: "Normal"}
}

// NodePill is a node's status; shapes and colours follow its Ready condition.
func NodePill(n *corev1.Node) frame.Pill {
	switch f := diagnose.FirstOf(n); {
	case f.Cause == diagnose.NodeNeverReported:
		return frame.Pill{Kind: "idle", Text: "Never seen"}
	case f.Cause == diagnose.NodeDark:
		return frame.Pill{Kind: "bad", Text: "Unknown"}
	case f.Cause == diagnose.NodeNotReady:
		return frame.Pill{Kind: "bad", Text: "Not ready"}
	case f.Cause != "" && n.Spec.Unschedulable:
		return frame.Pill{Kind: "warn", Text: "Ready, " + trouble(f) + ", cordoned"}
	case f.Cause != "":
		return frame.Pill{Kind: "warn", Text: "Ready, " + trouble(f)}
	case n.Spec.Unschedulable:
		return frame.Pill{Kind: "warn", Text: "Ready, cordoned"}
	}
	return frame.Pill{Kind: "ok", Text: "Ready"}
}

// ConditionKind is the pill's kind of a condition.
func ConditionKind(c corev1.NodeCondition) string {
	switch m := fleet.MeaningOf(c.Type); {
	case diagnose.Fails(c), c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue:
		return "bad"
	case m == fleet.Unjudged:
		return "idle"
	case c.Status == corev1.ConditionUnknown, m == fleet.Feature && c.Status != corev1.ConditionTrue:
		return "warn"
	}
	return "ok"
}

// trouble names the condition of a finding.
func trouble(f diagnose.Finding) string {
	t := diagnose.RuleOf(f.Cause).Condition
	if fleet.MeaningOf(t) == fleet.Trouble {
		return string(t)
	}
	return cmp.Or(f.Reason, "not "+string(t))
}

// NodeWhy says in one sentence what is wrong with a node ("": nothing), and which condition's
// message that is, if any.
func NodeWhy(n *corev1.Node) (why string, told corev1.NodeConditionType) {
	switch f := diagnose.FirstOf(n); {
	case f.Cause == diagnose.NodeNeverReported:
		return "No device has reported as this node yet.", ""
	case f.Cause == diagnose.NodeDark:
		return NoAnswer, corev1.NodeReady
	case !diagnose.Ready(n):
		ready := state.NodeCondition(n, corev1.NodeReady)
		return strings.TrimSuffix(cmp.Or(ready.Message, ready.Reason, "no reason given"), "."), corev1.NodeReady
	case f.Cause != "":
		return strings.TrimSpace(drainLine(n) + " " + trouble(f) + ": " + cmp.Or(f.Message, f.Reason)),
			diagnose.RuleOf(f.Cause).Condition
	}
	if text := drainLine(n); text != "" {
		return text, ""
	}
	if n.Spec.Unschedulable {
		return "Cordoned: no new pods are placed here.", ""
	}
	return "", ""
}

// NodeChain says why a node is in trouble, and what follows.
func NodeChain(s state.Snapshot, n *corev1.Node, now time.Time) (chain []string) {
	_, told := NodeWhy(n)
	ready := state.NodeCondition(n, corev1.NodeReady)
	if ready != nil && ready.Status != corev1.ConditionTrue {
		if m := cmp.Or(ready.Message, ready.Reason); m != "" && told != corev1.NodeReady {
			chain = append(chain, "Condition Ready is "+string(ready.Status)+": "+m)
		}
		switch t := state.NoExecuteOf(n); {
		case t != nil && t.TimeAdded != nil:
			chain = append(chain, fmt.Sprintf("It was given up at %s, by the taint %s: its pods leave when their tolerations end.",
				format.Stamp(t.TimeAdded.Time), t.ToString()))
		case t != nil:
			chain = append(chain, "It was given up, by the taint "+t.ToString()+": its pods leave when their tolerations end.")
		case state.Waits(n):
			chain = append(chain, waits(s, n, now))
		}
	}
	for _, c := range diagnose.Failing(n) {
		if c.Type != told {
			chain = append(chain, fmt.Sprintf("Condition %s: %s", c.Type, cmp.Or(c.Message, c.Reason)))
		}
	}
	if n.Spec.Unschedulable && diagnose.FirstOf(n).Cause != "" {
		chain = append(chain, "It is cordoned: no new pods are placed here.")
	}
	return chain
}

// waits says why a silent node keeps its pods for now: the site's hold, or the node's place in the
// queue.
func waits(s state.Snapshot, n *corev1.Node, now time.Time) string {
	name := state.SiteOf(n)
	site := s.Site(name)
	switch {
	case site == nil:
		return "Its pods stay until it is given up."
	case site.Status.HeldReason != "":
		return fmt.Sprintf("Its pods stay: evictions on site %s are held, %s.", name, site.Status.Held)
	}
	if format.Rate(site.Status.EvictionRate) == "none" {
		return fmt.Sprintf("Its pods stay: the rate of site %s is 0, so no node is given up there.", name)
	}
	for _, q := range QueueOf(s, site, 0) {
		if q.Name != n.Name {
			continue
		}
		turn := "it is next"
		if q.Place > 1 {
			turn = fmt.Sprintf("it is number %d of %d", q.Place, site.Status.Waiting)
		}
		when := ""
		if q.At.After(now) {
			when = ", at about " + format.Stamp(q.At)
		}
		return fmt.Sprintf("Its pods stay for now: site %s gives up %s, and %s%s.", name,
			format.Rate(site.Status.EvictionRate), turn, when)
	}
	return fmt.Sprintf("Its pods stay until site %s gives it up: %s.", name,
		format.Rate(site.Status.EvictionRate))
}

// A Queued node waits for its NoExecute taint.
type Queued struct {
	Name, Href string
	Place      int // from 1
	When       *format.Moment
	At         time.Time // zero: not known, or not while the site is as it is
}

// QueueOf returns the first nodes of a site's queue; most 0 means all.
func QueueOf(s state.Snapshot, site *fleet.Site, most int) (queue []Queued) {
	var rate float64
	_, _ = fmt.Sscan(site.Status.EvictionRate, &rate) // 0: no node gets the taint
	for n := range s.Waiting(site.Name) {
		q := Queued{Name: n.Name, Href: frame.NodeHref(n.Name), Place: len(queue) + 1}
		if next := site.Status.NextEviction; next != nil && rate > 0 && site.Status.HeldReason == "" {
			q.At = next.Add(format.TimeAtRate(len(queue), rate))
		}
		if queue = append(queue, q); len(queue) == most {
			break
		}
	}
	return queue
}
