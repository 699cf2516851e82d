package preview

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
)

// A simulation is the copy of the fleet in which a forecast happens.
type simulation struct {
	settler   *control.Settler
	start     state.Snapshot
	s         state.Snapshot
	now       time.Time
	short     bool
	startPods []*corev1.Pod // pods on the drained or deleted nodes
	over      func() bool

	deviceQueue []types.UID // pods that devices have to start or stop, in order
	known       map[types.UID]state.Key
	left        map[types.UID]bool        // pods that are removed or being deleted
	order       []types.UID               // the same pods in the order in which they left
	created     []types.UID               // pods that the simulation created, in order
	by          map[types.UID]*corev1.Pod // set at the end by replacements
}

func newSimulation(r Rules, s state.Snapshot, nodes []string, now time.Time) *simulation {
	p := &simulation{settler: control.NewSettled(r.Follows, r.Deciders...), start: s, s: s, now: now,
		known: map[types.UID]state.Key{}, left: map[types.UID]bool{}}
	for _, name := range nodes {
		for pod := range s.PodsOn(name) {
			p.startPods = append(p.startPods, pod)
			if pod.DeletionTimestamp != nil {
				p.leaves(pod)
				p.queueForDevice(pod)
			}
		}
	}
	return p
}

func (p *simulation) leaves(pod *corev1.Pod) {
	if !p.left[pod.UID] {
		p.left[pod.UID] = true
		p.order = append(p.order, pod.UID)
	}
}

func (p *simulation) queueForDevice(pod *corev1.Pod) {
	p.known[pod.UID] = state.KeyOf(pod)
	p.deviceQueue = append(p.deviceQueue, pod.UID)
}

// do applies changes and settles their consequences.
func (p *simulation) do(changes []state.Change) {
	var done, made []state.Applied
	p.s, done = state.Apply(p.s, changes)
	p.observe(done)
	var settled bool
	p.s, made, settled = p.settler.Settle(p.s, done, p.now)
	p.short = p.short || !settled
	p.observe(made)
}

// observe notes the created pods, the pods that leave, and the work for devices.
func (p *simulation) observe(log []state.Applied) {
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
			p.created = append(p.created, pod.UID)
			p.known[pod.UID] = a.Key
		case pod.DeletionTimestamp != nil:
			p.leaves(pod)
		}
		if pod.Spec.NodeName != "" && (pod.DeletionTimestamp != nil || !running(pod) && !state.Terminated(pod)) {
			p.queueForDevice(pod)
		}
	}
}

func running(pod *corev1.Pod) bool {
	ready := state.PodCondition(pod, corev1.PodReady)
	return pod.Status.Phase == corev1.PodRunning && ready != nil && ready.Status == corev1.ConditionTrue
}

// run continues until the forecast is complete or nothing more can happen. held is how many budgets
// are counted each time.
func (p *simulation) run(held int) {
	work, rings := 0, 0
	quiet := p.now
	for step := 0; ; step++ {
		changes := p.runDevices()
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
			if rings++; wake.IsZero() || wake.Sub(quiet) > lookAhead || rings > maxAlarms {
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

// runDevices does the work of ready devices: it stops deleted pods and runs new ones.
func (p *simulation) runDevices() (changes []state.Change) {
	uids := p.deviceQueue
	p.deviceQueue = nil
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
		case pod.DeletionTimestamp != nil && !state.Terminated(pod): // a controller with a finalizer still counts the result
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

// done tells whether the forecast is complete: each pod that left has a replacement that the
// scheduler has tried.
func (p *simulation) done() bool {
	if !p.over() {
		return false
	}
	by := p.replacements()
	for _, pod := range p.startPods {
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
