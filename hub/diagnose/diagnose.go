// Package diagnose finds the problem of a pod, a node, a workload or the fleet, since when it
// exists, and what helps.
//
// It returns findings as data. Package incident groups them and stores their cost; the page, the
// API and the metrics turn them into words. One table, rules, has all facts about a cause. The
// package is pure: it only reads objects. A state that may be normal for a while has a due time;
// before that time the finding is pending.
package diagnose

import (
	"time"

	"flotilla.dev/shared/fleet"
)

// A Finding is one problem. The zero Finding is no problem. Findings are comparable: an unchanged
// object has equal findings.
type Finding struct {
	Cause fleet.IncidentCause
	About fleet.IncidentObject // the pod, its node or its image; or the workload
	Args
	Since time.Time // as far as the object shows it
	Due   time.Time // the finding is pending before this moment; zero: it never is
	Until time.Time // the problem ends at this moment; zero: when the object changes
}

// Args are details of a cause from the device or the hub. The cause decides which fields are set.
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

// Severity returns the severity of the finding's cause, "" without a cause.
func (f Finding) Severity() fleet.IncidentSeverity { return RuleOf(f.Cause).Severity }

// Kinds of subjects that are not stored as objects.
const (
	KindImage = "Image"
	KindFleet = "Fleet"
)
