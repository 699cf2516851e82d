package rollouts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flotilla.dev/hub/admin/diff"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A rolloutRow is one rollout in the list.
type rolloutRow struct {
	Name, Href, Profile string
	Pill                frame.Pill
	Sentence            string
	Done, Nodes, Bad    int32
	Undoing             bool
	Age                 *format.Moment
}

type rolloutsData struct {
	Rows     []rolloutRow
	MayStart bool
}

func rolloutRowOf(r *fleet.FirmwareRollout, a *frame.Request) rolloutRow {
	st := &r.Status
	return rolloutRow{
		Name: r.Name, Href: frame.RolloutHref(r.Name), Profile: r.Spec.Profile, Pill: rolloutPill(r),
		Sentence: st.Sentence, Done: rolloutDone(r), Nodes: st.Nodes, Bad: st.Bad, Undoing: st.Undoing,
		Age: format.Time(r.CreationTimestamp.Time, a.Now),
	}
}

// rolloutDone returns how many nodes have reached the rollout's goal.
func rolloutDone(r *fleet.FirmwareRollout) int32 {
	if r.Status.Undoing {
		return r.Status.Undone
	}
	return r.Status.Kept
}

func rolloutPill(r *fleet.FirmwareRollout) frame.Pill {
	p := frame.Pill{Kind: "warn", Text: cmp.Or(string(r.Status.Phase), string(fleet.RolloutPending))}
	switch r.Status.Phase {
	case fleet.RolloutComplete:
		p.Kind = "ok"
		if r.Status.Bad > 0 {
			p.Kind = "warn"
		}
		if r.Status.Undoing {
			p = frame.Pill{Kind: p.Kind, Text: "Undone"}
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

// List lists the rollouts, the newest first.
func List(a *frame.Request) (frame.Page, error) {
	d := rolloutsData{MayStart: a.May("create", "firmwarerollouts")}
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
	return frame.Page{Template: "rollouts", Title: "Boot configurations", Watch: []string{frame.RolloutsTopic},
		Data: d}, nil
}

// bootLines returns what a profile would write, for nodes whose device has not yet reported the
// change.
func bootLines(c *fleet.BootConfig) (lines []diff.Line) {
	add := func(sign, format string, args ...any) {
		lines = append(lines, diff.Line{Sign: sign, Text: fmt.Sprintf(format, args...)})
	}
	if c.Backend == fleet.BootNone {
		return nil
	}
	if len(c.Config.All)+len(c.Config.DTParam)+len(c.Config.DTOverlay) > 0 {
		add(" ", "config.txt, in the section of Flotilla:")
		for _, f := range frame.FactsOf(c.Config.All) {
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
		add(" ", "the kernel's command line, where it differs:")
		for _, v := range c.Cmdline.Add {
			add("+", "%s", v)
		}
		for _, v := range c.Cmdline.Remove {
			add("-", "%s", v)
		}
	}
	return lines
}

// deviceDiff returns the changes that a device reports, line by line.
func deviceDiff(text string) []diff.Hunk {
	var h diff.Hunk
	for _, l := range diff.Lines(text) {
		switch {
		case strings.HasPrefix(l, "+") && !strings.HasPrefix(l, "+++"), strings.HasPrefix(l, "-") &&
			!strings.HasPrefix(l, "---"):
			h.Lines = append(h.Lines, diff.Line{Sign: l[:1], Text: strings.TrimPrefix(l[1:], " ")})
		default:
			h.Lines = append(h.Lines, diff.Line{Sign: " ", Text: l})
		}
	}
	return []diff.Hunk{h}
}

// shortDigest returns the beginning of a digest, enough to recognise it.
func shortDigest(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(len(digest), 12)]
}

// Listings is the list of rollouts.
var Listings = map[state.Kind]frame.Listing{state.FirmwareRollouts: {
	Found: func(a *frame.Request) (all []state.Object) {
		for o := range a.All(state.FirmwareRollouts, "") {
			all = append(all, o)
		}
		return all
	},
	Pill: func(_ *frame.Request, o state.Object) frame.Pill { return rolloutPill(o.(*fleet.FirmwareRollout)) },
}}
