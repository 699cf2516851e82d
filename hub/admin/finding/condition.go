// Package finding puts findings of package diagnose into words: what is wrong with nodes and pods,
// why, and what helps. Package diagnose decides what is trouble, and package schedule why a pod has
// no node. The page's packages show the sentences.
package finding

import (
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
)

// A ConditionRow is a condition on its object's page.
type ConditionRow struct {
	Type    string
	Pill    frame.Pill
	Reason  string
	Message string
	Since   *format.Moment
	Help    string // the manual's page about it; "": none
}

// ConditionRows are all conditions of an object. The page folds the good ones.
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
