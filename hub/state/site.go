package state

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// DefaultSite is the site of nodes without one.
const DefaultSite = "default"

// SiteOf returns the site of a node: its zone, prefixed by "<region>." if it has a region. The
// deprecated failure-domain labels take precedence, as in Kubernetes.
func SiteOf(n *corev1.Node) string {
	region, zone := n.Labels[corev1.LabelFailureDomainBetaRegion], n.Labels[corev1.LabelFailureDomainBetaZone]
	if region == "" && zone == "" {
		region, zone = n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone]
	}
	switch {
	case zone == "" && region == "":
		return DefaultSite
	case region == "":
		return zone
	case zone == "":
		return region
	}
	return region + "." + zone
}

// A SiteCount counts the nodes of one site by their readiness.
type SiteCount struct {
	Nodes     int // all nodes
	Ready     int // Ready=True
	NotReady  int // not ready, but has reported before
	NeverSeen int // has never reported, so it does not count for the site's state
	Waiting   int // not ready, and still without its NoExecute taint
}

// Full tells whether every node that counts is not ready: the site is fully disrupted.
func (c SiteCount) Full() bool { return c.Ready == 0 && c.NotReady > 0 }

// A SiteTally counts all sites.
type SiteTally struct {
	Counting int // sites with a node that counts
	Full     int // fully disrupted sites
	Master   int // sites on hold because every site is disrupted
}

func (t *SiteTally) count(c SiteCount, sign int) {
	if c.Ready+c.NotReady > 0 {
		t.Counting += sign
	}
	if c.Full() {
		t.Full += sign
	}
}

// NeverReported tells whether a node has not reported since it was created.
func NeverReported(n *corev1.Node) bool {
	c := NodeCondition(n, corev1.NodeReady)
	return c == nil || c.Status == corev1.ConditionUnknown && c.Reason == "NodeStatusNeverUpdated"
}

// NoExecuteOf returns the lifecycle's NoExecute taint of a node (not-ready or unreachable), nil if
// it has none.
func NoExecuteOf(n *corev1.Node) *corev1.Taint {
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady ||
			t.Key == corev1.TaintNodeUnreachable) {
			return t
		}
	}
	return nil
}

// Waits tells whether a node is not ready and has no NoExecute taint yet.
func Waits(n *corev1.Node) bool {
	ready := ReadyOf(n)
	return (ready == corev1.ConditionFalse || ready == corev1.ConditionUnknown) && NoExecuteOf(n) == nil
}

// add counts a node. A node whose device has never reported counts only as NeverSeen, whatever its
// status says.
func (c *SiteCount) add(n *corev1.Node, reported bool) {
	c.Nodes++
	if Waits(n) {
		c.Waiting++
	}
	if _, out := n.Labels[fleet.LabelExcludeDisruption]; out {
		return
	}
	switch {
	case !reported, NeverReported(n):
		c.NeverSeen++
	case ReadyOf(n) == corev1.ConditionTrue:
		c.Ready++
	default:
		c.NotReady++
	}
}

// failureKey orders the waiting nodes by the moment of their failure.
func failureKey(n *corev1.Node) string { return FailedAt(n).UTC().Format("2006-01-02T15:04:05.000Z") }

// FailedAt returns when a node that is not ready stopped being ready.
func FailedAt(n *corev1.Node) time.Time {
	if o := OutageOf(n); o != nil {
		return o.Since.Time
	}
	if c := NodeCondition(n, corev1.NodeReady); c != nil {
		return c.LastTransitionTime.Time
	}
	return n.CreationTimestamp.Time
}

// SameTaint tells whether two taints are equal, apart from the time they were added.
func SameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }
