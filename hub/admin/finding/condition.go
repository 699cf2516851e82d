// Package finding puts into words what package diagnose finds wrong with nodes and pods, why, and
// what would help. It judges nothing itself: what is wrong is said by diagnose, why there is no
// place by schedule. The page's packages show its sentences.
package finding

import (
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
)

// A ConditionRow is a condition of something, as its page shows it.
type ConditionRow struct {
	Type    string
	Pill    frame.Pill
	Reason  string
	Message string
	Since   *format.Moment
	Help    string // where the manual tells of it; "": nowhere
}

// ConditionRows are all conditions of something. The page folds those that are good.
type ConditionRows []ConditionRow

func (c ConditionRows) Good() ConditionRows { return c.are(true) }

func (c ConditionRows) Bad() ConditionRows { return c.are(false) }

func (c ConditionRows) are(good bool) (rows ConditionRows) {
	for _, r := range c {
		if (r.Pill.Kind == "ok") == good {
			rows = append(rows, r)
		}
	}
	return rows
}
