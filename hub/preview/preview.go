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
	maxSteps = 300             // settlings of one forecast
	maxWork  = 150_000         // pods over which budgets are counted
	ahead    = 5 * time.Minute // how far to what is due, after the last that a device did
	ringing  = 30              // how often, after that
)

// Rules are what decides here: of the hub's deciders those that drain, make, place
// and hold volumes. Nobody falls silent in a forecast, so those that judge nodes are
// not among them.
type Rules struct {
	Deciders []control.Decider
	Follows  control.Follows
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
	Hold   *state.Hold // what keeps it back: for ever where it remains, else at first
	Silent bool        // its node is not ready: until the device is back it stays Terminating
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
		if is, _ := drain.Of(pod, order); is == drain.Leaves {
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
				fate.End, fate.Hold = Remains, state.HoldOn(p.s, now, p.now)
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
	is, why := drain.Of(f.Pod, order)
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

// A play is the fleet of a forecast.
type play struct {
	settler *control.Settler
	start   state.Snapshot
	s       state.Snapshot
	now     time.Time
	short   bool
	there   []*corev1.Pod // on the nodes it is about
	over    func() bool

	obeys []types.UID // what devices have to do next, in order
	known map[types.UID]state.Key
	left  map[types.UID]bool        // have gone, or are on their way
	order []types.UID               // in which they left
	born  []types.UID               // pods that the play made, in order
	by    map[types.UID]*corev1.Pod // once it is over: see replacements
}

func newPlay(r Rules, s state.Snapshot, nodes []string, now time.Time) *play {
	p := &play{settler: control.NewRested(r.Follows, r.Deciders...), start: s, s: s, now: now, known: map[types.UID]state.Key{}, left: map[types.UID]bool{}}
	for _, name := range nodes {
		for pod := range s.PodsOn(name) {
			p.there = append(p.there, pod)
			if pod.DeletionTimestamp != nil {
				p.leaves(pod)
				p.obey(pod)
			}
		}
	}
	return p
}

func (p *play) leaves(pod *corev1.Pod) {
	if !p.left[pod.UID] {
		p.left[pod.UID] = true
		p.order = append(p.order, pod.UID)
	}
}

func (p *play) obey(pod *corev1.Pod) {
	p.known[pod.UID] = state.KeyOf(pod)
	p.obeys = append(p.obeys, pod.UID)
}

// do makes changes, and settles what follows.
func (p *play) do(changes []state.Change) {
	var done, made []state.Applied
	p.s, done = state.Apply(p.s, changes)
	p.see(done)
	var settled bool
	p.s, made, settled = p.settler.Settle(p.s, done, p.now)
	p.short = p.short || !settled
	p.see(made)
}

// see notes which pods came, which leave, and what devices have to do about them.
func (p *play) see(log []state.Applied) {
	for _, a := range log {
		if a.Key.Kind != state.Pods {
			continue
		}
		old, _ := a.Old.(*corev1.Pod)
		pod, _ := a.New.(*corev1.Pod)
		switch {
		case pod == nil:
			p.leaves(old)
			continue
		case old == nil:
			p.born = append(p.born, pod.UID)
			p.known[pod.UID] = a.Key
		case pod.DeletionTimestamp != nil:
			p.leaves(pod)
		}
		if pod.Spec.NodeName != "" && (pod.DeletionTimestamp != nil || !running(pod) && !state.Terminated(pod)) {
			p.obey(pod)
		}
	}
}

func running(pod *corev1.Pod) bool {
	ready := state.PodCondition(pod, corev1.PodReady)
	return pod.Status.Phase == corev1.PodRunning && ready != nil && ready.Status == corev1.ConditionTrue
}

// run goes on until all is over, or nothing more is to be expected. held is how many
// budgets are counted each time.
func (p *play) run(held int) {
	work, rings := 0, 0
	quiet := p.now
	for step := 0; ; step++ {
		changes := p.obeyed()
		if len(changes) == 0 && p.done() {
			return
		}
		if work += held * p.s.Len(state.Pods); step == maxSteps || work > maxWork {
			p.short = true
			return
		}
		next := p.now.Add(time.Second)
		if len(changes) > 0 {
			quiet, rings = next, 0
		} else {
			wake := p.settler.Wake()
			if rings++; wake.IsZero() || wake.Sub(quiet) > ahead || rings > ringing {
				return
			}
			if wake.After(p.now) {
				next = wake
			}
		}
		p.now = next
		p.do(changes)
	}
}

// obeyed is what devices that are ready do: they stop what is to stop, and run what is new.
func (p *play) obeyed() (changes []state.Change) {
	uids := p.obeys
	p.obeys = nil
	for _, uid := range uids {
		k := p.known[uid]
		pod := p.s.Pod(k.Namespace, k.Name)
		if pod == nil || pod.UID != uid {
			continue
		}
		n := p.s.Node(pod.Spec.NodeName)
		if n == nil || state.ReadyOf(n) != corev1.ConditionTrue {
			continue
		}
		switch {
		case pod.DeletionTimestamp != nil && len(pod.Finalizers) == 0:
			changes = append(changes, state.Remove(pod, ""))
		case pod.DeletionTimestamp != nil && !state.Terminated(pod): // who holds it counts how it ended
			pod = pod.DeepCopy()
			pod.Status.Phase = corev1.PodFailed
			changes = append(changes, state.Put(pod, ""))
		case pod.DeletionTimestamp == nil && !running(pod) && !state.Terminated(pod):
			pod = pod.DeepCopy()
			pod.Status.Phase = corev1.PodRunning
			for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
				state.SetPodCondition(pod, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue}, p.now)
			}
			changes = append(changes, state.Put(pod, ""))
		}
	}
	return changes
}

// done tells whether all that is asked is known: what has left has another in its place,
// for which a node was looked for.
func (p *play) done() bool {
	if !p.over() {
		return false
	}
	by := p.replacements()
	for _, pod := range p.there {
		if !p.left[pod.UID] || !p.replaceable(pod) {
			continue
		}
		next := by[pod.UID]
		if next == nil || next.Spec.NodeName == "" && state.PodCondition(next, corev1.PodScheduled) == nil {
			return false
		}
	}
	return true
}

// gone tells whether a pod that was there is gone, or on its way.
func (p *play) gone(pod *corev1.Pod) bool {
	now := p.s.Pod(pod.Namespace, pod.Name)
	return now == nil || now.UID != pod.UID || now.DeletionTimestamp != nil || state.Terminated(now)
}

// replaceable tells whether somebody may make a pod again elsewhere.
func (p *play) replaceable(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind != "DaemonSet" && p.s.ByUID(owner.UID) != nil
}

// replacements are the pods that took the place of others, by those: of a StatefulSet
// the one of its name, of others the next that was made, in the order in which they left.
func (p *play) replacements() map[types.UID]*corev1.Pod {
	by := map[types.UID]*corev1.Pod{}
	free := map[types.UID][]*corev1.Pod{}
	for _, uid := range p.born {
		k := p.known[uid]
		if pod := p.s.Pod(k.Namespace, k.Name); pod != nil && pod.UID == uid && pod.DeletionTimestamp == nil && !state.Terminated(pod) {
			free[p.maker(pod)] = append(free[p.maker(pod)], pod)
		}
	}
	there := make(map[types.UID]*corev1.Pod, len(p.there))
	for _, pod := range p.there {
		there[pod.UID] = pod
	}
	for _, named := range []bool{true, false} {
		for _, uid := range p.order {
			pod := there[uid]
			if pod == nil || by[uid] != nil {
				continue
			}
			maker := p.maker(pod)
			list := free[maker]
			i := 0
			if named {
				i = slices.IndexFunc(list, func(next *corev1.Pod) bool { return next.Name == pod.Name })
			}
			if maker == "" || i < 0 || i >= len(list) {
				continue
			}
			by[uid] = list[i]
			free[maker] = slices.Delete(list, i, i+1)
		}
	}
	return by
}

// maker is who makes pods like this one: its controller, or the one above it.
func (p *play) maker(pod *corev1.Pod) types.UID {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return ""
	}
	o := p.s.ByUID(owner.UID)
	if o == nil {
		if o = p.start.ByUID(owner.UID); o == nil {
			return owner.UID
		}
	}
	if up := metav1.GetControllerOfNoCopy(o); up != nil {
		return up.UID
	}
	return owner.UID
}

// replaced tells what takes the place of a pod that has gone.
func (p *play) replaced(f *Fate) {
	if p.by == nil {
		p.by = p.replacements()
	}
	next := p.by[f.Pod.UID]
	switch owner := metav1.GetControllerOfNoCopy(f.Pod); {
	case next != nil && next.Spec.NodeName != "":
		f.End, f.Node = Moves, next.Spec.NodeName
	case next != nil:
		f.End = Pending
		if c := state.PodCondition(next, corev1.PodScheduled); c != nil {
			f.Why = c.Message
		}
	case owner == nil:
		f.End, f.Why = Lost, "it has no owner"
	case !p.replaceable(f.Pod):
		f.End, f.Why = Lost, "its owner is gone"
	case p.short:
		f.End = Open
	case owner.Kind == "StatefulSet":
		f.End, f.Why = Pending, InOrder
		if old := p.s.Pod(f.Pod.Namespace, f.Pod.Name); old != nil && old.UID == f.Pod.UID {
			f.Why = Unstopped
		}
	case !p.over():
		f.End = Open
	default:
		f.End, f.Why = Lost, "its owner wants no other"
	}
}

// holds are what keeps pods back after the first settling.
func (p *play) holds(order state.DrainOrder) map[types.UID]*state.Hold {
	holds, now := map[types.UID]*state.Hold{}, state.NewHolds(p.s, p.now)
	if order.DisableEviction {
		return holds
	}
	for _, pod := range p.there {
		if is, _ := drain.Of(pod, order); is == drain.Leaves && !p.gone(pod) {
			if h := now.On(pod); h != nil {
				holds[pod.UID] = h
			}
		}
	}
	return holds
}

// budgets are those that keep pods back, by namespace and name, with what they say now.
func budgets(s state.Snapshot, holds map[types.UID]*state.Hold, now time.Time) (all []Budget) {
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
func (p *play) finish(f Forecast) Forecast {
	f.Short = p.short
	there := map[types.UID]bool{}
	for _, pod := range p.there {
		there[pod.UID] = true
	}
	for _, uid := range p.order {
		if pod, ok := p.start.ByUID(uid).(*corev1.Pod); ok && !there[uid] && pod.DeletionTimestamp == nil && !state.Terminated(pod) {
			f.Others = append(f.Others, pod)
		}
	}
	return f
}
