package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// rolloutsPath is where rollouts of boot configurations are listed.
const rolloutsPath = "/rollouts"

// rolloutsTopic is what changes with every one of them.
const rolloutsTopic = "rollouts"

// rolloutHref is the page of a rollout.
func rolloutHref(name string) string { return rolloutsPath + "/" + url.PathEscape(name) }

// A rolloutRow is one rollout in the list.
type rolloutRow struct {
	Name, Href, Profile string
	Pill                pill
	Sentence            string
	Done, Nodes, Bad    int32
	Undoing             bool
	Age                 *moment
}

type rolloutsData struct {
	Rows     []rolloutRow
	MayStart bool
}

func rolloutRowOf(r *fleet.FirmwareRollout, a *request) rolloutRow {
	st := &r.Status
	return rolloutRow{
		Name: r.Name, Href: rolloutHref(r.Name), Profile: r.Spec.Profile, Pill: rolloutPill(r), Sentence: st.Sentence, Done: rolloutDone(r), Nodes: st.Nodes, Bad: st.Bad, Undoing: st.Undoing,
		Age: at(r.CreationTimestamp.Time, a.now),
	}
}

// rolloutDone is how many nodes are where the rollout wants them.
func rolloutDone(r *fleet.FirmwareRollout) int32 {
	if r.Status.Undoing {
		return r.Status.Undone
	}
	return r.Status.Kept
}

func rolloutPill(r *fleet.FirmwareRollout) pill {
	p := pill{"warn", cmp.Or(string(r.Status.Phase), string(fleet.RolloutPending))}
	switch r.Status.Phase {
	case fleet.RolloutComplete:
		p.Kind = "ok"
		if r.Status.Bad > 0 {
			p.Kind = "warn"
		}
		if r.Status.Undoing {
			p = pill{p.Kind, "Undone"}
		}
	case fleet.RolloutStopped:
		p.Kind = "bad"
	case fleet.RolloutPaused:
		p.Kind = "idle"
	case fleet.RolloutProgressing:
		if r.Status.Undoing {
			p.Text = "Going back"
		}
	}
	return p
}

// rollouts lists the rollouts, the newest first.
func rollouts(a *request) (page, error) {
	d := rolloutsData{MayStart: a.may("create", "firmwarerollouts")}
	var all []*fleet.FirmwareRollout
	for r := range state.Each[*fleet.FirmwareRollout](a.Snapshot, state.FirmwareRollouts, "") {
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(x, y *fleet.FirmwareRollout) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time), strings.Compare(x.Name, y.Name))
	})
	for _, r := range all {
		d.Rows = append(d.Rows, rolloutRowOf(r, a))
	}
	return page{Template: "rollouts", Title: "Boot configurations", Watch: []string{rolloutsTopic}, Data: d}, nil
}

// bootLines is what a profile would write, for a node whose device has not said yet what
// would change on it.
func bootLines(c *fleet.BootConfig) (lines []diffLine) {
	add := func(sign, format string, args ...any) {
		lines = append(lines, diffLine{sign, fmt.Sprintf(format, args...)})
	}
	if c.Backend == fleet.BootNone {
		return nil
	}
	if len(c.Config.All)+len(c.Config.DTParam)+len(c.Config.DTOverlay) > 0 {
		add(" ", "config.txt, in the section of Flotilla:")
		for _, f := range factsOf(c.Config.All) {
			add("+", "%s=%s", f.Name, f.Value)
		}
		for _, v := range c.Config.DTParam {
			add("+", "dtparam=%s", v)
		}
		for _, v := range c.Config.DTOverlay {
			add("+", "dtoverlay=%s", v)
		}
	}
	if len(c.Cmdline.Add)+len(c.Cmdline.Remove) > 0 {
		add(" ", "the kernel's command line, where it is not so already:")
		for _, v := range c.Cmdline.Add {
			add("+", "%s", v)
		}
		for _, v := range c.Cmdline.Remove {
			add("-", "%s", v)
		}
	}
	return lines
}

// deviceDiff is what a device says would change, line by line.
func deviceDiff(text string) []hunk {
	var h hunk
	for _, l := range lines(text) {
		switch {
		case strings.HasPrefix(l, "+") && !strings.HasPrefix(l, "+++"), strings.HasPrefix(l, "-") && !strings.HasPrefix(l, "---"):
			h.Lines = append(h.Lines, diffLine{l[:1], strings.TrimPrefix(l[1:], " ")})
		default:
			h.Lines = append(h.Lines, diffLine{" ", l})
		}
	}
	return []hunk{h}
}

// shortDigest is enough of a digest to know it again.
func shortDigest(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(len(digest), 12)]
}

// rolloutListings is the list of rollouts.
var rolloutListings = map[state.Kind]listing{state.FirmwareRollouts: {
	found: func(a *request) (all []state.Object) {
		for o := range a.All(state.FirmwareRollouts, "") {
			all = append(all, o)
		}
		return all
	},
	pill: func(_ *request, o state.Object) pill { return rolloutPill(o.(*fleet.FirmwareRollout)) },
}}
