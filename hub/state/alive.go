package state

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// Timeouts say how long a node may go without a heartbeat and still count as alive: the hub's
// settings, which a Site can override.
type Timeouts struct {
	Grace   time.Duration
	Startup time.Duration // for a node that has never reported
	Lease   time.Duration // default lease interval of devices
}

// LeasesPerGrace is the least number of lease intervals in a grace period: two lost renewals must
// not evict a pod.
const LeasesPerGrace = 4

// SiteLease returns the lease interval that a site sets for its devices; 0: the hub's default.
func SiteLease(site *fleet.Site) time.Duration {
	if site == nil || site.Spec.LeaseInterval == nil {
		return 0
	}
	return site.Spec.LeaseInterval.Duration
}

// WantedLease returns the lease interval that a node's device should use. hubs is the hub's
// default.
func WantedLease(s Snapshot, node string, hubs time.Duration) time.Duration {
	if n := s.Node(node); n != nil {
		if d := SiteLease(s.Site(SiteOf(n))); d > 0 {
			return d
		}
	}
	return hubs
}

// Lease returns the longest interval at which a device may renew its lease now. rec may be nil;
// hubs is the hub's default.
func Lease(rec *Record, hubs time.Duration) time.Duration {
	if rec == nil || rec.LeaseSeconds == 0 {
		return hubs
	}
	return time.Duration(rec.LeaseSeconds) * time.Second
}

// For returns the timeouts of a site, which may be nil.
func (q Timeouts) For(site *fleet.Site) Timeouts {
	if site == nil {
		return q
	}
	if d := site.Spec.NodeMonitorGracePeriod; d != nil {
		q.Grace = d.Duration
	}
	if d := site.Spec.NodeStartupGracePeriod; d != nil {
		q.Startup = d.Duration
	}
	return q
}

// Deadline returns the moment after which a node that was last seen at seen is not alive. Node
// health uses it, and the check whether another device may take the node's place.
func (q Timeouts) Deadline(s Snapshot, n *corev1.Node, seen time.Time) time.Time {
	site, rec := s.Site(SiteOf(n)), s.Record(n.Name)
	q = q.For(site)
	if !reported(n, rec) {
		if n.CreationTimestamp.After(seen) {
			seen = n.CreationTimestamp.Time
		}
		return seen.Add(q.Startup)
	}
	return seen.Add(q.grace(site, rec))
}

// grace returns the grace period of a node whose device has reported. q holds its site's timeouts.
func (q Timeouts) grace(site *fleet.Site, rec *Record) time.Duration {
	// A configured grace period is meant for the usual lease interval, or for the site's if that is
	// shorter. A device that still uses a longer interval gets a longer grace period.
	usual := q.Lease
	if d := SiteLease(site); d > 0 {
		usual = min(usual, d)
	}
	if lease := Lease(rec, q.Lease); lease > usual {
		return max(q.Grace, LeasesPerGrace*lease)
	}
	return q.Grace
}

// GraceChanges returns the site or node whose grace period a change alters. It does not cover a
// node that moves to another site.
func GraceChanges(c Applied) []Subject {
	switch c.Key.Kind {
	case Sites:
		old, _ := c.Old.(*fleet.Site)
		next, _ := c.New.(*fleet.Site)
		if old == nil || next == nil || !sameDuration(old.Spec.NodeMonitorGracePeriod, next.Spec.NodeMonitorGracePeriod) ||
			!sameDuration(old.Spec.NodeStartupGracePeriod, next.Spec.NodeStartupGracePeriod) {
			return []Subject{{Key: c.Key}}
		}
	case Records:
		old, _ := c.Old.(*Record)
		next, _ := c.New.(*Record)
		if old != nil && next != nil && old.LeaseSeconds != next.LeaseSeconds {
			return []Subject{About(Key{Kind: Nodes, Name: c.Key.Name})}
		}
	}
	return nil
}

func sameDuration(a, b *metav1.Duration) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Duration == b.Duration
}

// UnseenUntil returns until when a live node may not have been seen yet, because the hub has just
// started or was suspended. It is zero for a node that was created after that.
func (q Timeouts) UnseenUntil(s Snapshot, n *corev1.Node) time.Time {
	listening := s.Listening()
	if !n.CreationTimestamp.Time.Before(listening) {
		return time.Time{}
	}
	site := s.Site(SiteOf(n))
	return listening.Add(q.For(site).grace(site, s.Record(n.Name)))
}

// HasReported tells whether a device has ever reported as the node. Conditions that a user wrote
// into the node do not count.
func HasReported(s Snapshot, n *corev1.Node) bool { return reported(n, s.Record(n.Name)) }

func reported(n *corev1.Node, rec *Record) bool { return hasBooted(rec) && ReadyOf(n) != "" }

// hasBooted tells whether the record has a boot id, that is, whether a device has ever reported.
func hasBooted(rec *Record) bool { return rec != nil && (rec.Boot != "" || len(rec.PastBoots) > 0) }

// An Outage is stored on a Node while it is not ready. It holds what conditions and taints cannot:
// milliseconds, and taints that have been replaced.
type Outage struct {
	// Since is when Ready changed from True, in milliseconds. It sets the order of eviction.
	Since        metav1.MicroTime `json:"since"`
	TaintPeriods []TaintPeriod    `json:"spells,omitempty"` // earlier NoExecute taints of this outage, oldest first
}

// A TaintPeriod is a time in which a node had one of the lifecycle's NoExecute taints. An eviction
// deadline that started in a period stays, unless the pod tolerates the next taint forever.
type TaintPeriod struct {
	Key  string      `json:"key"`
	From metav1.Time `json:"from"` // the taint's TimeAdded
	To   metav1.Time `json:"to"`
}

// AwaitsProfile is an annotation on a Node whose device has not yet reported its capacity under its
// current board profile. Until then no pod is placed there.
const AwaitsProfile = "flotilla.dev/awaits-profile"

const (
	annotationOutage = "flotilla.dev/outage"
	maxTaintPeriods  = 8 // the oldest periods, whose deadlines still apply, and the newest one
)

// OutageOf returns the outage of a node, nil if it has none or cannot be parsed.
func OutageOf(n *corev1.Node) *Outage {
	text, ok := n.Annotations[annotationOutage]
	if !ok {
		return nil
	}
	var o Outage
	if since, ok := parseBare(text); ok {
		o.Since = since
	} else if json.Unmarshal([]byte(text), &o) != nil {
		return nil
	}
	if o.Since.IsZero() {
		return nil
	}
	return &o
}

// An outage without taint periods is encoded without encoding/json, in the same form, for speed.
// Most outages have none, and after a night without network each node has an outage when the hub
// starts.
const (
	bareBegins, bareEnds = `{"since":"`, `"}`
	bareLayout           = "2006-01-02T15:04:05.000000Z" // metav1.RFC3339Micro in UTC
)

// parseBare parses an outage without taint periods. ok is false for every other form.
func parseBare(text string) (since metav1.MicroTime, ok bool) {
	text, begins := strings.CutPrefix(text, bareBegins)
	text, ends := strings.CutSuffix(text, bareEnds)
	if !begins || !ends {
		return since, false
	}
	t, err := time.Parse(bareLayout, text)
	return metav1.NewMicroTime(t.Local()), err == nil
}

// HasOutage tells whether a node stores exactly this outage; nil means no outage.
func HasOutage(n *corev1.Node, o *Outage) bool {
	text, had := n.Annotations[annotationOutage]
	return had == (o != nil) && (!had || text == o.String())
}

// SetOutage stores an outage on a node, in place; nil removes it.
func SetOutage(n *corev1.Node, o *Outage) {
	switch {
	case o == nil:
		delete(n.Annotations, annotationOutage)
	case n.Annotations == nil:
		n.Annotations = map[string]string{annotationOutage: o.String()}
	default:
		n.Annotations[annotationOutage] = o.String()
	}
}

// String returns the outage in the form of the Node's annotation.
func (o *Outage) String() string {
	short := Outage{metav1.NewMicroTime(o.Since.Truncate(time.Millisecond)), o.TaintPeriods}
	if n := len(o.TaintPeriods); n > maxTaintPeriods {
		short.TaintPeriods = append(slices.Clone(o.TaintPeriods[:maxTaintPeriods-1]), o.TaintPeriods[n-1])
	}
	if len(short.TaintPeriods) == 0 && !short.Since.IsZero() {
		return bareBegins + short.Since.UTC().Format(bareLayout) + bareEnds
	}
	text, _ := json.Marshal(short)
	return string(text)
}

// Ceil rounds a moment up to whole seconds, the precision of API objects. Deadlines that count from
// it never end early.
func Ceil(t time.Time) metav1.Time {
	if cut := t.Truncate(time.Second); cut.Before(t) {
		t = cut.Add(time.Second)
	}
	return metav1.NewTime(t)
}

// BoundAt returns when a pod was bound to its node. A pod that was created with a node name counts
// as bound at its creation, rounded up to the next second.
func BoundAt(p *corev1.Pod) time.Time {
	if c := PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue &&
		!c.LastTransitionTime.IsZero() {
		return Ceil(c.LastTransitionTime.Time).Time
	}
	if p.CreationTimestamp.IsZero() {
		return time.Time{}
	}
	return p.CreationTimestamp.Truncate(time.Second).Add(time.Second)
}
