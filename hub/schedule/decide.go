// Package schedule decides which node runs each pending pod.
//
// It filters the nodes by what the pod must have, scores those that are left by
// what would be good, and binds the pod to the best; where no node will do it
// says in the pod's condition how many were refused for which reason, in
// Kubernetes' words, and looks again only when something that could help has
// changed. Whether a node is alive is none of its business: package lifecycle
// says that by taints. A pod that names its node itself passes it by.
package schedule

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"

	"flotilla.dev/hub/state"
)

// Name is the scheduler's name, in a pod's schedulerName and in its events.
const Name = corev1.DefaultSchedulerName

// A Decider decides where pending pods go.
type Decider struct{}

// everyPod is the subject that all waiting pods together are: in a large fleet what
// is put off is put off for all of them.
var everyPod = state.Subject{Key: state.Key{Kind: state.Pods}}

// A pass does no more than so much: what is left comes in the next, so that the hub
// hears its devices in between, whatever a thousand pods ask of a hundred thousand
// nodes.
const (
	maxLooks  = 250_000 // at a node for a class of pods
	maxPlaced = 1_000   // pods
)

// Touches says that a change concerns a pod that has not been tried as it is now, a node
// that may take, or refuse, other pods than before, or a namespace, whose labels select
// for affinities.
func (Decider) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		if !acceptsSamePods(old, next) {
			return []state.Subject{{Key: c.Key}}
		}
	case state.Pods:
		old, _ := c.Old.(*corev1.Pod)
		next, _ := c.New.(*corev1.Pod)
		return touchedByPod(c, old, next)
	case state.Claims:
		old, _ := c.Old.(*corev1.PersistentVolumeClaim)
		next, _ := c.New.(*corev1.PersistentVolumeClaim)
		if !sameClaim(old, next) {
			return []state.Subject{{Key: c.Key}}
		}
	case state.Namespaces, state.StorageClasses:
		return []state.Subject{{Key: c.Key}}
	}
	return nil
}

// Subjects returns one that stands for all.
func (Decider) Subjects(state.Snapshot) []state.Subject { return []state.Subject{everyPod} }

// Decide binds the pending pods that have become placeable, the most important
// first, and tells of the others why they wait.
func (Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan {
	news := newsOf(subjects)
	p := newPass(s, now)
	queue := p.queue(news)
	thrifty := s.Len(state.Nodes) > 200 || len(queue) > 100
	for _, pod := range queue {
		fresh := news.all || news.untried[state.KeyOf(pod)]
		switch {
		case (fresh || !thrifty) && (p.looks >= maxLooks || len(p.placed) >= maxPlaced):
			p.plan.Wake(state.KeyOf(pod), now.Add(time.Millisecond))
		case fresh || !thrifty:
			p.schedule(pod)
		case untried(pod): // its turn comes
		case linked(pod):
			p.plan.Wake(state.KeyOf(pod), p.retryAt())
		case !p.onChanged(pod, news.nodes):
			p.postponed = true
		}
	}
	if p.postponed {
		p.plan.WakeFor(everyPod, now.Truncate(explainInterval).Add(explainInterval))
	}
	return p.plan
}

// explainInterval is how often, in a large fleet or with many pods waiting, the sentences
// about why pods wait are brought up to date. Room that becomes free is used at once.
const explainInterval = 10 * time.Second

// retryAt is when a pod is tried again that may go where others are, or are not: to
// find that out costs a walk over all pods.
func (p *pass) retryAt() time.Time {
	every := time.Duration(1+p.s.Len(state.Pods)/10_000) * time.Second
	return p.now.Truncate(every).Add(every)
}

// A pass is one call of Decide; each pod sees the placements before it.
type pass struct {
	s         state.Snapshot
	now       time.Time
	plan      state.Plan
	postponed bool // some sentences are put off

	looks     int
	placed    []*corev1.Pod            // by this pass, in order
	infos     map[string]*info         // nodes that would do for some pod, as they are now
	classes   map[string]*class        // by equivalence key
	nominated map[string][]*corev1.Pod // waiting pods for which room is being made, by node
	siblings  map[types.UID]*siblings  // where the placed pods of a controller are
	reasons   []refusal                // see because
}

func newPass(s state.Snapshot, now time.Time) *pass {
	return &pass{s: s, now: now, infos: map[string]*info{}, classes: map[string]*class{}, siblings: map[types.UID]*siblings{}}
}

// news is what the subjects are, by what follows from them.
type news struct {
	all             bool
	untried         map[state.Key]bool // pods that have not been tried as they are now
	nodes           map[string]bool    // nodes that may take, or refuse, other pods now
	affinityChanged bool               // namespaces or claims changed: affinities may hold now, volumes be there
}

func newsOf(subjects []state.Subject) news {
	n := news{untried: map[state.Key]bool{}, nodes: map[string]bool{}}
	for _, q := range subjects {
		switch {
		case q == everyPod:
			n.all = true
		case q.Kind == state.Pods:
			n.untried[q.Key] = true
		case q.Kind == state.Nodes:
			n.nodes[q.Name] = true
		default:
			n.affinityChanged = true
		}
	}
	return n
}

func placed(p *corev1.Pod) bool {
	return p != nil && p.Spec.NodeName != "" && !state.Terminated(p)
}

// touchedByPod is Touches for a pod: itself, if it waits, and the nodes on which there is
// other room than before.
func touchedByPod(c state.Applied, old, next *corev1.Pod) (all []state.Subject) {
	node := func(name string) {
		all = append(all, state.About(state.Key{Kind: state.Nodes, Name: name}))
	}
	if next != nil && waits(next) && c.Change.Source != Name {
		all = append(all, state.About(c.Key))
	}
	if old != nil && old.Status.NominatedNodeName != "" &&
		(next == nil || !waits(next) || next.Status.NominatedNodeName != old.Status.NominatedNodeName) {
		node(old.Status.NominatedNodeName) // room was kept for it
	}
	was, is := placed(old), placed(next)
	if was && is && old.Spec.NodeName == next.Spec.NodeName && maps.Equal(old.Labels, next.Labels) &&
		(old.DeletionTimestamp == nil) == (next.DeletionTimestamp == nil) && old.Generation == next.Generation &&
		!state.Resizing(old) && !state.Resizing(next) {
		return all // it only reported how it is
	}
	if was {
		node(old.Spec.NodeName)
	}
	if is {
		node(next.Spec.NodeName)
	}
	return all
}

// acceptsSamePods tells whether a node takes the same pods as before. What it reports
// of itself every few minutes does not matter.
func acceptsSamePods(a, b *corev1.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Spec.Unschedulable == b.Spec.Unschedulable && maps.Equal(a.Labels, b.Labels) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, state.SameTaint) &&
		maps.EqualFunc(a.Status.Allocatable, b.Status.Allocatable, func(x, y quantity) bool { return x.Cmp(y) == 0 })
}

// waits tells whether it is for this scheduler to place the pod.
func waits(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !state.Terminated(p) &&
		len(p.Spec.SchedulingGates) == 0 &&
		(p.Spec.SchedulerName == "" || p.Spec.SchedulerName == Name)
}

// queue returns the pods to try, the most important first, then the one that has
// waited longest.
func (p *pass) queue(n news) (pods []*corev1.Pod) {
	if n.all || len(n.nodes) > 0 || n.affinityChanged {
		for pod := range p.s.PodsOn("") {
			if waits(pod) {
				pods = append(pods, pod)
			}
		}
	} else {
		for k := range n.untried {
			if pod := p.s.Pod(k.Namespace, k.Name); pod != nil && waits(pod) {
				pods = append(pods, pod)
			}
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(
			cmp.Compare(schedcorev1.PodPriority(b), schedcorev1.PodPriority(a)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
		)
	})
	return pods
}

// untried tells whether the pod has not been tried on every node yet.
func untried(p *corev1.Pod) bool {
	c := state.PodCondition(p, corev1.PodScheduled)
	return c == nil || c.Status != corev1.ConditionFalse || c.Reason == corev1.PodReasonSchedulingGated
}

// linked tells whether where a pod may go depends on where others are, or its volumes.
func linked(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return len(p.Spec.TopologySpreadConstraints) > 0 || state.HasClaims(p) ||
		a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil)
}

// schedule tries every node for a pod.
func (p *pass) schedule(pod *corev1.Pod) {
	t := p.try(pod)
	if t.refused != "" {
		p.refuse(pod, t.refused, "")
		return
	}
	if !t.searched {
		t.search()
	}
	if len(t.found) > 0 {
		p.bind(pod, t.best(t.found))
		return
	}
	message := t.tally.String()
	room := pod.Status.NominatedNodeName
	if !t.victimsLeaving() {
		room = p.preempt(t)
	}
	if room == "" {
		t.class.refused = message
	}
	p.refuse(pod, message, room)
}

// onChanged tries a pod, that no other node would take before, on the nodes that
// have changed.
func (p *pass) onChanged(pod *corev1.Pod, names map[string]bool) bool {
	t := p.try(pod)
	if t.refused != "" || t.stuck {
		return false
	}
	var fits []*candidate
	for _, name := range slices.Sorted(maps.Keys(names)) {
		node := p.s.Node(name)
		if node == nil || !t.wants(name) {
			continue
		}
		if n, why := t.against(node); len(why) == 0 {
			fits = append(fits, t.candidate(n))
		}
	}
	if len(fits) == 0 {
		t.class.stuck = true // and the others of its class with it
		return false
	}
	p.bind(pod, t.best(fits))
	return true
}

// bind places a pod on a node.
func (p *pass) bind(pod *corev1.Pod, node string) {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	pod.Status.NominatedNodeName = ""
	state.SetPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		ObservedGeneration: pod.Generation}, state.Ceil(p.now).Time)
	c := state.Put(pod, fmt.Sprintf("bind %s to %s", state.Display(pod), node)).Event("Scheduled")
	c.Message = fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
	p.do(c)
}

// refuse tells in a pod's condition why it waits, if that has changed. room is
// the node on which others make room for it.
func (p *pass) refuse(pod *corev1.Pod, message, room string) {
	c := state.PodCondition(pod, corev1.PodScheduled)
	told := c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
		c.Message == message
	if told && pod.Status.NominatedNodeName == room {
		return
	}
	pod = pod.DeepCopy()
	pod.Status.NominatedNodeName = room
	state.SetPodCondition(pod, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
		ObservedGeneration: pod.Generation,
	}, p.now)
	change := state.Put(pod, message)
	if told {
		change.Why = ""
	} else {
		change = change.Warning("FailedScheduling")
	}
	p.do(change)
}

// do adds a change to the plan and to what later pods see.
func (p *pass) do(c state.Change) {
	c.Source = Name
	p.plan.Do(c)
	p.recount(c)
	pod := c.Object.(*corev1.Pod)
	old := p.s.Pod(pod.Namespace, pod.Name)
	p.s, _ = state.Apply(p.s, []state.Change{c})
	if pod.Spec.NodeName != "" {
		delete(p.infos, pod.Spec.NodeName)
	}
	if c.Delete || pod.DeletionTimestamp != nil || old.Status.NominatedNodeName != pod.Status.NominatedNodeName {
		p.roomPromised(cmp.Or(pod.Spec.NodeName, pod.Status.NominatedNodeName, old.Status.NominatedNodeName))
	}
	if was := old.Status.NominatedNodeName; was != "" && was != cmp.Or(pod.Spec.NodeName, pod.Status.NominatedNodeName) {
		p.roomReleased()
	}
	if old.Spec.NodeName != pod.Spec.NodeName {
		p.placed = append(p.placed, pod)
	}
}

// roomPromised tells the classes that room is being made on a node, or not any more.
func (p *pass) roomPromised(node string) {
	p.nominated = nil
	if p.small() {
		clear(p.classes)
		return
	}
	n := p.s.Node(node)
	for key, k := range p.classes {
		if k.links != nil {
			delete(p.classes, key)
		} else if n != nil {
			k.recheck(n)
		}
	}
}

// roomReleased tells the classes that room which was kept on a node is anybody's again.
func (p *pass) roomReleased() {
	for _, k := range p.classes {
		if !k.partial {
			k.searched, k.refused = false, ""
		}
	}
}

// small tells whether the fleet is one in which every node is always looked at.
func (p *pass) small() bool { return p.s.Len(state.Nodes) <= 2*minCandidates }
