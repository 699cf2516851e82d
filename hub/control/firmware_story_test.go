package control_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A board is a device that applies boot configurations: it stages what it receives, reboots when it
// is allowed to, and reports the result after a minute.
type board struct {
	report state.FirmwareReport
	// result of the next trial: "" kept, "breaks" rolled back, "dies" never returns, "refuses" does not begin
	fate  string
	until time.Time // end of the running reboot; zero: it does not reboot
	tries int
	undo  bool // the reboot restores the previous configuration

	lies, has, wants string // false report: a state, and whether the device has and tries its node's configuration
}

// doFirmware runs the verbs of boot configurations.
func (g *stage) doFirmware(verb string, names []string, opts map[string]string) bool {
	switch verb {
	case "profile": // profile NAME: for boards; the words are added to the command line
		p := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: names[0]}}
		p.Spec.Match.Arch = []string{"arm64"}
		p.Spec.Boot = &fleet.BoardBoot{Backend: fleet.BootConfigTxt, Cmdline: fleet.BootCmdline{Add: names[1:]}}
		g.put(p)
	case "zone":
		s := g.s.Site(names[0]).DeepCopy()
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, fleet.AnnotationTimeZone, names[1])
		g.put(s)
	case "firmware":
		r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: names[0], CreationTimestamp: metav1.NewTime(g.now)}}
		if have := g.s.Rollout(names[0]); have != nil {
			r = have.DeepCopy()
		}
		r.Generation++
		s := &r.Spec
		s.Selector = &metav1.LabelSelector{}
		if v := opts["zone"]; v != "" {
			s.Selector.MatchLabels = map[string]string{corev1.LabelTopologyZone: v}
		} else {
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: corev1.LabelHostname,
				Operator: metav1.LabelSelectorOpExists}}
		}
		number := func(k string, v int32) int32 {
			if n, err := strconv.Atoi(opts[k]); err == nil {
				return int32(n)
			}
			return v
		}
		s.Profile, s.Canary, s.Condition, s.Paused = opts["profile"], opts["canary"], opts["condition"],
			opts["paused"] == "true"
		s.Undo = opts["undo"] == "true"
		s.BatchSize, s.MaxUnavailablePerSite, s.SuccessThreshold = number("batch", 0), number("unavailable", 0),
			number("threshold", 0)
		s.Retry = int64(number("retry", int32(s.Retry)))
		s.PauseOnFailure = nil
		if v := opts["pause"]; v != "" {
			yes := v == "true"
			s.PauseOnFailure = &yes
		}
		s.Window = nil
		if v := opts["window"]; v != "" {
			from, to, _ := strings.Cut(v, "-")
			s.Window = &fleet.FirmwareWindow{From: from, To: to}
		}
		admission.Default(r, admission.Settings{})
		g.put(r)
	case "delete-firmware":
		g.apply(state.Remove(g.s.Rollout(names[0]), ""))
	case "fate":
		for _, n := range g.nodes(names[:1]) {
			g.board(n).fate = names[1]
		}
	case "lie": // lie STATE: the device reports this state from now on; lie: it reports the truth again
		b := g.board(names[0])
		b.lies, b.has, b.wants = opts["state"], opts["has"], opts["wants"]
	case "rollouts":
		for r := range state.Each[*fleet.FirmwareRollout](g.s, state.FirmwareRollouts, "") {
			st := r.Status
			fmt.Fprintf(&g.out, "= %8s  (%s: %s, %d nodes: %d kept, %d bad, %d trying, %d staged, %d waiting: %s)\n",
				g.now.Sub(g.start).Truncate(time.Millisecond), r.Name, st.Phase, st.Nodes, st.Kept, st.Bad, st.Trying, st.Staged,
				st.Waiting, st.Sentence)
		}
	default:
		return false
	}
	return true
}

func (g *stage) board(node string) *board {
	if g.boards == nil {
		g.boards = map[string]*board{}
	}
	if g.boards[node] == nil {
		g.boards[node] = &board{report: state.FirmwareReport{State: "UpToDate", Backend: fleet.BootConfigTxt}}
	}
	return g.boards[node]
}

// bootBoards advances the boards by a second and returns their reports.
func (g *stage) bootBoards() (changes []state.Change) {
	for n := range g.s.Nodes() {
		rec := g.s.Record(n.Name)
		if rec == nil || rec.Firmware == nil && rec.Assigned == nil {
			continue
		}
		b := g.board(n.Name)
		if b.lies != "" && !g.silent[n.Name] {
			report := state.FirmwareReport{State: b.lies, Backend: fleet.BootConfigTxt}
			if a := rec.Assigned; a != nil && b.has != "" {
				report.Digest = a.Digest
			}
			if a := rec.Assigned; a != nil && b.wants != "" {
				report.Candidate = a.Digest
			}
			if rec.Firmware == nil || !same(*rec.Firmware, report) {
				rec = rec.DeepCopy()
				rec.Firmware = &report
				changes = append(changes, state.Put(rec, fmt.Sprintf("the board of %s says: %s", n.Name, report.State)))
			}
			continue
		}
		rebooting := !b.until.IsZero()
		if rebooting && (b.fate == "dies" || g.now.Before(b.until)) || !rebooting && g.silent[n.Name] {
			continue
		}
		if rebooting { // the device is back
			b.until = time.Time{}
			delete(g.silent, n.Name)
			if b.undo {
				b.report.Digest, b.report.State, b.report.Candidate, b.undo = "", "UpToDate", "", false
			} else if b.fate == "breaks" {
				b.report.Bad = append(slices.Clone(b.report.Bad), b.report.Candidate)
				b.report.State, b.report.Message, b.report.Candidate = "RolledBack", "engine-ping failed", ""
			} else {
				b.report.Digest, b.report.State, b.report.Candidate = b.report.Candidate, "UpToDate", ""
			}
			b.fate = ""
			if state.ReadyOf(n) != corev1.ConditionTrue {
				g.report(n.Name, corev1.ConditionTrue)
				rec = g.s.Record(n.Name)
			}
		}
		assigned, r := "", (*fleet.FirmwareRollout)(nil)
		if a := rec.Assigned; a != nil {
			if r = g.s.Rollout(a.Rollout); r != nil && r.Status.Digest == a.Digest {
				assigned = a.Digest
			}
		}
		if r != nil && r.Spec.Retry > 0 && b.tries < int(r.Spec.Retry) {
			b.tries, b.report.Bad = int(r.Spec.Retry), nil
		}
		switch {
		case assigned != "" && assigned == b.report.Digest && r.Status.Undoing && rec.Assigned.Step == fleet.FirmwareTrying &&
			b.fate == "breaks":
			b.report.Candidate, b.report.State, b.report.Message = "", "Failed", "config.txt was changed"
		case assigned != "" && assigned == b.report.Digest && r.Status.Undoing && rec.Assigned.Step == fleet.FirmwareTrying &&
			b.fate != "refuses":
			b.report.Candidate, b.report.State, b.report.Message, b.undo, b.until = "", "Trial", "", true, g.now.Add(time.Minute)
			g.silent[n.Name] = true
		case assigned == "" || assigned == b.report.Digest:
			b.report.Candidate = ""
			if assigned != "" {
				b.report.State, b.report.Message = "UpToDate", ""
			}
		case slices.Contains(b.report.Bad, assigned):
		case rec.Assigned.Step == fleet.FirmwareTrying && b.report.Candidate == assigned && b.fate != "refuses":
			b.report.State, b.report.Message, b.until = "Trial", "", g.now.Add(time.Minute)
			g.silent[n.Name] = true
		case b.report.Candidate != assigned:
			b.report.Candidate, b.report.State, b.report.Message, b.report.Diff = assigned, "Staged", "",
				"+ cgroup_enable=memory"
		}
		if rec.Firmware == nil || !same(*rec.Firmware, b.report) {
			rec = rec.DeepCopy()
			report := b.report
			report.Bad = slices.Clone(report.Bad)
			rec.Firmware = &report
			changes = append(changes, state.Put(rec, fmt.Sprintf("the board of %s: %s", n.Name, report.State)))
		}
	}
	return changes
}

func same(a, b state.FirmwareReport) bool {
	return slices.Equal(a.Bad, b.Bad) && a.Digest == b.Digest && a.Candidate == b.Candidate && a.State == b.State &&
		a.Message == b.Message
}

// turns returns, by site, the nodes that have their turn.
func turns(s state.Snapshot) map[string][]string {
	out := map[string][]string{}
	for n := range s.Nodes() {
		if rec := s.Record(n.Name); rec != nil && rec.Assigned != nil && rec.Assigned.Step != "" {
			out[state.SiteOf(n)] = append(out[state.SiteOf(n)], n.Name)
		}
	}
	return out
}

func sitesOf(m map[string][]string) []string { return slices.Sorted(maps.Keys(m)) }
