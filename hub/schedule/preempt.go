package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"

	"flotilla.dev/hub/state"
)

// maxOffers is how many nodes are compared. It is Kubernetes' minimum number of candidates.
const maxOffers = 100

// An offer is a node with the pods that would be preempted there.
type offer struct {
	node       string
	victims    []*corev1.Pod // the most important first
	violations int           // disruption budgets that would be violated
}

// preempt makes space for a pod that fits no node: on one node it deletes the fewest and least
// important pods of lower priority. It returns the node, "" if preemption does not help.
func (p *pass) preempt(t try) string {
	if t.pod.Spec.PreemptionPolicy != nil && *t.pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return ""
	}
	if lowest, ok := p.s.LowestPriority(); !ok || t.priority <= lowest {
		return ""
	}
	var best *offer
	offers := 0
	for _, name := range t.tally.preemptable {
		p.looks++
		o := p.offerOf(t, name)
		if o == nil {
			continue
		}
		if best == nil || o.compare(best) < 0 {
			best = o
		}
		if offers++; offers == maxOffers {
			break
		}
	}
	if best == nil {
		return ""
	}
	for _, v := range best.victims {
		c, ok := state.Evict(v, p.now, "PreemptionByScheduler",
			fmt.Sprintf("Pod %s was preempted by pod %s on node %s, whose priority is %d", state.Display(v),
				state.Display(t.pod), best.node, t.priority))
		if ok {
			p.do(c.Event("Preempted"))
		}
	}
	return best.node
}

// victimsLeaving tells whether enough pods of lower priority are already leaving the nominated
// node, so that no other pod has to be preempted. It is false if the node refuses the pod for
// another reason, such as silence, or if another pod took the space.
func (t try) victimsLeaving() bool {
	room := t.pod.Status.NominatedNodeName
	if room == "" || !slices.Contains(t.tally.preemptable, room) {
		return false
	}
	var leave []*corev1.Pod
	for o := range t.s.PodsOn(room) {
		if o.DeletionTimestamp != nil && !state.Terminated(o) && schedcorev1.PodPriority(o) < t.priority {
			leave = append(leave, o)
		}
	}
	return len(leave) > 0 && t.fitsWithout(t, t.s.Node(room), leave)
}

// offerOf finds the pods that must leave a node. It first removes all pods of lower priority, then
// returns as many as possible, the most important first.
func (p *pass) offerOf(t try, name string) *offer {
	node := p.s.Node(name)
	var lower []*corev1.Pod
	for pod := range p.s.PodsOn(name) {
		if schedcorev1.PodPriority(pod) < t.priority && !state.Terminated(pod) && pod.DeletionTimestamp == nil {
			lower = append(lower, pod)
		}
	}
	if len(lower) == 0 || !p.fitsWithout(t, node, lower) {
		return nil
	}
	// Return the pods whose budgets would be violated first, then the most important.
	slices.SortFunc(lower, byImportance)
	broken := p.violatingBudgets(lower)
	slices.SortStableFunc(lower, func(a, b *corev1.Pod) int {
		switch {
		case broken[a] == broken[b]:
			return 0
		case broken[a]:
			return -1
		}
		return 1
	})
	victims := slices.Clone(lower)
	for _, pod := range lower {
		fewer := slices.DeleteFunc(slices.Clone(victims), func(v *corev1.Pod) bool { return v == pod })
		if p.fitsWithout(t, node, fewer) {
			victims = fewer
		}
	}
	slices.SortFunc(victims, byImportance)
	o := &offer{node: name, victims: victims}
	for _, v := range victims {
		if broken[v] {
			o.violations++
		}
	}
	return o
}

// byImportance sorts by priority, then the earlier placed pod first. It ignores the device's start
// time, because the device's clock may be wrong.
func byImportance(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(schedcorev1.PodPriority(b), schedcorev1.PodPriority(a)),
		state.BoundAt(a).Compare(state.BoundAt(b)), strings.Compare(a.Name, b.Name))
}

// fitsWithout tells whether the pod fits the node after the victims have left.
func (p *pass) fitsWithout(t try, node *corev1.Node, victims []*corev1.Pod) bool {
	if t.claims.against(node.Name, victims...) != Fits {
		return false
	}
	after := &info{node: node}
	for pod := range p.s.PodsOn(node.Name) {
		if !slices.Contains(victims, pod) {
			after.usage.Add(pod)
		}
	}
	for _, v := range victims {
		t.links.count(t.class, v, node, -1)
	}
	fits := len(t.blockedByPods(after)) == 0
	for _, v := range victims {
		t.links.count(t.class, v, node, 1)
	}
	return fits
}

// violatingBudgets returns the pods whose eviction, after the pods before them, would violate a
// PodDisruptionBudget.
func (p *pass) violatingBudgets(pods []*corev1.Pod) map[*corev1.Pod]bool {
	broken, left := map[*corev1.Pod]bool{}, map[types.UID]int32{}
	for _, v := range pods {
		for _, b := range state.BudgetsOf(p.s, v) {
			if _, ok := left[b.UID]; !ok {
				left[b.UID] = b.Status.DisruptionsAllowed
			}
			left[b.UID]--
			broken[v] = broken[v] || left[b.UID] < 0
		}
	}
	return broken
}

// compare orders offers by Kubernetes' rule: fewest budget violations; lowest priority of the most
// important victim; lowest sum of priorities; fewest victims; latest start of the most important
// victims; then by name.
func (o *offer) compare(b *offer) int {
	sum := func(o *offer) (n int64) {
		for _, v := range o.victims {
			n += int64(schedcorev1.PodPriority(v)) + math.MaxInt32 + 1
		}
		return n
	}
	return cmp.Or(
		cmp.Compare(o.violations, b.violations),
		cmp.Compare(schedcorev1.PodPriority(o.victims[0]), schedcorev1.PodPriority(b.victims[0])),
		cmp.Compare(sum(o), sum(b)),
		cmp.Compare(len(o.victims), len(b.victims)),
		state.BoundAt(b.victims[0]).Compare(state.BoundAt(o.victims[0])),
		strings.Compare(o.node, b.node),
	)
}
