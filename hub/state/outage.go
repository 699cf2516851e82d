package state

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An Outage is what a Node remembers, while it is not ready, beside what its conditions
// and taints say: times in the API have whole seconds, and a taint that gives way to
// another takes its moment along.
type Outage struct {
	Since  metav1.MicroTime `json:"since"`            // when Ready left True: to the millisecond, and so the order of eviction
	Spells []Spell          `json:"spells,omitempty"` // earlier NoExecute taints of this outage, oldest first
}

// A Spell is a time in which a node had one of the lifecycle's NoExecute taints. A deadline
// that began to run in it stands, unless the taint after it is tolerated for ever.
type Spell struct {
	Key  string      `json:"key"`
	From metav1.Time `json:"from"` // TimeAdded
	To   metav1.Time `json:"to"`
}

// AwaitsProfile is on a Node whose device has yet to say what it can give under the board profile that
// it has now. Until then nothing is placed on it.
const AwaitsProfile = "flotilla.dev/awaits-profile"

const (
	annotationOutage = "flotilla.dev/outage"
	maxSpells        = 8 // the oldest, whose deadlines stand, and the last, which may have ended them
)

// OutageOf returns the outage of a node, nil if it has none that can be read.
func OutageOf(n *corev1.Node) *Outage {
	said, ok := n.Annotations[annotationOutage]
	if !ok {
		return nil
	}
	var o Outage
	if since, ok := bare(said); ok {
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

// bare reads an outage without spells; what is written in another way is not ok.
func bare(said string) (since metav1.MicroTime, ok bool) {
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
	short := Outage{metav1.NewMicroTime(o.Since.Truncate(time.Millisecond)), o.Spells}
	if n := len(o.Spells); n > maxSpells {
		short.Spells = append(slices.Clone(o.Spells[:maxSpells-1]), o.Spells[n-1])
	}
	if len(short.Spells) == 0 && !short.Since.IsZero() {
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
	if c := PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
		return Ceil(c.LastTransitionTime.Time).Time
	}
	if p.CreationTimestamp.IsZero() {
		return time.Time{}
	}
	return p.CreationTimestamp.Truncate(time.Second).Add(time.Second)
}
