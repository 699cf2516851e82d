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
	Name, Href, Subject string
	Pill                frame.Pill
	Sentence            string
	Done, Nodes, Bad    int32
	Undoing             bool
	Age                 *format.Moment
}

type rolloutsData struct {
	Title, SubjectName, About, Asks, Kept string
	Agents                                bool
	Rows                                  []rolloutRow
	MayStart                              bool
}

func rolloutRowOf(k kind, r *fleet.Rollout, a *frame.Request) rolloutRow {
	st := r.Status
	return rolloutRow{
		Name: r.Name, Href: k.href(r.Name), Subject: subjectOf(r), Pill: rolloutPill(r),
		Sentence: st.Sentence, Done: rolloutDone(r), Nodes: st.Nodes, Bad: st.Bad, Undoing: st.Undoing,
		Age: format.Time(r.CreationTimestamp.Time, a.Now),
	}
}

// rolloutDone returns how many nodes have reached the rollout's goal.
func rolloutDone(r *fleet.Rollout) int32 {
	if r.Status.Undoing {
		return r.Status.Undone
	}
	return r.Status.Kept
}

func rolloutPill(r *fleet.Rollout) frame.Pill {
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

// list lists the rollouts of a kind, the newest first.
func list(a *frame.Request, k kind) (frame.Page, error) {
	d := rolloutsData{Title: k.title, SubjectName: k.subject, About: "/help/" + k.about, Asks: k.asks, Kept: k.kept,
		Agents: k.of == state.AgentRollouts, MayStart: a.May("create", k.resource)}
	var all []*fleet.Rollout
	for r := range a.All(k.of, "") {
		all = append(all, fleet.RolloutOf(r))
	}
	slices.SortStableFunc(all, func(x, y *fleet.Rollout) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time), strings.Compare(x.Name, y.Name))
	})
	for _, r := range all {
		d.Rows = append(d.Rows, rolloutRowOf(k, r, a))
	}
	return frame.Page{Template: "rollouts", Title: k.title, Watch: []string{frame.RolloutsTopic},
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

// Listings are the lists of rollouts.
var Listings = map[state.Kind]frame.Listing{boot.of: listing(boot), agents.of: listing(agents)}

func listing(k kind) frame.Listing {
	return frame.Listing{
		Found: func(a *frame.Request) (all []state.Object) {
			for o := range a.All(k.of, "") {
				all = append(all, o)
			}
			return all
		},
		Pill: func(_ *frame.Request, o state.Object) frame.Pill { return rolloutPill(fleet.RolloutOf(o)) },
	}
}
