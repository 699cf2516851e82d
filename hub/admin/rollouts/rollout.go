package rollouts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/admin/diff"
	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A rolloutStep is one step of a rollout, in order.
type rolloutStep struct {
	Key, Title string
	Pill       frame.Pill
	Text       string
	Began      *format.Moment
	Ended      *format.Moment
}

// A rolloutNode is one node of a rollout.
type rolloutNode struct {
	Name, Href string
	Pill       frame.Pill
	Message    string
	Since      *format.Moment
	Change     string // the name of the change that it would get
}

// A rolloutSite has the nodes of one site.
type rolloutSite struct {
	Name, Href string
	Pill       frame.Pill // the site's status, if it prevents nodes from beginning
	Nodes      []rolloutNode
}

// A rolloutChange is what would change on some nodes.
type rolloutChange struct {
	Name, Text string
	Diff       []diff.Hunk
}

type rolloutData struct {
	rolloutRow
	List, ListPath, SubjectName string
	Agents                      bool

	YAML    string
	Menu    frame.Menu
	Did     *frame.Done
	Opens   *format.Moment // when the next window opens
	OpensOn string
	Help    string
	Facts   []frame.Fact
	Steps   []rolloutStep
	Changes []rolloutChange
	Sites   []rolloutSite
	More    int // nodes that are not shown
	Over    int // percent
	Events  []frame.EventRow
}

// show shows one rollout: what it does or waits for, its steps, what would change on which nodes,
// and the state of each.
func show(a *frame.Request, k kind) (frame.Page, error) {
	name := a.Param("name")
	r := fleet.RolloutOf(a.Get(state.Key{Kind: k.of, Name: name}))
	if r == nil {
		return frame.Page{}, frame.MissingError(fmt.Sprintf("There is no rollout %s.", name))
	}
	r = r.DeepCopy()
	r.Default()
	st := r.Status
	d := rolloutData{
		List: k.title, ListPath: k.path, SubjectName: strings.ToLower(k.subject), Agents: k.of == state.AgentRollouts,
		rolloutRow: rolloutRowOf(k, r, a), YAML: "/yaml" + frame.ObjectURL(k.of, "", name),
		Menu: frame.MenuOf(a, r.Object), Did: frame.JustDone(a), Facts: rolloutFacts(k, r),
		Steps: rolloutSteps(a, k, r), Changes: rolloutChanges(r), More: int(st.Nodes) - len(st.NodeStates),
	}
	d.Over = int(100 * (d.Done + st.Bad + st.Unsupported) / max(st.Nodes, 1))
	if st.Phase == fleet.RolloutStopped {
		d.Help = frame.HelpURL("incidents", k.cause)
	}
	d.Sites, d.Opens, d.OpensOn = rolloutSites(a, r)
	for _, e := range frame.EventsOf(a.Snapshot, k.of.Row().Name, "default", name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, frame.EventRowOf(a, e))
	}
	return frame.Page{Template: "rollout", Title: name, Watch: []string{frame.RolloutsTopic, "sites"}, Poll: 10,
		Data: d}, nil
}

func rolloutFacts(k kind, r *fleet.Rollout) (facts []frame.Fact) {
	s, st := r.Spec, r.Status
	add := func(name, format string, args ...any) {
		facts = append(facts, frame.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	count := func(name string, n int32) {
		if n > 0 {
			add(name, "%d", n)
		}
	}
	add("Nodes", "%d", st.Nodes)
	add(map[bool]string{false: k.keptName, true: "Still have it"}[st.Undoing], "%d", st.Kept)
	count("Have what they had", st.Undone)
	count(map[bool]string{false: "Went back", true: "Did not go back"}[st.Undoing], st.Bad)
	count("Have their turn", st.Trying)
	count("Staged", st.Staged)
	count("Have not said", st.Waiting)
	count("Cannot do it", st.Unsupported)
	if w := s.Window; w != nil {
		days := strings.Join(w.Days, " ")
		add("Begins only", "%s %s to %s, by the site's clock", cmp.Or(days, "daily"), w.From, w.To)
	}
	if s.Canary != "" {
		add("Canary", "%s", s.Canary)
	}
	if s.Condition != "" {
		add("Only where", "%s is False", s.Condition)
	}
	add("Batches", "%s of one site", format.Plural(int(s.BatchSize), "node"))
	add("Unavailable on a site", "%s at most", format.Plural(int(s.MaxUnavailablePerSite), "node"))
	if *s.PauseOnFailure {
		add("Stops", "at the first node that fails")
	} else {
		add("Stops", "below %d %% that succeed", s.SuccessThreshold)
	}
	if st.Digest != "" && k.of == state.FirmwareRollouts {
		add("Configuration", "%s", shortDigest(st.Digest))
	}
	return facts
}

// rolloutSteps returns the finished, current and remaining steps.
func rolloutSteps(a *frame.Request, k kind, r *fleet.Rollout) (steps []rolloutStep) {
	st := r.Status
	said := st.Nodes - st.Waiting
	first := rolloutStep{Key: "stage", Title: k.first,
		Pill: frame.Pill{Kind: "ok", Text: "Done"},
		Text: fmt.Sprintf("%d of %s have said so", said, format.Plural(int(st.Nodes), "node"))}
	if st.Undoing {
		first = rolloutStep{}
	}
	if st.Waiting > 0 {
		first.Pill = frame.Pill{Kind: "warn", Text: "In progress"}
	}
	if st.Nodes == 0 {
		first.Pill, first.Text = frame.Pill{Kind: "idle", Text: "Waiting"}, "no node is selected"
	}
	if first.Key != "" {
		steps = append(steps, first)
	}
	for _, b := range st.Batches {
		x := rolloutStep{Key: fmt.Sprint("batch ", b.Number), Title: fmt.Sprintf("Batch %d on %s", b.Number, b.Site),
			Pill: frame.Pill{Kind: "warn", Text: "In progress"}, Text: someOf(b.Nodes),
			Began: format.Time(b.Began.Time, a.Now)}
		if b.Number == 1 {
			x.Title = "First, alone, on " + b.Site
		}
		if b.Ended != nil {
			x.Ended, x.Pill = format.Time(b.Ended.Time, a.Now), frame.Pill{Kind: "ok", Text: "Done"}
			if b.Bad > 0 {
				x.Pill = frame.Pill{Kind: "bad", Text: "Failed"}
			}
		}
		if b.Kept+b.Bad > 0 {
			kept, bad := k.kept, "went back"
			if st.Undoing {
				kept, bad = "went back", "did not"
			}
			x.Text += fmt.Sprintf(": %d %s", b.Kept, kept)
			if b.Bad > 0 {
				x.Text += fmt.Sprintf(", %d %s", b.Bad, bad)
			}
		}
		steps = append(steps, x)
	}
	left := st.Nodes - rolloutDone(r) - st.Bad - st.Unsupported - st.Trying
	switch {
	case left > 0 && len(st.Batches) == 0:
		first := cmp.Or(r.Spec.Canary, "one node")
		steps = append(steps, rolloutStep{Key: "first", Title: "First, alone: " + first,
			Pill: frame.Pill{Kind: "idle", Text: "Waiting"}, Text: "no other node begins until it succeeds"})
		if left > 1 {
			steps = append(steps, rolloutStep{Key: "left", Title: "Then the others",
				Pill: frame.Pill{Kind: "idle", Text: "Waiting"}, Text: format.Plural(int(left)-1, "node") +
					", one site at a time"})
		}
	case left > 0:
		steps = append(steps, rolloutStep{Key: "left", Title: "Left", Pill: frame.Pill{Kind: "idle", Text: "Waiting"},
			Text: format.Plural(int(left), "node") + ", one site at a time"})
	}
	return steps
}

// someOf names the first nodes and counts the others.
func someOf(names []string) string {
	const few = 6
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// rolloutChanges returns what would change, as devices report it. For other nodes it returns what the
// profile would write.
func rolloutChanges(r *fleet.Rollout) (changes []rolloutChange) {
	st := r.Status
	if st.Undoing {
		return nil
	}
	told := int32(0)
	for i, c := range st.Changes {
		told += c.Nodes
		changes = append(changes, rolloutChange{changeName(i),
			fmt.Sprintf("on %s, first %s, as they say themselves", format.Plural(int(c.Nodes), "node"), c.First),
			deviceDiff(c.Diff)})
	}
	silent := st.Nodes - st.Kept - st.Bad - st.Unsupported - told
	if silent <= 0 && len(changes) > 0 || st.Phase == fleet.RolloutComplete {
		return changes
	}
	firmware, ok := r.Object.(*fleet.FirmwareRollout)
	if c, err := fleet.ParseBootConfig([]byte(st.Document)); ok && err == nil {
		text := "what profile " + firmware.Spec.Profile + " says"
		if silent > 0 {
			text += "; " + format.Plural(int(silent), "node") + " have not said what it would change"
			if silent == 1 {
				text = strings.Replace(text, "node have", "node has", 1)
			}
		}
		if lines := bootLines(c); len(lines) > 0 {
			changes = append(changes, rolloutChange{"By the profile", text, []diff.Hunk{{Lines: lines}}})
		}
	}
	return changes
}

func changeName(i int) string { return fmt.Sprint("Change ", i+1) }

// rolloutSites returns the nodes by site, in the order of the status, and when the first window that
// a site waits for opens.
func rolloutSites(a *frame.Request, r *fleet.Rollout) (sites []rolloutSite, opens *format.Moment, on string) {
	st := r.Status
	by := map[string]int{}
	var first time.Time
	for _, n := range st.NodeStates {
		i, ok := by[n.Site]
		if !ok {
			i = len(sites)
			by[n.Site] = i
			x := rolloutSite{Name: cmp.Or(n.Site, "none"), Href: frame.SiteHref(n.Site)}
			site := a.Site(n.Site)
			if site != nil && diagnose.Disrupted(site) {
				x.Pill = finding.SitePill(site)
			}
			if site != nil && r.Spec.Window != nil && st.Phase == fleet.RolloutWaiting {
				if zone, err := time.LoadLocation(site.Annotations[fleet.AnnotationTimeZone]); err == nil {
					if open, next := r.Spec.Window.Open(a.Now.In(zone)); !open && !next.IsZero() &&
						(first.IsZero() || next.Before(first)) {
						first, on = next, n.Site
					}
				}
			}
			sites = append(sites, x)
		}
		row := rolloutNode{Name: n.Name, Href: frame.NodeHref(n.Name), Pill: firmwarePill(n.State, st.Undoing),
			Message: n.Message}
		if n.Since != nil {
			row.Since = format.Time(n.Since.Time, a.Now)
		}
		if rec := a.Record(n.Name); rec != nil && rec.Firmware != nil && rec.Firmware.Diff != "" &&
			rec.Firmware.Candidate == st.Digest {
			if at := slices.IndexFunc(st.Changes,
				func(c fleet.FirmwareChange) bool { return c.Diff == rec.Firmware.Diff }); at >= 0 {
				row.Change = changeName(at)
			}
		}
		sites[i].Nodes = append(sites[i].Nodes, row)
	}
	return sites, format.Time(first, a.Now), on
}

func firmwarePill(s fleet.FirmwareNodeState, undoing bool) frame.Pill {
	p := frame.Pill{Kind: "idle", Text: string(s)}
	switch s {
	case fleet.FirmwareKept:
		if !undoing {
			p.Kind = "ok"
		}
	case fleet.FirmwareUndone:
		p.Kind = "ok"
	case fleet.FirmwareBad:
		p = frame.Pill{Kind: "bad", Text: map[bool]string{false: "Went back", true: "Did not go back"}[undoing]}
	case fleet.FirmwareOverdue:
		p.Kind = "bad"
	case fleet.FirmwareTrying:
		p.Kind = "warn"
		if undoing {
			p.Text = "Going back"
		}
	case fleet.FirmwareDraining:
		p.Kind = "warn"
	case fleet.FirmwareUnsupported:
		p = frame.Pill{Kind: "warn", Text: "Cannot do it"}
	}
	return p
}
