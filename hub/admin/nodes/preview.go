package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/preview"
	"flotilla.dev/hub/state"
)

const (
	foreseenRows   = 20 // pods that are listed
	foreseenLosses = 20
	foreseenPlaces = 5
)

// foreseeDrain foresees a drain as the form describes it.
func foreseeDrain(a *frame.Request, with []state.Object, form url.Values) *frame.Foreseen {
	given, err := parseDrain(form)
	if err != nil {
		given = state.DrainOrder{DeleteEmptyDirData: true}
	}
	return foresee(a, a.Foresight.Drain(a.Snapshot, namesOf(with), given.(state.DrainOrder), a.Now), len(with) > 1)
}

func foreseeDelete(a *frame.Request, with []state.Object, _ url.Values) *frame.Foreseen {
	f := foresee(a, a.Foresight.Delete(a.Snapshot, namesOf(with), a.Now), len(with) > 1)
	var ready, unused []string
	for _, o := range with {
		if state.ReadyOf(o.(*corev1.Node)) == corev1.ConditionTrue {
			ready = append(ready, o.GetName())
		}
		for v := range a.VolumesOn(o.GetName()) {
			if ref := v.Spec.ClaimRef; ref != nil && !used(a.Snapshot, ref) {
				unused = append(unused, state.Display(&metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}))
			}
		}
	}
	if len(f.Rows) > 0 {
		f.Sums = append(f.Sums, "Disruption budgets do not apply, and no pod waits until others are ready.")
	}
	if len(ready) > 0 {
		f.Sums = append(f.Sums, fmt.Sprintf("%s ready now. Drain first to let pods leave gracefully.",
			format.IsAre(len(ready), "node")))
	}
	if len(unused) > 0 {
		f.Losses = append(f.Losses, fmt.Sprintf("%s that no pod uses now: %s. The data stays on the device, out of reach.",
			format.Plural(len(unused), "claim"), firstOf(unused)))
	}
	return f
}

func used(s state.Snapshot, claim *corev1.ObjectReference) bool {
	for range s.PodsUsingClaim(claim.Namespace, claim.Name) {
		return true
	}
	return false
}

func namesOf(with []state.Object) (names []string) {
	for _, o := range with {
		names = append(names, o.GetName())
	}
	return names
}

// foresee puts a forecast into words.
func foresee(a *frame.Request, f preview.Forecast, several bool) *frame.Foreseen {
	d := &frame.Foreseen{From: several}
	count, to := map[preview.End]int{}, map[string]int{}
	silent := map[string]bool{}
	fates := slices.Clone(f.Fates)
	sort.SliceStable(fates, func(i, j int) bool { return cmp.Compare(urgency(fates[i]), urgency(fates[j])) < 0 })
	for _, x := range fates {
		count[x.End]++
		if x.End == preview.Moves {
			to[x.Node]++
		}
		if x.Silent && x.End != preview.Daemon {
			silent[x.Pod.Spec.NodeName] = true
		}
		if len(d.Rows) < foreseenRows {
			d.Rows = append(d.Rows, fateRowOf(x, several))
		}
	}
	d.More = len(fates) - len(d.Rows)
	d.Losses = losses(a.Snapshot, fates)
	add := func(n int, one, many string) {
		switch {
		case n == 1:
			d.Sums = append(d.Sums, "1 pod "+one)
		case n > 1:
			d.Sums = append(d.Sums, fmt.Sprintf("%d pods %s", n, many))
		}
	}
	where := places(to)
	add(count[preview.Remains], "does not leave.", "do not leave.")
	add(count[preview.Pending], "has to leave and stays pending: no node can have it.",
		"have to leave and stay pending: no node can have them.")
	add(count[preview.Lost], "is deleted: it has no owner that makes a new one.",
		"are deleted: they have no owner that makes new ones.")
	add(count[preview.Moves], "goes elsewhere: "+where, "go elsewhere: "+where)
	if f.Many {
		add(count[preview.Open], "has to leave.", fmt.Sprintf("have to leave. Where they go is shown for up to %d pods.",
			preview.MaxPods))
	} else {
		add(count[preview.Open], "has to leave; where it goes is not known.",
			"have to leave; where they go is not known.")
	}
	add(count[preview.Daemon], "of a daemon set stays.", "of daemon sets stay.")
	add(len(f.Others), "on another node has to make room for these.", "on other nodes have to make room for these.")
	if len(fates) == 0 {
		d.Sums = append(d.Sums, "No pod has to leave.")
	}
	if n := len(silent); n > 0 {
		d.Sums = append(d.Sums, fmt.Sprintf(
			"%s not ready: pods there stay Terminating until the device comes back and confirms that it has stopped them.",
			format.IsAre(n, "node")))
	}
	for _, b := range f.Budgets {
		d.Budgets = append(d.Budgets, budgetWarningOf(b))
	}
	slices.SortStableFunc(d.Budgets, func(x, y frame.BudgetWarning) int {
		switch {
		case x.Never == y.Never:
			return 0
		case x.Never:
			return -1
		}
		return 1
	})
	if count[preview.Moves] > 0 {
		d.Note = "As the fleet is now. If anything else changes meanwhile, pods may go elsewhere."
	}
	return d
}

// urgency orders fates, the most important first.
func urgency(x preview.Fate) int {
	return slices.Index([]preview.End{preview.Remains, preview.Pending, preview.Lost, preview.Open, preview.Moves,
		preview.Daemon}, x.End)
}

func leaves(x preview.Fate) bool { return x.End != preview.Remains && x.End != preview.Daemon }

func fateRowOf(x preview.Fate, several bool) frame.FateRow {
	r := frame.FateRow{Name: state.Display(x.Pod), Href: frame.PodPath(x.Pod.Namespace, x.Pod.Name), Why: x.Why}
	if several {
		r.From = x.Pod.Spec.NodeName
	}
	switch x.End {
	case preview.Moves:
		r.Pill, r.To, r.ToHref = frame.Pill{Kind: "ok", Text: "Moves"}, x.Node, frame.NodeHref(x.Node)
		if x.Hold != nil && x.Hold.Budget != "" {
			r.Why = fmt.Sprintf("Waits for its turn: the budget %s.", x.Hold.Budget)
		}
	case preview.Pending:
		r.Pill = frame.Pill{Kind: "bad", Text: "Pending"}
	case preview.Lost:
		r.Pill = frame.Pill{Kind: "warn", Text: "Not replaced"}
		if metav1.GetControllerOfNoCopy(x.Pod) == nil {
			r.Why = "It has no owner, so it is not made again."
		}
	case preview.Remains:
		r.Pill = frame.Pill{Kind: "bad", Text: "Does not leave"}
		switch {
		case x.Hold != nil:
			r.Why = x.Hold.String()
		case metav1.GetControllerOfNoCopy(x.Pod) == nil:
			r.Why = "It has no owner, so it is not made again: tick the box below to delete it."
		}
	case preview.Daemon:
		r.Pill, r.Why = frame.Pill{Kind: "idle", Text: "Stays"}, "Its daemon set has one on each node."
	default:
		r.Pill = frame.Pill{Kind: "warn", Text: "Leaves"}
	}
	if r.Why != "" {
		r.Why = format.Capital(strings.TrimSuffix(r.Why, ".")) + "."
	}
	return r
}

// places names the nodes that get most pods.
func places(to map[string]int) string {
	names := slices.SortedFunc(maps.Keys(to),
		func(x, y string) int { return cmp.Or(cmp.Compare(to[y], to[x]), cmp.Compare(x, y)) })
	var parts []string
	for _, name := range names[:min(len(names), foreseenPlaces)] {
		parts = append(parts, fmt.Sprintf("%d to %s", to[name], name))
	}
	text := strings.Join(parts, ", ")
	if more := len(names) - len(parts); more > 0 {
		text += fmt.Sprintf(", and others to %s more", format.Plural(more, "node"))
	}
	return text + "."
}

// budgetWarningOf says what a budget allows, and what follows for the drain.
func budgetWarningOf(b preview.Budget) frame.BudgetWarning {
	w := frame.BudgetWarning{Name: state.Display(b), Never: b.Stuck > 0, Href: "/yaml" +
		frame.ObjectURL(state.PodDisruptionBudgets, b.Namespace, b.Name)}
	wants := "it has neither minAvailable nor maxUnavailable"
	switch {
	case b.Spec.MaxUnavailable != nil:
		wants = fmt.Sprintf("maxUnavailable is %s of %s", b.Spec.MaxUnavailable,
			format.Plural(int(b.Count.Expected), "pod"))
	case b.Spec.MinAvailable != nil:
		wants = fmt.Sprintf("minAvailable is %s of %s", b.Spec.MinAvailable,
			format.Plural(int(b.Count.Expected), "pod"))
	}
	switch {
	case b.Count.Unknown != "":
		w.Text = fmt.Sprintf("allows none of its pods to leave: the owner of pod %s cannot be found, so the "+
			"number of pods that should run is unknown.", b.Count.Unknown)
	case b.Stuck > 0 && !b.Never:
		w.Text = fmt.Sprintf("keeps %s here, and the drain does not end: %s, %d ready now, and no other pod becomes ready, because no "+
			"node has room for new ones.", format.Plural(b.Stuck, "pod"), wants, b.Count.Healthy)
	case b.Never:
		w.Text = fmt.Sprintf(
			"never allows a pod to leave, even with all of them ready: %s. Here it keeps %s: change it, or scale up.", wants,
			format.Plural(b.Pods, "pod"))
	default:
		w.Text = fmt.Sprintf(
			"lets them leave one after the other, as others become ready: %s, and %d ready now. At first it keeps %s here.",
			wants, b.Count.Healthy, format.Plural(b.Pods, "pod"))
	}
	return w
}

// losses returns what is lost when pods leave their nodes: data in emptyDirs, pods without an owner,
// and volumes of a device that the next pod cannot use.
func losses(s state.Snapshot, fates []preview.Fate) (all []string) {
	var empty, host, bare []string
	for _, x := range fates {
		if !leaves(x) || state.Terminated(x.Pod) {
			continue
		}
		name := state.Display(x.Pod)
		if metav1.GetControllerOfNoCopy(x.Pod) == nil {
			bare = append(bare, name)
		}
		for _, v := range x.Pod.Spec.Volumes {
			switch {
			case v.EmptyDir != nil:
				empty = append(empty, name+" ("+v.Name+")")
			case v.HostPath != nil:
				host = append(host, fmt.Sprintf("%s (%s on %s)", name, v.HostPath.Path, x.Pod.Spec.NodeName))
			case v.PersistentVolumeClaim != nil:
				claim := s.Claim(x.Pod.Namespace, v.PersistentVolumeClaim.ClaimName)
				volume := state.VolumeOf(s, claim)
				if volume == nil || state.NodeOfVolume(volume) != x.Pod.Spec.NodeName || len(all) >= foreseenLosses {
					continue
				}
				size := volume.Spec.Capacity[corev1.ResourceStorage]
				all = append(all, fmt.Sprintf(
					"%s: the volume of claim %s (%s) is on %s and stays there, so the pod can run nowhere else.", name, claim.Name,
					size.String(), x.Pod.Spec.NodeName))
			}
		}
	}
	if len(empty) > 0 {
		all = append(all, fmt.Sprintf("Lost data in %s: %s.", format.Plural(len(empty), "emptyDir"),
			firstOf(empty)))
	}
	if len(host) > 0 {
		all = append(all, fmt.Sprintf("Kept on the device, out of reach of the new pod elsewhere: %s: %s.",
			format.Plural(len(host), "hostPath"), firstOf(host)))
	}
	if len(bare) > 0 {
		all = append(all, fmt.Sprintf("Not made again: %s.", firstOf(bare)))
	}
	return all
}

// firstOf names the first and counts the others.
func firstOf(names []string) string {
	text := strings.Join(names[:min(len(names), foreseenPlaces)], ", ")
	if more := len(names) - foreseenPlaces; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
