// Package diagnose says what is wrong with a pod, a node, a workload or the fleet, since when,
// and what helps: as data, in one place. Package incident folds findings and remembers what
// they cost; the page, the API and the metrics word them. One table, rules, holds all that is
// said of a cause.
//
// It is pure: it asks neither the time nor anything else than the objects. What may be the
// usual course of things for a while says until when: a finding is trouble once it is due.
package diagnose

import (
	"time"

	"flotilla.dev/shared/fleet"
)

// A Finding is one thing that is wrong. The zero Finding is that nothing is. Findings can be
// compared: of an object that has not changed they are equal.
type Finding struct {
	Cause fleet.IncidentCause
	About fleet.IncidentObject // the pod, its node or its image; the workload
	Args
	Since time.Time // so far as the object says
	Due   time.Time // until then it is no trouble; zero: it is trouble at once
	Until time.Time // then it is history; zero: as long as the object says it
}

// Args are what is said of a cause in the words of the device or the hub: what fits the cause.
type Args struct {
	Node, Container, Image string
	Reason, Message        string
	End                    End // of a container: how it ended last
}

// An End is how a container ended.
type End struct {
	Known           bool
	Code            int32
	Reason, Message string
}

// Pending tells whether a finding may still be the usual course of things.
func (f Finding) Pending(now time.Time) bool { return f.Due.After(now) }

// Severity is that of the finding's cause; "" of none.
func (f Finding) Severity() fleet.IncidentSeverity { return RuleOf(f.Cause).Severity }

// Kinds of what a finding is about that the hub keeps no objects of.
const (
	KindImage = "Image"
	KindFleet = "Fleet"
)
