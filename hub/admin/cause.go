package admin

import (
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// A cause is in a few words what keeps a workload from being what it should be: what is wrong
// with the worst of its pods, and which that is.
type cause struct{ Text, Href string }

// mostExplained is how many pods a list explains that find no place: each looks at every node.
const mostExplained = 5

// causes finds the causes of the rows of one list.
type causes struct {
	*frame.Request
	explained int
}

func (c *causes) of(o state.Object) (worst cause) {
	kind := ""
	for _, p := range podsOf(c.Snapshot, o) {
		f := faultOf(c.Snapshot, p, c.Now)
		if f.Cause == "" || kind != "" && frame.Rank(kindOf(f)) >= frame.Rank(kind) {
			continue
		}
		kind, worst = kindOf(f), cause{Text: f.Row(), Href: frame.PodHref(p)}
		switch f.Cause {
		case diagnose.ImageNotPulled:
			image := imageTroubleOf(f.Args)
			worst.Text = image.Cause + ": " + image.short
		case diagnose.CannotBePlaced:
			if c.explained < mostExplained && f.Reason != "" {
				c.explained++
				worst.Text = shortly(c.Snapshot, p, c.Now)
			}
		}
	}
	return worst
}
