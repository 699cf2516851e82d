package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// setStatus updates a rollout's status.
func (p *pass) setStatus(w *work) {
	have := fleet.RolloutOf(p.s.Get(state.Key{Kind: p.load.kind(), Name: w.r.Name}))
	if have.DeletionTimestamp != nil {
		return
	}
	st := w.r.Status
	st.ObservedGeneration = w.r.Generation
	p.count(w)
	was := have.Status.Phase
	st.Phase, st.Sentence = p.phase(w)
	p.conditions(w)
	if apiequality.Semantic.DeepEqual(*have.Status, *st) {
		return
	}
	next := have.DeepCopy()
	*next.Status = *st
	c := state.Put(next.Object, "")
	begun := current(next)
	switch before := current(have); {
	case st.Phase != was && st.Phase == fleet.RolloutStopped:
		c.Why = fmt.Sprintf("%s stopped: %s", p.by(next.Name), st.Sentence)
		c = c.Warning(p.words.stopped)
	case st.Phase != was && st.Phase == fleet.RolloutComplete:
		c.Why = fmt.Sprintf("%s is complete: %s", p.by(next.Name), st.Sentence)
		c = c.Event(p.words.complete)
	case begun != nil && (before == nil || before.Number != begun.Number || before.Began != begun.Began):
		c.Why = fmt.Sprintf("%s begins batch %d on site %s: %s", p.by(next.Name), begun.Number, begun.Site,
			strings.Join(begun.Nodes[:min(len(begun.Nodes), 5)], ", "))
		c = c.Event(p.words.batch)
	}
	p.do(c)
}

// rank orders the nodes in a status by how much attention they need.
var rank = map[fleet.FirmwareNodeState]int{
	fleet.FirmwareOverdue: 0, fleet.FirmwareTrying: 1, fleet.FirmwareDraining: 2, fleet.FirmwareBad: 3,
	fleet.FirmwareUnsupported: 4,
	fleet.FirmwareStaged:      5, fleet.FirmwareWaiting: 6, fleet.FirmwareKept: 7, fleet.FirmwareUndone: 8,
}

// attention is the rank of a node; without a turn, Overdue is like Bad.
func attention(n fleet.FirmwareNode) int {
	if n.State == fleet.FirmwareOverdue && n.Since == nil {
		return rank[fleet.FirmwareBad]
	}
	return rank[n.State]
}

// count counts the nodes, and lists the first of them with the changes of their configuration.
func (p *pass) count(w *work) {
	st := w.r.Status
	st.Nodes, st.Kept, st.Bad, st.Unsupported, st.Trying, st.Staged, st.Waiting, st.Undone = int32(len(w.nodes)), 0, 0, 0,
		0, 0, 0, 0
	st.NodeStates, st.Changes = nil, nil
	diffs := map[string]*fleet.FirmwareChange{}
	for _, node := range w.nodes {
		at, why := p.stateOf(w.r, node)
		one := fleet.FirmwareNode{Name: node, Site: state.SiteOf(p.s.Node(node)), State: at, Message: why}
		if at == fleet.FirmwareOverdue && p.assignment(node).Step == "" {
			at = fleet.FirmwareWaiting // it keeps nobody else from their turn
		}
		switch at {
		case fleet.FirmwareKept:
			st.Kept++
		case fleet.FirmwareBad:
			st.Bad++
		case fleet.FirmwareUndone:
			st.Undone++
		case fleet.FirmwareUnsupported:
			st.Unsupported++
		case fleet.FirmwareStaged:
			st.Staged++
		case fleet.FirmwareWaiting:
			st.Waiting++
		default:
			st.Trying++
			since := p.assignment(node).Since
			one.Since = &since
		}
		st.NodeStates = append(st.NodeStates, one)
		if f := p.load.report(p.s.Record(node)); f != nil && f.Diff != "" && f.Candidate == st.Digest && !ends(w.r, at) &&
			!st.Undoing {
			if diffs[f.Diff] == nil {
				diffs[f.Diff] = &fleet.FirmwareChange{Diff: f.Diff, First: node}
			}
			diffs[f.Diff].Nodes++
		}
	}
	sort.SliceStable(st.NodeStates, func(i, j int) bool {
		a, b := st.NodeStates[i], st.NodeStates[j]
		return cmp.Or(attention(a)-attention(b), strings.Compare(a.Name, b.Name)) < 0
	})
	st.NodeStates = slices.Clone(st.NodeStates[:min(len(st.NodeStates), fleet.MaxFirmwareNodes)])
	for _, d := range diffs {
		st.Changes = append(st.Changes, *d)
	}
	sort.Slice(st.Changes, func(i, j int) bool {
		a, b := &st.Changes[i], &st.Changes[j]
		return cmp.Or(int(b.Nodes-a.Nodes), strings.Compare(a.First, b.First)) < 0
	})
	st.Changes = slices.Clone(st.Changes[:min(len(st.Changes), fleet.MaxFirmwareChanges)])
}

// phase returns the phase of a rollout and a sentence about it.
func (p *pass) phase(w *work) (fleet.RolloutPhase, string) {
	st := w.r.Status
	switch {
	case w.problem != "":
		return fleet.RolloutPending, w.problem
	case st.Nodes == 0 && w.older != "":
		return fleet.RolloutPending, fmt.Sprintf(
			"its nodes belong to the older rollout %s: delete that one, or select others", w.older)
	case st.Nodes == 0:
		text := fmt.Sprintf(p.words.none, w.r.Subject())
		if w.r.Spec.Condition != "" {
			text += fmt.Sprintf(" on which %s is False", w.r.Spec.Condition)
		}
		return fleet.RolloutPending, text
	case w.over():
		text := fmt.Sprintf("%d of %s %s", st.Kept, nodes(int(st.Nodes)), p.words.kept)
		if st.Undoing {
			text = fmt.Sprintf("undone: %d of %s %s what %s before", st.Undone, nodes(int(st.Nodes)),
				verb(st.Undone, "has", "have"), verb(st.Undone, "it had", "they had"))
		}
		if st.Bad > 0 {
			text += fmt.Sprintf(", %d %s", st.Bad, map[bool]string{false: "went back", true: "did not go back"}[st.Undoing])
		}
		if st.Unsupported > 0 {
			text += fmt.Sprintf(", %d cannot do it", st.Unsupported)
		}
		if st.Bad > 0 && *w.r.Spec.PauseOnFailure {
			return fleet.RolloutStopped, p.stopped(w)
		}
		return fleet.RolloutComplete, text
	case w.r.Spec.Paused && st.Trying > 0:
		return fleet.RolloutPaused,
			fmt.Sprintf("paused: %s under way %s, then nothing begins", nodes(int(st.Trying)), verb(st.Trying, "ends", "end"))
	case w.r.Spec.Paused:
		return fleet.RolloutPaused, "paused: nothing begins until spec.paused is false"
	}
	if why := p.stopped(w); why != "" {
		return fleet.RolloutStopped, why
	}
	switch {
	case st.Trying > 0:
		first := st.NodeStates[0]
		text := fmt.Sprintf("%s %s on site %s, first %s: %s", nodes(int(st.Trying)),
			verb(st.Trying, "has its turn", "have their turn"), first.Site, first.Name, first.State)
		if first.State == fleet.FirmwareOverdue {
			return fleet.RolloutWaiting, text
		}
		return fleet.RolloutProgressing, text
	case w.waiting != "":
		return fleet.RolloutWaiting, w.waiting
	}
	for _, n := range st.NodeStates {
		if !ends(w.r, n.State) {
			text := fmt.Sprintf("%s can have %s turn, first %s is %s", "none of the nodes left", "its", n.Name, n.State)
			if n.Message != "" {
				text += ": " + n.Message
			}
			return fleet.RolloutWaiting, text
		}
	}
	return fleet.RolloutWaiting, ""
}

// over tells whether every node is finished in the wanted direction.
func (w *work) over() bool {
	st := w.r.Status
	done := st.Kept
	if st.Undoing {
		done = st.Undone
	}
	return st.Undoing == w.r.Spec.Undo && done+st.Bad+st.Unsupported == st.Nodes
}

func verb(n int32, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// conditions sets the phase as conditions for kubectl wait.
func (p *pass) conditions(w *work) {
	st := w.r.Status
	is := func(phases ...fleet.RolloutPhase) metav1.ConditionStatus {
		if slices.Contains(phases, st.Phase) {
			return metav1.ConditionTrue
		}
		return metav1.ConditionFalse
	}
	for _, next := range []metav1.Condition{
		metav1.Condition{Type: "Complete", Status: is(fleet.RolloutComplete)},
		metav1.Condition{Type: "Progressing", Status: is(fleet.RolloutProgressing, fleet.RolloutWaiting)},
		metav1.Condition{Type: "Stopped", Status: is(fleet.RolloutStopped)},
	} {
		next.Reason, next.Message, next.ObservedGeneration, next.LastTransitionTime = string(st.Phase), st.Sentence,
			st.ObservedGeneration, metav1.NewTime(p.now)
		i := slices.IndexFunc(st.Conditions, func(have metav1.Condition) bool { return have.Type == next.Type })
		if i < 0 {
			st.Conditions = append(st.Conditions, next)
			continue
		}
		if st.Conditions[i].Status == next.Status {
			next.LastTransitionTime = st.Conditions[i].LastTransitionTime
		}
		st.Conditions[i] = next
	}
}
