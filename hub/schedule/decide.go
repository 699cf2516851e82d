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
	"encoding/json"
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

// everyPod is the subject of the alarm for what is put off in a large fleet.
var everyPod = state.Key{Kind: state.Pods}

// Decide binds the pending pods that have become placeable, the most important
// first, and tells of the others why they wait.
func (Decider) Decide(s state.Snapshot, now time.Time) state.Plan {
	news := notice(s)
	if news.none() {
		return state.Plan{}
	}
	p := &pass{s: s, now: now, infos: map[string]*info{}, like: map[types.UID]*like{}, refused: map[string]string{}}
	queue := p.queue(news)
	thrifty := s.Len(state.Nodes) > 200 || len(queue) > 100
	for _, pod := range queue {
		switch {
		case news.all || news.fresh[state.KeyOf(pod)] || !thrifty || linked(pod):
			p.schedule(pod)
		case p.onChanged(pod, news.nodes):
		default:
			p.put = true
		}
	}
	if p.put {
		p.plan.Wake(everyPod, now.Truncate(grid).Add(grid))
	}
	return p.plan
}

// grid is how often, in a large fleet or with many pods waiting, the sentences
// about why pods wait are brought up to date. Room that becomes free is used at once.
const grid = 10 * time.Second

// A pass is one call of Decide; each pod sees the placements before it.
type pass struct {
	s    state.Snapshot
	now  time.Time
	plan state.Plan
	put  bool // some sentences are put off

	infos     map[string]*info
	refused   map[string]string        // why pods like this one are refused, until something is placed
	repelling []*corev1.Pod            // placed pods with required anti-affinity, nil: not looked up yet
	nominated map[string][]*corev1.Pod // waiting pods for which room is being made, by node
	like      map[types.UID]*like      // where the placed pods of a controller are
	lowest    *int32                   // the lowest priority of any placed pod, nil: not looked up yet
}

// news is what has changed since the last look.
type news struct {
	all   bool
	fresh map[state.Key]bool // pods that have not been tried as they are now
	nodes map[string]bool    // nodes that may take, or refuse, other pods now
	stir  bool               // namespaces changed: affinities may hold now
}

func (n news) none() bool { return !n.all && len(n.fresh) == 0 && len(n.nodes) == 0 && !n.stir }

func notice(s state.Snapshot) news {
	n := news{all: s.Look.All || slices.Contains(s.Look.Due, everyPod), fresh: map[state.Key]bool{}, nodes: map[string]bool{}}
	for _, a := range s.Look.Recent {
		switch a.Key.Kind {
		case state.Nodes:
			old, _ := a.Old.(*corev1.Node)
			now, _ := a.New.(*corev1.Node)
			if !sameOffer(old, now) {
				n.nodes[a.Key.Name] = true
			}
		case state.Pods:
			old, _ := a.Old.(*corev1.Pod)
			now, _ := a.New.(*corev1.Pod)
			n.pod(a, old, now)
		case state.Namespaces: // its labels select for affinities
			n.stir = true
		}
	}
	return n
}

func (n news) placed(p *corev1.Pod) bool {
	return p != nil && p.Spec.NodeName != "" && !state.Terminated(p)
}

func (n news) pod(a state.Applied, old, now *corev1.Pod) {
	if now != nil && waits(now) && a.Change.Source != Name {
		n.fresh[a.Key] = true
	}
	if old != nil && old.Status.NominatedNodeName != "" && (now == nil || !waits(now) || now.Status.NominatedNodeName != old.Status.NominatedNodeName) {
		n.nodes[old.Status.NominatedNodeName] = true // room was kept for it
	}
	was, is := n.placed(old), n.placed(now)
	if was && is && old.Spec.NodeName == now.Spec.NodeName && maps.Equal(old.Labels, now.Labels) &&
		(old.DeletionTimestamp == nil) == (now.DeletionTimestamp == nil) && old.Generation == now.Generation {
		return // it only reported how it is
	}
	if was {
		n.nodes[old.Spec.NodeName] = true
	}
	if is {
		n.nodes[now.Spec.NodeName] = true
	}
}

// sameOffer tells whether a node takes the same pods as before. What it reports
// of itself every few minutes does not matter.
func sameOffer(a, b *corev1.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Spec.Unschedulable == b.Spec.Unschedulable && maps.Equal(a.Labels, b.Labels) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool {
			return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
		}) &&
		maps.EqualFunc(a.Status.Allocatable, b.Status.Allocatable, func(x, y quantity) bool { return x.Cmp(y) == 0 })
}

// waits tells whether it is for this scheduler to place the pod.
func waits(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !state.Terminated(p) && len(p.Spec.SchedulingGates) == 0 &&
		(p.Spec.SchedulerName == "" || p.Spec.SchedulerName == Name)
}

// queue returns the pods to try, the most important first, then the one that has
// waited longest.
func (p *pass) queue(n news) (pods []*corev1.Pod) {
	if n.all || len(n.nodes) > 0 || n.stir {
		for pod := range p.s.PodsOn("") {
			if waits(pod) {
				pods = append(pods, pod)
			}
		}
	} else {
		for k := range n.fresh {
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

// linked tells whether where a pod may go depends on where others are.
func linked(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return len(p.Spec.TopologySpreadConstraints) > 0 || a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil)
}

// schedule tries every node for a pod.
func (p *pass) schedule(pod *corev1.Pod) {
	kind := likeness(pod)
	if message, ok := p.refused[kind]; ok && pod.Status.NominatedNodeName == "" {
		p.refuse(pod, message, "")
		return
	}
	t := p.try(pod)
	fits, tally := t.search()
	if len(fits) > 0 {
		p.bind(pod, t.best(fits))
		return
	}
	message := tally.String()
	room := p.preempt(t, tally)
	if room == "" && pod.Status.NominatedNodeName == "" {
		p.refused[kind] = message
	}
	p.refuse(pod, message, room)
}

// onChanged tries a pod, that no other node would take before, on the nodes that
// have changed.
func (p *pass) onChanged(pod *corev1.Pod, names map[string]bool) bool {
	t := p.try(pod)
	var fits []*info
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if n := p.info(p.s.Node(name)); n != nil && t.wants(name) && len(t.against(n)) == 0 {
			fits = append(fits, n)
		}
	}
	if len(fits) == 0 {
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
	state.SetPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation}, p.now)
	c := state.Put(pod, fmt.Sprintf("bind %s to %s", state.Display(pod), node)).Event("Scheduled")
	c.Message = fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
	p.do(c)
}

// refuse tells in a pod's condition why it waits, if that has changed. room is
// the node on which others make room for it.
func (p *pass) refuse(pod *corev1.Pod, message, room string) {
	if room == "" && pod.Status.NominatedNodeName != "" && p.leaving(pod) {
		room = pod.Status.NominatedNodeName
	}
	c := state.PodCondition(pod, corev1.PodScheduled)
	told := c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && c.Message == message
	if told && pod.Status.NominatedNodeName == room {
		return
	}
	pod = pod.DeepCopy()
	pod.Status.NominatedNodeName = room
	state.SetPodCondition(pod, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message, ObservedGeneration: pod.Generation,
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
	p.s, _ = state.Apply(p.s, []state.Change{c})
	pod := c.Object.(*corev1.Pod)
	if pod.Spec.NodeName != "" {
		delete(p.infos, pod.Spec.NodeName)
		clear(p.refused)
		if !c.Delete && p.repelling != nil && repels(pod) {
			p.repelling = append(p.repelling, pod)
		}
	}
	if p.nominated != nil {
		p.nominated = nil
	}
}

// likeness is the same for pods that every node treats alike, such as those of
// one ReplicaSet.
func likeness(pod *corev1.Pod) string {
	raw, _ := json.Marshal(struct {
		Namespace string
		Labels    map[string]string
		Selector  map[string]string
		Affinity  *corev1.Affinity
		Tolerate  []corev1.Toleration
		Spread    []corev1.TopologySpreadConstraint
		Priority  int32
		Policy    *corev1.PreemptionPolicy
		Requests  corev1.ResourceList
		Ports     []state.HostPort
	}{
		pod.Namespace, pod.Labels, pod.Spec.NodeSelector, pod.Spec.Affinity, pod.Spec.Tolerations, pod.Spec.TopologySpreadConstraints,
		schedcorev1.PodPriority(pod), pod.Spec.PreemptionPolicy, state.Requests(pod), state.HostPorts(pod),
	})
	return string(raw)
}
