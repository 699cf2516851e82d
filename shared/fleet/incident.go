package fleet

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// An Incident is one cause of trouble and its consequences, for example a site without a
// connection, its nodes, their pods and the workloads short of pods. Only the hub opens, updates
// and closes an incident. A closed incident is stored for one day.
type Incident struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	State    IncidentState    `json:"state"`
	Cause    IncidentCause    `json:"cause"`
	Severity IncidentSeverity `json:"severity"`
	Site     string           `json:"site,omitempty"` // empty if the incident affects no site or several sites
	About    IncidentObject   `json:"about"`          // the affected object
	Message  string           `json:"message"`        // one sentence for users
	Detail   string           `json:"detail,omitempty"`
	PartOf   string           `json:"partOf,omitempty"`   // the incident that causes this one
	Followed string           `json:"followed,omitempty"` // the earlier value of PartOf

	Since  metav1.Time  `json:"since"`            // first occurrence of the cause
	Opened metav1.Time  `json:"opened"`           // when the hub noticed it
	Closed *metav1.Time `json:"closed,omitempty"` // when the hub noticed its end

	Count    IncidentCount `json:"count"`              // present counts
	Examples []string      `json:"examples,omitempty"` // the first nodes, pods or sites by name

	Held     string           `json:"held,omitempty"`     // why the hub evicts no pod
	NextMove *metav1.Time     `json:"nextMove,omitempty"` // when the hub evicts the first pods
	Actions  []IncidentAction `json:"actions,omitempty"`  // actions on the site that are possible now

	Most    IncidentCount `json:"most"`              // largest counts so far
	Evicted int32         `json:"evicted,omitempty"` // number of evicted pods
	// seconds in which workloads were short of pods, until ShortSince
	ShortSeconds int64        `json:"shortSeconds,omitempty"`
	ShortSince   *metav1.Time `json:"shortSince,omitempty"`  // since when workloads are short of pods; nil: none is short
	NodeSeconds  int64        `json:"nodeSeconds,omitempty"` // Count.Nodes integrated over time, until Counted
	PodSeconds   int64        `json:"podSeconds,omitempty"`  // Count.Pods integrated over time, until Counted

	Tainted *metav1.Time `json:"tainted,omitempty"` // first NoExecute taint of an affected node
	Moved   *metav1.Time `json:"moved,omitempty"`   // first eviction of a pod
	Back    *metav1.Time `json:"back,omitempty"`    // first return of an affected node

	Latest     metav1.MicroTime `json:"latest"`               // last failure of an affected node
	QuietSince *metav1.Time     `json:"quietSince,omitempty"` // since when the cause has not occurred
	Counted    metav1.MicroTime `json:"counted"`              // last update by the hub

	// Acknowledged names the user who works on the incident; then no reminders are sent. Users
	// write only Acknowledged and Note.
	Acknowledged *IncidentAcknowledged `json:"acknowledged,omitempty"`
	Note         string                `json:"note,omitempty"`

	// earliest notification; until then the incident may end or become part of another incident
	NotifyAfter *metav1.Time   `json:"notifyAfter,omitempty"`
	Told        []IncidentTold `json:"told,omitempty"` // sent notifications
}

// An IncidentState says whether an incident is open.
type IncidentState string

// States of an incident.
const (
	IncidentOpen   IncidentState = "Open"
	IncidentClosed IncidentState = "Closed"
)

// An IncidentCause is the kind of the cause.
type IncidentCause string

// An IncidentSeverity is the severity of an incident.
type IncidentSeverity string

// Severities. Incidents of severity Info cause no notifications.
const (
	SeverityCritical IncidentSeverity = "Critical"
	SeverityWarning  IncidentSeverity = "Warning"
	SeverityInfo     IncidentSeverity = "Info"
)

// An IncidentAction is an action on a site.
type IncidentAction string

// Actions on a site.
const (
	ActionHold        IncidentAction = "Hold"
	ActionMaintenance IncidentAction = "Maintenance"
	ActionRelease     IncidentAction = "Release"
)

// An IncidentObject is the affected object: a Site, a workload, an Image, or the Fleet.
type IncidentObject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// An IncidentCount counts the affected objects.
type IncidentCount struct {
	Nodes     int32 `json:"nodes"`     // nodes on which the cause occurs
	Pods      int32 `json:"pods"`      // pods on those nodes, or pods that do not run because of the cause
	Workloads int32 `json:"workloads"` // workloads with fewer pods than wanted
}

// An IncidentAcknowledged is the user who has acknowledged an incident, and the time. The hub
// writes both.
type IncidentAcknowledged struct {
	By   string      `json:"by,omitempty"`
	Time metav1.Time `json:"time,omitempty"`
}

// An IncidentTold is the state of an incident's notifications through one channel.
type IncidentTold struct {
	Whom   string       `json:"whom"`             // channel: webhook or mail
	Opened *metav1.Time `json:"opened,omitempty"` // when the notification of the opening was sent
	Closed *metav1.Time `json:"closed,omitempty"` // when the notification of the end was sent
	Failed int32        `json:"failed,omitempty"` // failed attempts in a row
	Next   *metav1.Time `json:"next,omitempty"`   // next attempt
	Error  string       `json:"error,omitempty"`  // error of the last attempt
	Missed []string     `json:"missed,omitempty"` // recipients that the last attempt did not reach
}

// DeepCopy returns a copy that shares no mutable data.
func (i *Incident) DeepCopy() *Incident {
	if i == nil {
		return nil
	}
	out := *i
	i.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Closed, out.NextMove = i.Closed.DeepCopy(), i.NextMove.DeepCopy()
	out.ShortSince, out.QuietSince, out.NotifyAfter = i.ShortSince.DeepCopy(), i.QuietSince.DeepCopy(),
		i.NotifyAfter.DeepCopy()
	out.Tainted, out.Moved, out.Back = i.Tainted.DeepCopy(), i.Moved.DeepCopy(), i.Back.DeepCopy()
	if a := i.Acknowledged; a != nil {
		out.Acknowledged = new(*a)
	}
	out.Examples, out.Actions, out.Told = slices.Clone(i.Examples), slices.Clone(i.Actions), slices.Clone(i.Told)
	for n := range out.Told {
		t := &out.Told[n]
		t.Opened, t.Closed, t.Next = t.Opened.DeepCopy(), t.Closed.DeepCopy(), t.Next.DeepCopy()
		t.Missed = slices.Clone(t.Missed)
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (i *Incident) DeepCopyObject() runtime.Object { return i.DeepCopy() }

// An IncidentList is a list of incidents.
type IncidentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Incident `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *IncidentList) DeepCopyObject() runtime.Object {
	out := &IncidentList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}
