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

// maxOffers is how many nodes are weighed against each other: Kubernetes' least
// number of candidates.
const maxOffers = 100

// An offer is a node and the pods that would have to leave it.
type offer struct {
	node       string
	victims    []*corev1.Pod // the most important first
	violations int           // budgets that would be overdrawn
}

// preempt makes room for a pod that no node takes as it is: the pods of lower
// priority on one node are asked to leave, as few and as low as will do. It
// returns the node, "" if that would not help.
func (p *pass) preempt(t try) string {
	if t.pod.Spec.PreemptionPolicy != nil && *t.pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return ""
	}
	if lowest, ok := p.s.LowestPriority(); !ok || t.priority <= lowest {
		return ""
	}
	var best *offer
	offers := 0
	for _, name := range t.tally.curable {
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

// victimsLeaving tells whether pods of lower priority are on their way out of the node that the
// pod was promised, and leave it room enough: then nobody else has to go. One that would
// refuse the pod without them too, such as a silent one, on which they may never end, or
// one whose room another has taken, keeps no promise.
func (t try) victimsLeaving() bool {
	room := t.pod.Status.NominatedNodeName
	if room == "" || !slices.Contains(t.tally.curable, room) {
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

// offerOf finds the pods that would have to leave the node: all lower ones at
// first, then as many as possible may stay after all, the most important first.
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
	// Those stay first whose budgets would be overdrawn, then the most important.
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

// byImportance sorts the pod of the highest priority first, of two the one that was placed
// earlier: when it began to run its device says, whose clock decides nothing.
func byImportance(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(schedcorev1.PodPriority(b), schedcorev1.PodPriority(a)),
		state.BoundAt(a).Compare(state.BoundAt(b)), strings.Compare(a.Name, b.Name))
}

// fitsWithout tells whether the node would take the pod once the victims are gone.
func (p *pass) fitsWithout(t try, node *corev1.Node, victims []*corev1.Pod) bool {
	if t.claims.against(node.Name, victims...) != Fits {
		return false
	}
	then := &info{node: node}
	for pod := range p.s.PodsOn(node.Name) {
		if !slices.Contains(victims, pod) {
			then.usage.Add(pod)
		}
	}
	for _, v := range victims {
		t.links.count(t.class, v, node, -1)
	}
	fits := len(t.blockedByPods(then)) == 0
	for _, v := range victims {
		t.links.count(t.class, v, node, 1)
	}
	return fits
}

// violatingBudgets returns those of the pods that a PodDisruptionBudget does not allow to
// leave, if those before them do.
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

// compare orders offers by Kubernetes' rule: fewest overdrawn budgets, lowest
// most important victim, least priority in sum, fewest victims, the most
// important ones started last; then by name.
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
