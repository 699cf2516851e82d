// Package preview forecasts what an action does to pods, before it is carried out.
//
// It carries out the action on a copy of the fleet. The hub's own deciders settle the copy with
// package control, ready devices obey at once, and time jumps from alarm to alarm. Nothing is
// stored. The package adds no rules, so the forecast comes true unless something else changes. It
// cannot know how long an image takes to pull or whether a pod becomes ready.
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

// MaxPods limits the pods for which a new node is searched, at about a millisecond each. Above it
// the forecast only says which pods leave.
const MaxPods = 300

const (
	maxSteps  = 300             // number of times that one forecast settles the copy
	maxWork   = 150_000         // pods over which budgets are counted
	lookAhead = 5 * time.Minute // how long alarms are followed after the last action of a device
	maxAlarms = 30              // number of alarms after that
)

// Rules are the deciders of a forecast: those that drain nodes, create and place pods, and bind
// volumes. Deciders that judge nodes are omitted, because no node becomes silent in a forecast.
type Rules struct {
	Deciders []control.Decider
	Follows  control.Consequences
}

// An End is the result for a pod.
type End string

const (
	Moves   End = "Moves"   // the replacement is placed on Node
	Pending End = "Pending" // the replacement fits no node; Why has the reason
	Lost    End = "Lost"    // no controller recreates the pod; Why has the reason
	Remains End = "Remains" // the pod does not leave; Why or Hold has the reason
	Daemon  End = "Daemon"  // the pod belongs to a daemon set and stays
	Open    End = "Open"    // the forecast ends before the result
)

// Why a stateful set does not recreate a pod yet.
const (
	InOrder   = "its stateful set makes its pods one after the other, and one before it is not ready"
	Unstopped = "its stateful set recreates it when the old one has stopped, but its device is silent"
)

// A Fate is the forecast for one pod.
type Fate struct {
	Pod    *corev1.Pod // the pod before the action
	End    End
	Node   string // the node of its replacement
	Why    string
	Hold   *state.EvictionRefusal // the budget that blocks the pod: permanently if it remains, otherwise at first
	Silent bool                   // the node is not ready: the pod stays Terminating until the device is back
}

// A Budget is a disruption budget that blocks some of the pods.
type Budget struct {
	*policyv1.PodDisruptionBudget
	Count state.BudgetCount // its present counts
	Pods  int               // pods that it blocks at first
	Stuck int               // how many of these pods never leave
	Never bool              // the budget would block the pods even if all were healthy
}

// A Forecast is the expected result of an action.
type Forecast struct {
	Fates   []Fate
	Budgets []Budget
	Others  []*corev1.Pod // pods on other nodes that are preempted
	Many    bool          // more than MaxPods pods leave, so their new nodes are not known
	Short   bool          // the forecast reached its limit and ended early
}

// Drain forecasts a drain of the nodes with the given order.
func (r Rules) Drain(s state.Snapshot, nodes []string, order state.DrainOrder, now time.Time) (f Forecast) {
	order.Timeout = state.MaxDrainTimeout.String() // the forecast does not include durations
	p := newSimulation(r, s, nodes, now)
	leave := 0
	for _, pod := range p.startPods {
		if is, _ := drain.OutcomeOf(pod, order); is == drain.Leaves {
			leave++
		}
	}
	if leave > MaxPods {
		for _, pod := range p.startPods {
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
	for _, pod := range p.startPods {
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

// stuck counts the pods that a budget blocks permanently. Other pods only wait for a new healthy
// pod of their owner, so the result of the simulation decides.
func (b *Budget) stuck(fates []Fate) {
	for _, x := range fates {
		if x.End == Remains && x.Hold != nil && x.Hold.Budget == b.Name && x.Pod.Namespace == b.Namespace {
			b.Stuck++
		}
	}
	b.Never = b.Stuck > 0 && (b.Count.Desired >= b.Count.Expected || b.Count.Unknown != "")
}

// Delete forecasts the deletion of nodes. Budgets do not count, because the pods are removed with
// their nodes.
func (r Rules) Delete(s state.Snapshot, nodes []string, now time.Time) (f Forecast) {
	p := newSimulation(r, s, nodes, now)
	if f.Many = len(p.startPods) > MaxPods; f.Many {
		for _, pod := range p.startPods {
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
	p.over = func() bool {
		return !slices.ContainsFunc(p.startPods, func(pod *corev1.Pod) bool { return !p.gone(pod) })
	}
	p.run(0)
	for _, pod := range p.startPods {
		fate := Fate{Pod: pod}
		owner := metav1.GetControllerOfNoCopy(pod)
		switch {
		case state.Terminated(pod):
			continue
		case owner != nil && owner.Kind == "DaemonSet":
			fate.End, fate.Why = Lost, "its daemon set has one pod per node, and this node is gone"
		case !p.gone(pod):
			fate.End = Open
		default:
			p.replaced(&fate)
		}
		f.Fates = append(f.Fates, fate)
	}
	return p.finish(f)
}

// over is the end of a pod that has finished.
const over End = "over"

// stays tells whether an order leaves a pod on its node, and sets the reason.
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

// holds returns the reasons why pods are blocked after the first settling.
func (p *simulation) holds(order state.DrainOrder) map[types.UID]*state.EvictionRefusal {
	holds, now := map[types.UID]*state.EvictionRefusal{}, state.NewEvictionRefusals(p.s, p.now)
	if order.DisableEviction {
		return holds
	}
	for _, pod := range p.startPods {
		if is, _ := drain.OutcomeOf(pod, order); is == drain.Leaves && !p.gone(pod) {
			if h := now.For(pod); h != nil {
				holds[pod.UID] = h
			}
		}
	}
	return holds
}

// budgets returns the budgets that block pods, by namespace and name, with their present counts.
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

// finish adds the effects on other pods.
func (p *simulation) finish(f Forecast) Forecast {
	f.Short = p.short
	there := map[types.UID]bool{}
	for _, pod := range p.startPods {
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
