package schedule

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"

	"flotilla.dev/hub/state"
)

// A WayKind is an action that removes an objection.
type WayKind string

// The kinds. The first four change the node, the others the pod's template. The comments name the
// fields of Way that say what to change.
const (
	Uncordon     WayKind = "Uncordon"
	SetLabel     WayKind = "SetLabel"     // Label's first value
	RemoveLabel  WayKind = "RemoveLabel"  // Label's key
	RemoveTaint  WayKind = "RemoveTaint"  // Taint
	MakeRoom     WayKind = "MakeRoom"     // Pods; delete them
	Tolerate     WayKind = "Tolerate"     // Taint
	DropSelector WayKind = "DropSelector" // Label; remove it from the node selector or affinity
	LowerRequest WayKind = "LowerRequest" // Resource, to at most Amount
	DropHostPort WayKind = "DropHostPort" // Port
	Soften       WayKind = "Soften"       // Key; make the constraint with it a preference
)

// A Way is one change that removes one objection of a node.
type Way struct {
	Kind     WayKind
	Label    corev1.NodeSelectorRequirement
	Taint    corev1.Taint
	Resource corev1.ResourceName
	Amount   quantity
	Port     state.HostPort
	Key      string
	Pods     []*corev1.Pod
}

// maxVictims is how many pods a Way may delete.
const maxVictims = 3

// findWays finds the ways for each objection of a candidate.
func (t try) findWays(c *Candidate) {
	for i := range c.Against {
		c.Against[i].Ways = t.ways(c.Node, &c.Against[i])
	}
}

func (t try) ways(n *corev1.Node, o *Objection) []Way {
	switch o.Reason {
	case NodeUnschedulable:
		return []Way{{Kind: Uncordon}}
	case UntoleratedTaint:
		return []Way{{Kind: Tolerate, Taint: o.Taint}, {Kind: RemoveTaint, Taint: o.Taint}}
	case NodeAffinity:
		return labelWays(o.Label)
	case TopologyLabel, TopologySpread, PodAffinity, PodAntiAffinity:
		return []Way{{Kind: Soften, Key: o.Key}}
	case NodePorts:
		ways := []Way{{Kind: DropHostPort, Port: o.Port}}
		if pods := t.holders(n, o.Port); len(pods) > 0 {
			ways = append(ways, Way{Kind: MakeRoom, Pods: pods})
		}
		return ways
	case TooManyPods:
		if missing := o.Want.Value() - o.Free.Value(); missing <= maxVictims {
			if pods := movable(t.s, n); int64(len(pods)) >= missing {
				return []Way{{Kind: MakeRoom, Pods: pods[:missing]}}
			}
		}
	case InsufficientResource:
		way := Way{Kind: LowerRequest, Resource: o.Resource}
		if o.Free.Sign() > 0 {
			way.Amount = o.Free.DeepCopy()
		}
		ways := []Way{way}
		if pods := victimsFor(t.s, n, o); len(pods) > 0 {
			ways = append(ways, Way{Kind: MakeRoom, Resource: o.Resource, Pods: pods})
		}
		return ways
	}
	return nil
}

// labelWays returns ways to label the node, unless the key is reserved, and to remove the
// requirement.
func labelWays(r corev1.NodeSelectorRequirement) (ways []Way) {
	if r.Key == "" {
		return nil
	}
	if !isReservedKey(r.Key) {
		switch r.Operator {
		case corev1.NodeSelectorOpIn:
			if len(r.Values) > 0 {
				ways = append(ways, Way{Kind: SetLabel, Label: r})
			}
		case corev1.NodeSelectorOpExists:
			ways = append(ways, Way{Kind: SetLabel, Label: r})
		case corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpDoesNotExist:
			ways = append(ways, Way{Kind: RemoveLabel, Label: r})
		}
	}
	return append(ways, Way{Kind: DropSelector, Label: r})
}

// movable returns the pods of a node that would not return to it after their deletion, the least
// important first. It skips pods of DaemonSets and terminating pods.
func movable(s state.Snapshot, n *corev1.Node) (pods []*corev1.Pod) {
	for p := range s.PodsOn(n.Name) {
		if ref := metav1.GetControllerOfNoCopy(p); !state.Terminated(p) && p.DeletionTimestamp == nil &&
			(ref == nil || ref.Kind != "DaemonSet") {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(schedcorev1.PodPriority(a), schedcorev1.PodPriority(b)),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return pods
}

// victimsFor returns pods whose deletion frees the missing amount: the smallest single pod that is
// enough, otherwise the largest pods together. It returns none if too many would be needed.
func victimsFor(s state.Snapshot, n *corev1.Node, o *Objection) []*corev1.Pod {
	if o.None {
		return nil
	}
	missing := o.Want.DeepCopy()
	missing.Sub(o.Free)
	type taker struct {
		*corev1.Pod
		has quantity
	}
	var all []taker
	for _, p := range movable(s, n) {
		if has := state.Requests(p)[o.Resource]; has.Sign() > 0 {
			all = append(all, taker{p, has})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].has.Cmp(all[j].has) < 0 })
	for _, p := range all {
		if p.has.Cmp(missing) >= 0 {
			return []*corev1.Pod{p.Pod}
		}
	}
	var pods []*corev1.Pod
	sum := resource.Quantity{}
	for i := len(all) - 1; i >= 0 && len(pods) < maxVictims; i-- {
		pods = append(pods, all[i].Pod)
		if sum.Add(all[i].has); sum.Cmp(missing) >= 0 {
			return pods
		}
	}
	return nil
}

// holders returns the pods that use a port, none if a pod that cannot be removed also uses it.
func (t try) holders(n *corev1.Node, port state.HostPort) (pods []*corev1.Pod) {
	want := []state.HostPort{port}
	for _, p := range movable(t.s, n) {
		if clash(state.HostPorts(p), want) {
			pods = append(pods, p)
		}
	}
	after := &info{node: n}
	for p := range t.s.PodsOn(n.Name) {
		if !slices.Contains(pods, p) {
			after.usage.Add(p)
		}
	}
	if len(pods) > maxVictims || clash(t.withNominated(after).Ports, want) {
		return nil
	}
	return pods
}
