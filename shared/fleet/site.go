package fleet

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Site is a place with its own uplink; in Kubernetes it is a zone. Its name is the value of the
// label topology.kubernetes.io/zone (after "<region>." if nodes have a region), or "default". The
// hub creates a site with its first node.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SiteSpec   `json:"spec,omitempty"`
	Status SiteStatus `json:"status,omitempty"`
}

// A SiteSpec has the settings of a site. The hub's settings replace nil fields.
type SiteSpec struct {
	Description string `json:"description,omitempty"`
	Location    string `json:"location,omitempty"`

	// whole seconds, 1s to 5m; grace periods must be at least four times as long
	LeaseInterval             *metav1.Duration `json:"leaseInterval,omitempty"`
	NodeMonitorGracePeriod    *metav1.Duration `json:"nodeMonitorGracePeriod,omitempty"`
	NodeStartupGracePeriod    *metav1.Duration `json:"nodeStartupGracePeriod,omitempty"`
	NodeEvictionRate          *float64         `json:"nodeEvictionRate,omitempty"`          // nodes per second
	SecondaryNodeEvictionRate *float64         `json:"secondaryNodeEvictionRate,omitempty"` // nodes per second
	UnhealthyZoneThreshold    *float64         `json:"unhealthyZoneThreshold,omitempty"`    // 0..1
	LargeClusterSizeThreshold *int32           `json:"largeClusterSizeThreshold,omitempty"` // nodes

	DisruptionPolicy DisruptionPolicy `json:"disruptionPolicy,omitempty"`
	Maintenance      *Maintenance     `json:"maintenance,omitempty"`

	// ShareImages lets the site's devices pull layers of the hub's images from each other.
	ShareImages bool `json:"shareImages,omitempty"`
}

// A DisruptionPolicy is the rule for a fully disrupted site while another site has ready nodes:
// Evict (as in Kubernetes) or Hold.
type DisruptionPolicy string

// Disruption policies.
const (
	Evict DisruptionPolicy = "Evict"
	Hold  DisruptionPolicy = "Hold"
)

// Maintenance stops evictions on a site until the given time.
type Maintenance struct {
	Until  metav1.Time `json:"until"`
	Reason string      `json:"reason,omitempty"`
}

// A SiteState is the disruption state of a site, as in Kubernetes.
type SiteState string

// States of a site.
const (
	SiteNormal            SiteState = "Normal"
	SitePartialDisruption SiteState = "PartialDisruption"
	SiteFullDisruption    SiteState = "FullDisruption"
)

// A SiteHold is the reason why a site evicts no pods.
type SiteHold string

// Values of SiteHold.
const (
	HeldForMaintenance     SiteHold = "Maintenance"
	HeldPartialDisruption  SiteHold = "PartialDisruption" // the site has too few nodes for the secondary rate
	HeldByDisruptionPolicy SiteHold = "DisruptionPolicy"
	// no site has a ready node: the hub has probably lost its own network
	HeldInMasterDisruption SiteHold = "MasterDisruption"
)

// A SiteStatus is the hub's view of a site.
type SiteStatus struct {
	State        SiteState    `json:"state,omitempty"`
	Since        *metav1.Time `json:"since,omitempty"` // start of State
	Ready        int32        `json:"ready"`           // nodes with Ready=True
	NotReady     int32        `json:"notReady"`        // all other counted nodes
	NeverSeen    int32        `json:"neverSeen,omitempty"`
	EvictionRate string       `json:"evictionRate,omitempty"` // present rate in nodes per second, as a decimal
	// why no pods are evicted although nodes wait for their taint
	HeldReason SiteHold `json:"heldReason,omitempty"`
	Held       string   `json:"held,omitempty"`    // HeldReason as a sentence for users
	Waiting    int32    `json:"waiting,omitempty"` // not-ready nodes that wait for their NoExecute taint
	// time of the last NoExecute taint on a node, for the site's token bucket
	LastEviction *metav1.MicroTime `json:"lastEviction,omitempty"`
	NextEviction *metav1.MicroTime `json:"nextEviction,omitempty"` // earliest time of the next NoExecute taint
	// History has the changes of State of the last 30 days, oldest first, and the last change
	// before them; at most 100. Events expire earlier.
	History []SiteTurn `json:"history,omitempty"`
}

// A SiteTurn is a change of a site's state.
type SiteTurn struct {
	Time     metav1.Time `json:"time"`
	State    SiteState   `json:"state"`           // the new state
	Ready    int32       `json:"ready"`           // ready nodes at that time
	NotReady int32       `json:"notReady"`        // other nodes at that time
	Given    int32       `json:"given,omitempty"` // nodes that got their NoExecute taint in this state
}

const (
	siteHistoryAge = 30 * 24 * time.Hour
	siteTurns      = 100
)

// Turn appends a change to the history and drops old changes.
func (st *SiteStatus) Turn(t SiteTurn) {
	st.History = append(slices.Clip(st.History), t)
	st.History = Recent(st.History, func(t SiteTurn) time.Time { return t.Time.Time }, siteTurns, siteHistoryAge)
}

// DeepCopyInto copies s into out.
func (s *Site) DeepCopyInto(out *Site) {
	*out = *s
	s.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	sp := &out.Spec
	sp.LeaseInterval = clone(s.Spec.LeaseInterval)
	sp.NodeMonitorGracePeriod = clone(s.Spec.NodeMonitorGracePeriod)
	sp.NodeStartupGracePeriod = clone(s.Spec.NodeStartupGracePeriod)
	sp.NodeEvictionRate = clone(s.Spec.NodeEvictionRate)
	sp.SecondaryNodeEvictionRate = clone(s.Spec.SecondaryNodeEvictionRate)
	sp.UnhealthyZoneThreshold = clone(s.Spec.UnhealthyZoneThreshold)
	sp.LargeClusterSizeThreshold = clone(s.Spec.LargeClusterSizeThreshold)
	sp.Maintenance = clone(s.Spec.Maintenance)
	out.Status.Since = s.Status.Since.DeepCopy()
	out.Status.LastEviction = s.Status.LastEviction.DeepCopy()
	out.Status.NextEviction = s.Status.NextEviction.DeepCopy()
	out.Status.History = slices.Clone(s.Status.History)
}

// DeepCopy returns a copy that shares nothing.
func (s *Site) DeepCopy() *Site {
	if s == nil {
		return nil
	}
	out := new(Site)
	s.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (s *Site) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// A SiteList is a list of sites.
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Site `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *SiteList) DeepCopyObject() runtime.Object {
	out := &SiteList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}
