// Package preview tells what would become of pods, before somebody has it done.
//
// It plays what is asked for on a copy of the fleet: the hub's own deciders settle it, in
// the loop's own way (package control), devices that are ready obey at once, and time
// runs only to what is due. Nothing of it is remembered, and it has no rule of its own:
// what it says is what happens, if nothing else changes meanwhile. How long images take
// to load, and pods that do not become ready, it cannot know.
package preview

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/drain"
	"flotilla.dev/hub/state"
)

// MaxPods is for how many pods it is looked where each goes, as that takes about a
// millisecond for one: of more it is told only who leaves.
const MaxPods = 300

const (
	maxSteps  = 300             // settlings of one forecast
	maxWork   = 150_000         // pods over which budgets are counted
	lookAhead = 5 * time.Minute // how far to what is due, after the last that a device did
	maxAlarms = 30              // how often, after that
)

// Rules are what decides here: of the hub's deciders those that drain, make, place
// and hold volumes. Nobody falls silent in a forecast, so those that judge nodes are
// not among them.
type Rules struct {
	Deciders []control.Decider
	Follows  control.Consequences
}

// An End is what becomes of a pod.
type End string

const (
	Moves   End = "Moves"   // another takes its place on Node
	Pending End = "Pending" // another takes its place, and no node can have it: Why
	Lost    End = "Lost"    // nobody makes it again: Why
	Remains End = "Remains" // it does not leave: Why, or Hold
	Daemon  End = "Daemon"  // a daemon set's: it stays
	Open    End = "Open"    // further ahead than was looked
)

// Why a stateful set does not make a pod again yet.
const (
	InOrder   = "its stateful set makes its pods one after the other, and one before it is not ready"
	Unstopped = "its stateful set makes it again when the old one has stopped, and its device is silent"
)

// A Fate is what becomes of one pod.
type Fate struct {
	Pod    *corev1.Pod // as it is now
	End    End
	Node   string // where the other goes
	Why    string
	Hold   *state.EvictionRefusal // what keeps it back: for ever where it remains, else at first
	Silent bool                   // its node is not ready: until the device is back it stays Terminating
}

// A Budget is one that some of the pods have to wait for.
type Budget struct {
	*policyv1.PodDisruptionBudget
	Count state.BudgetCount // now
	Pods  int               // that it keeps back at first
	Stuck int               // of them that never leave
	Never bool              // they would not, were all healthy
}

// A Forecast is what would happen.
type Forecast struct {
	Fates   []Fate
	Budgets []Budget
	Others  []*corev1.Pod // that have to make room, elsewhere
	Many    bool          // more than MaxPods would leave: where they go is open
	Short   bool          // not looked to the end: there is more to do than is looked at
}

// Drain tells what an order to drain the nodes would do.
func (r Rules) Drain(s state.Snapshot, nodes []string, order state.DrainOrder, now time.Time) (f Forecast) {
	order.Timeout = state.MaxDrainTimeout.String() // how long it takes is not asked
	p := newPlay(r, s, nodes, now)
	leave := 0
	for _, pod := range p.there {
		if is, _ := drain.OutcomeOf(pod, order); is == drain.Leaves {
			leave++
		}
	}
	if leave > MaxPods {
		for _, pod := range p.there {
			if fate := (Fate{Pod: pod, End: Open}); fate.stays(order) || fate.End == Open {
				f.Fates = append(f.Fates, fate)
			}
		}
		f.Many = true
		return f
	}
	var changes []state.Change
	for _, name := range nodes {
		n := s.Node(name)
		if n == nil {
			continue
		}
		n = n.DeepCopy()
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[state.DrainAnnotation], n.Spec.Unschedulable = order.String(), true
		delete(n.Annotations, state.DrainStatusAnnotation)
		changes = append(changes, state.Put(n, ""))
	}
	p.do(changes)
	holds := p.holds(order)
	p.over = func() bool {
		for _, name := range nodes {
			if n := p.s.Node(name); n != nil {
				if _, going := n.Annotations[state.DrainAnnotation]; going {
					return false
				}
			}
		}
		return true
	}
	p.run(len(budgets(s, holds, now)))
	for _, pod := range p.there {
		fate := Fate{Pod: pod, Hold: holds[pod.UID]}
		n := s.Node(pod.Spec.NodeName)
		fate.Silent = n != nil && state.ReadyOf(n) != corev1.ConditionTrue
		switch {
		case fate.stays(order):
		case fate.End == over:
			continue
		case !p.gone(pod):
			fate.End = Open
			if now := p.s.Pod(pod.Namespace, pod.Name); !p.short {
				fate.End, fate.Hold = Remains, state.RefusalFor(p.s, now, p.now)
			}
		default:
			p.replaced(&fate)
		}
		f.Fates = append(f.Fates, fate)
	}
	f.Budgets = budgets(s, holds, now)
	for i := range f.Budgets {
		f.Budgets[i].stuck(f.Fates)
	}
	return p.finish(f)
}

// stuck counts the pods that a budget keeps for ever. Some need more healthy pods than
// there are, and get them when their owner makes one more: what happens counts.
func (b *Budget) stuck(fates []Fate) {
	for _, x := range fates {
		if x.End == Remains && x.Hold != nil && x.Hold.Budget == b.Name && x.Pod.Namespace == b.Namespace {
			b.Stuck++
		}
	}
	b.Never = b.Stuck > 0 && (b.Count.Desired >= b.Count.Expected || b.Count.Unknown != "")
}

// Delete tells what would become of the pods of nodes that are deleted. No budget is
// asked: the pods go when the hub gives their nodes up.
func (r Rules) Delete(s state.Snapshot, nodes []string, now time.Time) (f Forecast) {
	p := newPlay(r, s, nodes, now)
	if f.Many = len(p.there) > MaxPods; f.Many {
		for _, pod := range p.there {
			f.Fates = append(f.Fates, Fate{Pod: pod, End: Open})
		}
		return f
	}
	var changes []state.Change
	for _, name := range nodes {
		if n := s.Node(name); n != nil {
			changes = append(changes, state.Remove(n, ""))
		}
	}
	p.do(changes)
	p.over = func() bool { return !slices.ContainsFunc(p.there, func(pod *corev1.Pod) bool { return !p.gone(pod) }) }
	p.run(0)
	for _, pod := range p.there {
		fate := Fate{Pod: pod}
		owner := metav1.GetControllerOfNoCopy(pod)
		switch {
		case state.Terminated(pod):
			continue
		case owner != nil && owner.Kind == "DaemonSet":
			fate.End, fate.Why = Lost, "its daemon set has one on each node, and this one is gone"
		case !p.gone(pod):
			fate.End = Open
		default:
			p.replaced(&fate)
		}
		f.Fates = append(f.Fates, fate)
	}
	return p.finish(f)
}

// over is the end of a pod that has come to its own.
const over End = "over"

// stays tells whether an order leaves a pod where it is, and says why.
func (f *Fate) stays(order state.DrainOrder) bool {
	is, why := drain.OutcomeOf(f.Pod, order)
	owner := metav1.GetControllerOfNoCopy(f.Pod)
	switch {
	case is == drain.Ignored && (owner == nil || owner.Kind != "DaemonSet" || state.Terminated(f.Pod)):
		f.End = over
		return false
	case is == drain.Ignored:
		f.End = Daemon
	case is == drain.Stays && f.Pod.DeletionTimestamp == nil:
		f.End, f.Why = Remains, why
	default:
		return false
	}
	return true
}

// holds are what keeps pods back after the first settling.
func (p *simulation) holds(order state.DrainOrder) map[types.UID]*state.EvictionRefusal {
	holds, now := map[types.UID]*state.EvictionRefusal{}, state.NewEvictionRefusals(p.s, p.now)
	if order.DisableEviction {
		return holds
	}
	for _, pod := range p.there {
		if is, _ := drain.OutcomeOf(pod, order); is == drain.Leaves && !p.gone(pod) {
			if h := now.For(pod); h != nil {
				holds[pod.UID] = h
			}
		}
	}
	return holds
}

// budgets are those that keep pods back, by namespace and name, with what they say now.
func budgets(s state.Snapshot, holds map[types.UID]*state.EvictionRefusal, now time.Time) (all []Budget) {
	count := map[state.Key]int{}
	for uid, h := range holds {
		if pod := s.ByUID(uid); pod != nil && h.Budget != "" {
			count[state.Key{Kind: state.PodDisruptionBudgets, Namespace: pod.GetNamespace(), Name: h.Budget}]++
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(count), func(a, b state.Key) int {
		if a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name {
			return -1
		}
		return 1
	}) {
		b, ok := s.Get(k).(*policyv1.PodDisruptionBudget)
		if !ok {
			continue
		}
		c := state.CountBudget(s, b, now)
		all = append(all, Budget{PodDisruptionBudget: b, Count: c, Pods: count[k]})
	}
	return all
}

// finish adds what happens beside.
func (p *simulation) finish(f Forecast) Forecast {
	f.Short = p.short
	there := map[types.UID]bool{}
	for _, pod := range p.there {
		there[pod.UID] = true
	}
	for _, uid := range p.order {
		if pod, ok := p.start.ByUID(uid).(*corev1.Pod); ok && !there[uid] && pod.DeletionTimestamp == nil &&
			!state.Terminated(pod) {
			f.Others = append(f.Others, pod)
		}
	}
	return f
}
