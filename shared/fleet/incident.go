package fleet

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// An Incident is one cause of trouble with all that follows from it: a dark site with its
// nodes, their pods and the workloads that are short of them. The hub opens, counts and
// closes it, and nobody else; a closed one stays a day.
type Incident struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	State    IncidentState    `json:"state"`
	Cause    IncidentCause    `json:"cause"`
	Severity IncidentSeverity `json:"severity"`
	Site     string           `json:"site,omitempty"` // "": of none, or of several
	About    IncidentObject   `json:"about"`          // what the cause is in
	Message  string           `json:"message"`        // one sentence for people
	Detail   string           `json:"detail,omitempty"`
	PartOf   string           `json:"partOf,omitempty"`   // the incident that this one follows from
	Followed string           `json:"followed,omitempty"` // the one that it followed from before

	Since  metav1.Time  `json:"since"`            // of the cause; what happens again and again has begun once
	Opened metav1.Time  `json:"opened"`           // when the hub saw it
	Closed *metav1.Time `json:"closed,omitempty"` // when the hub saw that it is over

	Count    IncidentCount `json:"count"`              // now
	Examples []string      `json:"examples,omitempty"` // the first nodes, pods or sites, by name

	Held     string           `json:"held,omitempty"`     // why no pod is moved away
	NextMove *metav1.Time     `json:"nextMove,omitempty"` // when the first pods leave
	Actions  []IncidentAction `json:"actions,omitempty"`  // what would help, of the site's actions

	Most         IncidentCount `json:"most"`                   // the largest counts that there were
	Evicted      int32         `json:"evicted,omitempty"`      // pods told to leave
	ShortSeconds int64         `json:"shortSeconds,omitempty"` // how long workloads were short of pods, until ShortSince
	ShortSince   *metav1.Time  `json:"shortSince,omitempty"`   // since when some are again
	NodeSeconds  int64         `json:"nodeSeconds,omitempty"`  // Count.Nodes over time, until Counted
	PodSeconds   int64         `json:"podSeconds,omitempty"`   // Count.Pods over time, until Counted

	Tainted *metav1.Time `json:"tainted,omitempty"` // when the first of its nodes got its NoExecute taint
	Moved   *metav1.Time `json:"moved,omitempty"`   // when the first pod was told to leave
	Back    *metav1.Time `json:"back,omitempty"`    // when the first of its nodes was back

	Latest     metav1.MicroTime `json:"latest"`               // when the last of its nodes failed
	QuietSince *metav1.Time     `json:"quietSince,omitempty"` // since when the cause has not been seen
	Counted    metav1.MicroTime `json:"counted"`              // when it was last written by the hub's rules

	// Acknowledged says who takes care of it: nobody is reminded then. Acknowledged and Note are what
	// people write; all else is the hub's.
	Acknowledged *IncidentAcknowledged `json:"acknowledged,omitempty"`
	Note         string                `json:"note,omitempty"`

	// nobody outside is told before: it may be over, or part of another
	NotifyAfter *metav1.Time   `json:"notifyAfter,omitempty"`
	Told        []IncidentTold `json:"told,omitempty"` // who outside was told
}

// An IncidentState is whether an incident goes on.
type IncidentState string

// States of an incident.
const (
	IncidentOpen   IncidentState = "Open"
	IncidentClosed IncidentState = "Closed"
)

// An IncidentCause is what has happened, in one word.
type IncidentCause string

// An IncidentSeverity is how much an incident matters.
type IncidentSeverity string

// Severities. Info is told to nobody outside.
const (
	SeverityCritical IncidentSeverity = "Critical"
	SeverityWarning  IncidentSeverity = "Warning"
	SeverityInfo     IncidentSeverity = "Info"
)

// An IncidentAction is one of the actions on a site.
type IncidentAction string

// Actions that help.
const (
	ActionHold        IncidentAction = "Hold"
	ActionMaintenance IncidentAction = "Maintenance"
	ActionRelease     IncidentAction = "Release"
)

// An IncidentObject is what a cause is in: a Site, a workload, an Image, or the Fleet.
type IncidentObject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// An IncidentCount counts what an incident touches.
type IncidentCount struct {
	Nodes     int32 `json:"nodes"`     // that the cause is on
	Pods      int32 `json:"pods"`      // on them, or that do not run because of it
	Workloads int32 `json:"workloads"` // that have fewer pods than they want
}

// An IncidentAcknowledged is who has taken an incident up, and when: the hub writes both.
type IncidentAcknowledged struct {
	By   string      `json:"by,omitempty"`
	Time metav1.Time `json:"time,omitempty"`
}

// An IncidentTold is what somebody outside knows of an incident.
type IncidentTold struct {
	Whom   string       `json:"whom"`             // webhook or mail
	Opened *metav1.Time `json:"opened,omitempty"` // when they were told that it is open
	Closed *metav1.Time `json:"closed,omitempty"` // and that it is not any more
	Failed int32        `json:"failed,omitempty"` // attempts in a row
	Next   *metav1.Time `json:"next,omitempty"`   // when it is tried again
	Error  string       `json:"error,omitempty"`  // of the last attempt
	Missed []string     `json:"missed,omitempty"` // of them: whom the last did not reach, and who are tried again
}

// DeepCopy returns a copy that shares nothing that anyone changes.
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
