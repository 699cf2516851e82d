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

// A cause is why a workload is in trouble, in a few words: what is wrong with its worst pod, and a
// link to the pod.
type cause struct{ Text, Href string }

// causes finds the causes of the rows of one list.
type causes struct {
	*frame.Request
	explained int
}

// of prefers a pod's own fault to a silent node: a crash loop stays when the node is back.
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
