package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// stopped returns why a rollout starts no more turns although it is not paused, "" if it goes on.
func (p *pass) stopped(w *work) string {
	var kept, bad, silent []string
	threshold := func() bool { // it is not reached, at the end of a batch
		return current(w.r) == nil &&
			len(kept)*100 < int(w.r.Spec.SuccessThreshold)*(len(kept)+len(bad)+len(silent))
	}
	for _, node := range w.nodes {
		switch at, _ := p.stateOf(w.r, node); at {
		case wanted(w.r):
			if p.silentSince(node) {
				silent = append(silent, node)
			} else {
				kept = append(kept, node)
			}
		case fleet.FirmwareBad:
			bad = append(bad, node)
		case fleet.FirmwareOverdue:
			if p.assignment(node).Step == "" {
				silent = append(silent, node)
			} else {
				bad = append(bad, node)
			}
		}
	}
	stops := *w.r.Spec.PauseOnFailure
	if !p.load.disrupts() && len(bad) == 0 {
		stops = false // devices that are off do not stop the others, unless there are many
	}
	if len(silent) > 0 && (len(bad) == 0 || !stops) {
		text := fmt.Sprintf("%s went silent after the turn, first %s: bring it back, or label it %s, or ",
			nodes(len(silent)), silent[0], fleet.LabelExcludeDisruption)
		switch {
		case stops:
			return text + "set spec.pauseOnFailure to false"
		case threshold():
			return text + "lower spec.successThreshold"
		}
	}
	if len(bad) == 0 {
		return ""
	}
	_, why := p.stateOf(w.r, bad[0])
	first := bad[0]
	if why != "" {
		first += " (" + why + ")"
	}
	if *w.r.Spec.PauseOnFailure {
		if w.r.Status.Undoing {
			return fmt.Sprintf("%s did not go back: %s; check it, and raise spec.retry, or set spec.pauseOnFailure to false",
				nodes(len(bad)), first)
		}
		return fmt.Sprintf("%s %s: %s; %s, or raise spec.retry, or set spec.pauseOnFailure to false", nodes(len(bad)),
			p.words.notKept, first, p.words.mend)
	}
	if b := current(w.r); b == nil && len(kept)*100 < int(w.r.Spec.SuccessThreshold)*(len(kept)+len(bad)) {
		did, mend := p.words.kept, p.words.mend
		if w.r.Status.Undoing {
			did, mend = "went back", "raise spec.retry"
		}
		return fmt.Sprintf("%d of %s %s, fewer than %d%%: first %s; %s, or lower spec.successThreshold", len(kept),
			nodes(len(kept)+len(bad)), did, w.r.Spec.SuccessThreshold, first, mend)
	}
	return ""
}

// silentSince tells whether a node that finished its turn does not answer. The new configuration
// may be the cause, although the device reported that it keeps it.
func (p *pass) silentSince(node string) bool {
	n := p.s.Node(node)
	_, excluded := n.Labels[fleet.LabelExcludeDisruption]
	return p.assignment(node).Done && !excluded && state.ReadyOf(n) == corev1.ConditionUnknown
}

// current returns the running batch, nil for none.
func current(r *fleet.Rollout) *fleet.FirmwareBatch {
	if n := len(r.Status.Batches); n > 0 && r.Status.Batches[n-1].Ended == nil {
		return &r.Status.Batches[n-1]
	}
	return nil
}

// begin ends a finished batch, starts the next, and gives turns to as many of its nodes as may be
// unavailable.
func (p *pass) begin(w *work) {
	p.endBatch(w)
	switch {
	case w.problem != "" || w.r.Spec.Paused:
		return
	case w.stale:
		w.waiting = p.superseded(w) + ": this applies when the running turns have ended"
		return
	}
	if w.waiting = p.stopped(w); w.waiting != "" {
		return
	}
	b := current(w.r)
	if b == nil {
		if b = p.nextBatch(w); b == nil {
			return
		}
	}
	for _, node := range b.Nodes {
		if !p.ready(w, node) {
			continue
		}
		why, until := p.siteClosed(w.r, b.Site)
		if why == "" {
			why = p.siteBlocked(w.r, b.Site)
		}
		if why != "" {
			w.waiting = why
			p.at(until)
			return
		}
		p.start(w.r, node)
	}
}

// endBatch removes nodes that cannot continue from the running batch, and ends the batch when no
// turn is left.
func (p *pass) endBatch(w *work) {
	b := current(w.r)
	if b == nil {
		return
	}
	kept, bad, open, turns := int32(0), int32(0), false, false
	b.Nodes = slices.DeleteFunc(b.Nodes, func(node string) bool {
		if !slices.Contains(w.nodes, node) {
			return true
		}
		switch at, _ := p.stateOf(w.r, node); at {
		case wanted(w.r):
			if !p.assignment(node).Done {
				return true // a report without a turn proves nothing
			}
			kept++
		case fleet.FirmwareBad:
			bad++
		case fleet.FirmwareUnsupported:
		case fleet.FirmwareDraining, fleet.FirmwareTrying, fleet.FirmwareOverdue:
			if p.assignment(node).Step != "" {
				open, turns = true, true
			}
		default:
			if !p.ready(w, node) {
				return true
			}
			open = true
		}
		return false
	})
	b.Kept, b.Bad = kept, bad
	if open && !turns { // do not wait for a closed site while another is open
		if why, until := p.siteClosed(w.r, b.Site); why != "" {
			open = false
			p.at(until)
			b.Nodes = slices.DeleteFunc(b.Nodes, func(node string) bool { at, _ := p.stateOf(w.r, node); return !ends(w.r, at) })
		}
	}
	if !open {
		b.Ended = &metav1.Time{Time: state.Ceil(p.now).Time}
		if len(b.Nodes) == 0 { // no node had a turn
			w.r.Status.Batches = w.r.Status.Batches[:len(w.r.Status.Batches)-1]
		}
	}
}

// ready tells whether a node itself could start its turn.
func (p *pass) ready(w *work, node string) bool {
	n, turn := p.s.Node(node), p.assignment(node)
	_, ordered := n.Annotations[state.DrainAnnotation]
	if at, _ := p.stateOf(w.r, node); at != begins(w.r) || turn.Step != "" || turn.NotBefore.After(p.now) ||
		p.s.Record(node).Withheld() != "" || p.otherTurn(node) {
		return false
	}
	if !p.load.disrupts() { // also a node that is cordoned, or not ready and may need the new version for that
		return state.ReadyOf(n) != corev1.ConditionUnknown
	}
	return state.ReadyOf(n) == corev1.ConditionTrue && !n.Spec.Unschedulable && !ordered
}

// otherTurn tells whether a node has its turn in a rollout of another kind: its device tries one
// thing at a time.
func (p *pass) otherTurn(node string) bool {
	rec := p.s.Record(node)
	return slices.ContainsFunc(payloads, func(l payload) bool {
		turn := *l.turn(rec)
		return l != p.load && turn != nil && turn.Step != ""
	})
}

// nextBatch starts the next batch, on the site of the last one or on the first site by name with a
// ready node. Until one node has kept the configuration, a batch has one node.
func (p *pass) nextBatch(w *work) *fleet.FirmwareBatch {
	// A device's report without a turn of this rollout proves nothing.
	var open []string
	proven, canary := slices.ContainsFunc(w.r.Status.Batches, func(b fleet.FirmwareBatch) bool {
		return b.Kept > 0
	}), w.r.Spec.Canary
	for _, node := range w.nodes {
		if p.ready(w, node) {
			open = append(open, node)
		}
	}
	if slices.Contains(w.nodes, canary) { // a canary that is finished already does not count
		at, _ := p.stateOf(w.r, canary)
		if at == wanted(w.r) || w.r.Status.Undoing && ends(w.r, at) {
			canary = ""
		} else {
			proven = false
		}
	} else if w.r.Status.Undoing { // the canary was removed from the nodes
		canary = ""
	}
	size := int(w.r.Spec.BatchSize)
	if !proven {
		size = 1
		if canary != "" {
			if !slices.Contains(open, canary) {
				w.waiting = fmt.Sprintf("the canary %s goes first: %s", canary, p.canary(w))
				return nil
			}
			open = []string{canary}
		}
	}
	last := ""
	if n := len(w.r.Status.Batches); n > 0 {
		last = w.r.Status.Batches[n-1].Site
	}
	site := func(node string) string { return state.SiteOf(p.s.Node(node)) }
	slices.SortFunc(open, func(a, b string) int {
		x, y := site(a), site(b)
		if x != y && (x == last || y == last) {
			if x == last {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(x, y), strings.Compare(a, b))
	})
	for len(open) > 0 {
		here := site(open[0])
		end := slices.IndexFunc(open, func(node string) bool { return site(node) != here })
		if end < 0 {
			end = len(open)
		}
		why, until := p.siteClosed(w.r, here)
		if why == "" {
			why = p.siteBlocked(w.r, here)
		}
		if why == "" {
			b := fleet.FirmwareBatch{Number: 1, Site: here, Nodes: slices.Clone(open[:min(end, size)]),
				Began: metav1.NewTime(p.now)}
			if n := len(w.r.Status.Batches); n > 0 {
				b.Number = w.r.Status.Batches[n-1].Number + 1
			}
			w.r.Status.Batches = append(w.r.Status.Batches, b)
			if more := len(w.r.Status.Batches) - fleet.MaxFirmwareBatches; more > 0 {
				w.r.Status.Batches = slices.Clone(w.r.Status.Batches[more:])
			}
			return current(w.r)
		}
		if w.waiting == "" {
			w.waiting = why
		}
		p.at(until)
		open = open[end:]
	}
	return nil
}

// superseded returns why running turns end, and no turn begins before that.
func (p *pass) superseded(w *work) string {
	switch {
	case w.r.Spec.Undo && !w.r.Status.Undoing:
		return "an undo was requested"
	case w.r.Status.Undoing && !w.r.Spec.Undo:
		return "the undo was cancelled"
	}
	return p.words.changed
}

// canary returns why the canary cannot begin.
func (p *pass) canary(w *work) string {
	if !slices.Contains(w.nodes, w.r.Spec.Canary) {
		return "it is not among the nodes of the rollout"
	}
	at, why := p.stateOf(w.r, w.r.Spec.Canary)
	n := p.s.Node(w.r.Spec.Canary)
	switch {
	case why != "":
	case state.ReadyOf(n) != corev1.ConditionTrue:
		why = "it is not ready"
	case n.Spec.Unschedulable && p.load.disrupts():
		why = "it is cordoned"
	default:
		why = "it is " + string(at)
	}
	return why
}

// siteBlocked returns why no more nodes of a site may begin: a turn on another site, a trial there
// that a deleted rollout started, or too many unavailable nodes on this site.
func (p *pass) siteBlocked(r *fleet.Rollout, site string) string {
	for _, w := range p.work {
		for _, node := range w.nodes {
			if at := state.SiteOf(p.s.Node(node)); p.assignment(node).Step != "" && at != site {
				return fmt.Sprintf("node %s on site %s has its turn: one site at a time", node, at)
			}
		}
	}
	for _, node := range p.trying {
		if at := state.SiteOf(p.s.Node(node)); at != site {
			return fmt.Sprintf("the device of node %s on site %s reports a trial without a turn, and only "+
				"one site may be at risk: wait for its end, check the device, or delete the node", node, at)
		}
	}
	var out []string
	for n := range p.s.NodesIn(site) {
		turn := p.assignment(n.Name).Step != "" || slices.Contains(p.trying, n.Name)
		_, excluded := n.Labels[fleet.LabelExcludeDisruption]
		if turn || p.load.disrupts() && !excluded && !state.NeverReported(n) &&
			(n.Spec.Unschedulable || state.ReadyOf(n) != corev1.ConditionTrue) {
			out = append(out, n.Name)
		}
	}
	if len(out) < int(r.Spec.MaxUnavailablePerSite) {
		return ""
	}
	return fmt.Sprintf("site %s has %s unavailable, first %s, and at most %d may be", site, nodes(len(out)), out[0],
		r.Spec.MaxUnavailablePerSite)
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
