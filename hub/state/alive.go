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

// A Timeouts is how long a node may say nothing and still count as alive: the hub's
// own, which a Site overrides.
type Timeouts struct {
	Grace   time.Duration
	Startup time.Duration // of a node that has never reported
	Lease   time.Duration // lease interval of devices on sites that do not say otherwise
}

// LeasesPerGrace is how many lease intervals there are in a grace at least: two lost
// renewals must not evict.
const LeasesPerGrace = 4

// SiteLease is the lease interval that a site asks of its devices; 0: the hub's own.
func SiteLease(site *fleet.Site) time.Duration {
	if site == nil || site.Spec.LeaseInterval == nil {
		return 0
	}
	return site.Spec.LeaseInterval.Duration
}

// WantedLease is how often a node's device is to say that it lives, with that of devices
// on sites that do not say otherwise.
func WantedLease(s Snapshot, node string, hubs time.Duration) time.Duration {
	if n := s.Node(node); n != nil {
		if d := SiteLease(s.Site(SiteOf(n))); d > 0 {
			return d
		}
	}
	return hubs
}

// Lease is the longest interval at which the device of a record, which may be nil, may
// say that it lives.
func Lease(rec *Record, hubs time.Duration) time.Duration {
	if rec == nil || rec.LeaseSeconds == 0 {
		return hubs
	}
	return time.Duration(rec.LeaseSeconds) * time.Second
}

// For returns the silence of a site, which may be nil.
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

// Deadline returns the moment after which a node that was last seen then is not
// alive any more. It is the one definition of alive: for those who decide on its
// health, and on whether another device may take its place.
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

// grace is that of a node whose device has reported; q is its site's.
func (q Timeouts) grace(site *fleet.Site, rec *Record) time.Duration {
	// What an administrator has written of a grace stands for devices that live by the
	// usual interval, or by the one that is wanted.
	usual := q.Lease
	if d := SiteLease(site); d > 0 {
		usual = min(usual, d)
	}
	if lease := Lease(rec, q.Lease); lease > usual {
		return max(q.Grace, LeasesPerGrace*lease)
	}
	return q.Grace
}

// GraceChanges returns the site of whose nodes, or the node of which, a change says that it may be silent
// for another time than before; a node that moves to another site aside.
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

// UnseenUntil returns until when a hub that has just started, or stood still, may not have heard a
// node that lives; zero: the node is younger than that.
func (q Timeouts) UnseenUntil(s Snapshot, n *corev1.Node) time.Time {
	listening := s.Listening()
	if !n.CreationTimestamp.Time.Before(listening) {
		return time.Time{}
	}
	site := s.Site(SiteOf(n))
	return listening.Add(q.For(site).grace(site, s.Record(n.Name)))
}

// HasReported tells whether a device has ever reported as the node. The conditions of one
// that was made by hand are only what somebody has written.
func HasReported(s Snapshot, n *corev1.Node) bool { return reported(n, s.Record(n.Name)) }

func reported(n *corev1.Node, rec *Record) bool { return hasBooted(rec) && ReadyOf(n) != "" }

// hasBooted tells whether a record is of a node as which a device has reported.
func hasBooted(rec *Record) bool { return rec != nil && (rec.Boot != "" || len(rec.PastBoots) > 0) }

// An Outage is what a Node remembers, while it is not ready, beside what its conditions
// and taints say: times in the API have whole seconds, and a taint that gives way to
// another takes its moment along.
type Outage struct {
	// when Ready left True: to the millisecond, and so the order of eviction
	Since        metav1.MicroTime `json:"since"`
	TaintPeriods []TaintPeriod    `json:"spells,omitempty"` // earlier NoExecute taints of this outage, oldest first
}

// A TaintPeriod is a time in which a node had one of the lifecycle's NoExecute taints. A deadline
// that began to run in it stands, unless the taint after it is tolerated for ever.
type TaintPeriod struct {
	Key  string      `json:"key"`
	From metav1.Time `json:"from"` // TimeAdded
	To   metav1.Time `json:"to"`
}

// AwaitsProfile is on a Node whose device has yet to say what it can give under the board profile that
// it has now. Until then nothing is placed on it.
const AwaitsProfile = "flotilla.dev/awaits-profile"

const (
	annotationOutage = "flotilla.dev/outage"
	maxTaintPeriods  = 8 // the oldest, whose deadlines stand, and the last, which may have ended them
)

// OutageOf returns the outage of a node, nil if it has none that can be read.
func OutageOf(n *corev1.Node) *Outage {
	said, ok := n.Annotations[annotationOutage]
	if !ok {
		return nil
	}
	var o Outage
	if since, ok := parseBare(said); ok {
		o.Since = since
	} else if json.Unmarshal([]byte(said), &o) != nil {
		return nil
	}
	if o.Since.IsZero() {
		return nil
	}
	return &o
}

// An outage without spells is written and read without encoding/json, and as that does it: most
// are such, and when a hub starts after a night without network each node has one.
const (
	bareBegins, bareEnds = `{"since":"`, `"}`
	bareLayout           = "2006-01-02T15:04:05.000000Z" // metav1.RFC3339Micro in UTC
)

// parseBare reads an outage without spells; what is written in another way is not ok.
func parseBare(said string) (since metav1.MicroTime, ok bool) {
	text, begins := strings.CutPrefix(said, bareBegins)
	text, ends := strings.CutSuffix(text, bareEnds)
	if !begins || !ends {
		return since, false
	}
	t, err := time.Parse(bareLayout, text)
	return metav1.NewMicroTime(t.Local()), err == nil
}

// HasOutage tells whether a node remembers just this outage; nil: none.
func HasOutage(n *corev1.Node, o *Outage) bool {
	said, had := n.Annotations[annotationOutage]
	return had == (o != nil) && (!had || said == o.String())
}

// SetOutage makes a node, which is the caller's own, remember an outage; nil: none.
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

// String is the outage as the Node carries it.
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

// Ceil is a moment as objects carry it, in whole seconds, and never before it was: from
// such a one deadlines are counted, and nobody leaves early.
func Ceil(t time.Time) metav1.Time {
	if cut := t.Truncate(time.Second); cut.Before(t) {
		t = cut.Add(time.Second)
	}
	return metav1.NewTime(t)
}

// BoundAt returns when a pod was bound to its node. One that names its node itself is
// bound as soon as it is there; its creation has its second cut off.
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
