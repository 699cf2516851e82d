package preview

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// gone tells whether a pod of the start is removed or being deleted.
func (p *simulation) gone(pod *corev1.Pod) bool {
	now := p.s.Pod(pod.Namespace, pod.Name)
	return now == nil || now.UID != pod.UID || now.DeletionTimestamp != nil || state.Terminated(now)
}

// replaceable tells whether a controller may recreate a pod on another node.
func (p *simulation) replaceable(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind != "DaemonSet" && p.s.ByUID(owner.UID) != nil
}

// replacements maps pods to their replacements. For a StatefulSet that is the pod of the same name,
// otherwise the next created pod, in the order in which the pods left.
func (p *simulation) replacements() map[types.UID]*corev1.Pod {
	by := map[types.UID]*corev1.Pod{}
	free := map[types.UID][]*corev1.Pod{}
	for _, uid := range p.created {
		k := p.known[uid]
		if pod := p.s.Pod(k.Namespace, k.Name); pod != nil && pod.UID == uid && pod.DeletionTimestamp == nil &&
			!state.Terminated(pod) {
			free[p.maker(pod)] = append(free[p.maker(pod)], pod)
		}
	}
	there := make(map[types.UID]*corev1.Pod, len(p.startPods))
	for _, pod := range p.startPods {
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

// maker returns the workload that creates pods like this one: its controller, or the controller's
// own controller.
func (p *simulation) maker(pod *corev1.Pod) types.UID {
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

// replaced sets the fate of a pod that has left.
func (p *simulation) replaced(f *Fate) {
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
		f.End, f.Why = Lost, "its owner wants no replacement"
	}
}
