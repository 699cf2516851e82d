// Package diagnose says what is wrong with a pod, a node, a workload or the fleet, since when, and
// what helps.
//
// It returns findings as data. Package incident groups them and stores their cost; the page, the
// API and the metrics turn them into words. One table, rules, holds everything about a cause. The
// package is pure: it reads only objects. A state that may be normal for a while has a due time:
// before it the finding is pending.
package diagnose

import (
	"time"

	"flotilla.dev/shared/fleet"
)

// A Finding is one problem. The zero Finding is no problem. Findings are comparable: those of an
// unchanged object are equal.
type Finding struct {
	Cause fleet.IncidentCause
	About fleet.IncidentObject // the pod, its node or its image; or the workload
	Args
	Since time.Time // as far as the object says
	Due   time.Time // before this moment it is pending; zero: a problem at once
	Until time.Time // after this moment it is over; zero: while the object says it
}

// Args are the words of the device or the hub about a cause. The cause decides which are set.
type Args struct {
	Node, Container, Image string
	Reason, Message        string
	End                    End // how a container ended last
}

// An End is how a container ended.
type End struct {
	Known           bool
	Code            int32
	Reason, Message string
}

// Pending tells whether a finding may still be normal.
func (f Finding) Pending(now time.Time) bool { return f.Due.After(now) }

// Severity returns the severity of the finding's cause; "" without a cause.
func (f Finding) Severity() fleet.IncidentSeverity { return RuleOf(f.Cause).Severity }

// Kinds of subjects that are not stored as objects.
const (
	KindImage = "Image"
	KindFleet = "Fleet"
)
