package workloads

import (
	"fmt"
	"strings"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// A cause says in a few words why a workload is in trouble, with a link to its worst pod, or to its
// pods on several silent nodes.
type cause struct{ Text, Href string }

// causes finds the causes for the rows of a list.
type causes struct {
	*frame.Request
	explained int
}

// of returns a workload's cause. A pod's own fault comes before a silent node, because it remains when
// the node is back.
func (c *causes) of(o state.Object) (worst cause) {
	kind, ofNode, silent, nodes := "", false, 0, map[string]bool{}
	for _, p := range podsOf(c.Snapshot, o) {
		f := finding.PodFault(c.Snapshot, p, c.Now)
		if f.Cause == "" {
			continue
		}
		rank, dark := frame.Rank(finding.PillKind(f)), diagnose.RuleOf(f.Cause).Family == diagnose.FamilyDark
		if dark {
			silent++
			nodes[f.Node] = true
		}
		if kind != "" && (rank > frame.Rank(kind) || rank == frame.Rank(kind) && (dark || !ofNode)) {
			continue
		}
		kind, ofNode = finding.PillKind(f), dark
		worst = cause{Text: f.Row(), Href: frame.PodHref(p)}
		switch f.Cause {
		case diagnose.ImageNotPulled:
			image := finding.ImageTroubleOf(f.Args)
			worst.Text = image.Cause + ": " + image.Short
		case diagnose.CannotBePlaced:
			if c.explained < finding.MostExplained && f.Reason != "" {
				c.explained++
				worst.Text = finding.ShortReason(c.Snapshot, p, c.Now)
			}
		}
	}
	if ofNode && len(nodes) > 1 {
		worst.Text = fmt.Sprintf("%s on %d nodes that are not ready", format.Plural(silent, "pod"), len(nodes))
		worst.Href = frame.OwnerHref(o.GetNamespace(), strings.ToLower(state.KindOf(o).Row().Name), o.GetName())
	}
	return worst
}
