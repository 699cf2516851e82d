// Package schedule decides which node runs each pending pod.
//
// It filters the nodes by the pod's requirements, scores the remaining ones, and binds the pod to
// the best. If no node fits, the pod's condition counts the reasons in Kubernetes' words, and the
// pod is tried again when a change could help. It does not judge whether a node is alive: package
// lifecycle adds taints for that. A pod that was created with a node name is not scheduled.
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

// A Decider places pending pods.
type Decider struct{}

// everyPod is the subject of all pending pods together. Postponed work uses it.
var everyPod = state.Subject{Key: state.Key{Kind: state.Pods}}

// The limits of one pass. The next pass continues, so that the hub handles devices' messages in
// between.
const (
	maxLooks  = 250_000 // checks of a node for a class of pods
	maxPlaced = 1_000   // placed pods
)

// Touches returns a pod that must be tried again, a node that may accept other pods than before, or
// a claim, class or namespace. Affinities select namespaces by their labels.
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

// Subjects returns the one subject of all pending pods.
func (Decider) Subjects(state.Snapshot) []state.Subject { return []state.Subject{everyPod} }

// Decide binds the pending pods that fit a node, the most important first, and says why the others
// wait.
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
		case untried(pod): // the queue has the pod, so it is tried later
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

// explainInterval is the interval at which messages about pending pods are updated in a large fleet
// or with a long queue. Free space is used without that delay.
const explainInterval = 10 * time.Second

// retryAt returns when a pod that depends on other pods is tried again. Such a try walks all pods.
func (p *pass) retryAt() time.Time {
	every := time.Duration(1+p.s.Len(state.Pods)/10_000) * time.Second
	return p.now.Truncate(every).Add(every)
}

// A pass is one call of Decide. Each pod sees the placements of the pods before it.
type pass struct {
	s         state.Snapshot
	now       time.Time
	plan      state.Plan
	postponed bool // some messages are postponed

	looks     int
	placed    []*corev1.Pod            // pods that this pass has placed, in order
	infos     map[string]*info         // usage of nodes that fit some pod
	classes   map[string]*class        // by equivalence key
	nominated map[string][]*corev1.Pod // pending pods for which preemption makes space, by node
	siblings  map[types.UID]*siblings  // where the placed pods of a controller are
	reasons   []refusal                // buffer of oneReason and missingResources
}

func newPass(s state.Snapshot, now time.Time) *pass {
	return &pass{s: s, now: now, infos: map[string]*info{}, classes: map[string]*class{},
		siblings: map[types.UID]*siblings{}}
}

// news is the subjects sorted by what they require.
type news struct {
	all             bool
	untried         map[state.Key]bool // pods that have not been tried since they changed
	nodes           map[string]bool    // nodes that may accept more pods now
	affinityChanged bool               // namespaces, claims or classes have changed
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

// touchedByPod is Touches for a pod: the pod itself if it is pending, and the nodes whose free
// space changes.
func touchedByPod(c state.Applied, old, next *corev1.Pod) (all []state.Subject) {
	node := func(name string) {
		all = append(all, state.About(state.Key{Kind: state.Nodes, Name: name}))
	}
	if next != nil && waits(next) && c.Change.Source != Name {
		all = append(all, state.About(c.Key))
	}
	if old != nil && old.Status.NominatedNodeName != "" &&
		(next == nil || !waits(next) || next.Status.NominatedNodeName != old.Status.NominatedNodeName) {
		node(old.Status.NominatedNodeName) // space on that node was reserved for the pod
	}
	was, is := placed(old), placed(next)
	if was && is && old.Spec.NodeName == next.Spec.NodeName && maps.Equal(old.Labels, next.Labels) &&
		(old.DeletionTimestamp == nil) == (next.DeletionTimestamp == nil) && old.Generation == next.Generation &&
		!state.Resizing(old) && !state.Resizing(next) {
		return all // only its reported status changed
	}
	if was {
		node(old.Spec.NodeName)
	}
	if is {
		node(next.Spec.NodeName)
	}
	return all
}

// acceptsSamePods tells whether two versions of a node accept the same pods. A device's periodic
// reports do not change that.
func acceptsSamePods(a, b *corev1.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Spec.Unschedulable == b.Spec.Unschedulable && maps.Equal(a.Labels, b.Labels) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, state.SameTaint) &&
		maps.EqualFunc(a.Status.Allocatable, b.Status.Allocatable, func(x, y quantity) bool { return x.Cmp(y) == 0 })
}

// waits tells whether a pod is pending and names this scheduler.
func waits(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !state.Terminated(p) &&
		len(p.Spec.SchedulingGates) == 0 &&
		(p.Spec.SchedulerName == "" || p.Spec.SchedulerName == Name)
}

// queue returns the pods to try, by priority, then the longest waiting first.
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

// linked tells whether the nodes that fit a pod depend on other pods or on its volumes.
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

// onChanged tries a pod that fitted no node on the nodes that have changed.
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
		t.class.stuck = true // the other pods of its class do not fit either
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

// refuse writes into a pod's condition why the pod waits, if that has changed. room is the node
// where preemption makes space for it.
func (p *pass) refuse(pod *corev1.Pod, message, room string) {
	c := state.PodCondition(pod, corev1.PodScheduled)
	unchanged := c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
		c.Message == message
	if unchanged && pod.Status.NominatedNodeName == room {
		return
	}
	pod = pod.DeepCopy()
	pod.Status.NominatedNodeName = room
	state.SetPodCondition(pod, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
		ObservedGeneration: pod.Generation,
	}, p.now)
	change := state.Put(pod, message)
	if unchanged {
		change.Why = ""
	} else {
		change = change.Warning("FailedScheduling")
	}
	p.do(change)
}

// do adds a change to the plan and to the snapshot that later pods see.
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

// roomPromised checks a node again for all classes, because the pods nominated to it have changed.
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

// roomReleased clears the results of all classes, because reserved space on a node has become free.
func (p *pass) roomReleased() {
	for _, k := range p.classes {
		if !k.partial {
			k.searched, k.refused = false, ""
		}
	}
}

// small tells whether the fleet is so small that every node is always checked.
func (p *pass) small() bool { return p.s.Len(state.Nodes) <= 2*minCandidates }
