package incident

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var theFleet = state.Subject{Key: state.Key{Kind: state.Sites}}

func aboutImage(image string) state.Subject {
	return state.Subject{Key: state.Key{Kind: state.Pods}, Part: partImage + image}
}

func aboutSite(name string) state.Subject {
	return state.About(state.Key{Kind: state.Sites, Name: name})
}

// Touches returns the subjects whose incidents a change may open, change or close.
func (Decider) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Pods:
		old, _ := c.Old.(*corev1.Pod)
		next, _ := c.New.(*corev1.Pod)
		return touchedByPod(old, next)
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		return touchedByNode(c.Key, old, next)
	case state.Sites:
		old, _ := c.Old.(*fleet.Site)
		next, _ := c.New.(*fleet.Site)
		if viewOfSite(old) != viewOfSite(next) {
			return []state.Subject{state.About(c.Key), theFleet}
		}
	case state.Namespaces:
		if c.Old != nil && c.New != nil && (c.Old.GetDeletionTimestamp() == nil) != (c.New.GetDeletionTimestamp() == nil) {
			return []state.Subject{state.About(c.Key)}
		}
	case state.Incidents:
		for _, o := range []state.Object{c.Old, c.New} {
			if i, ok := o.(*fleet.Incident); ok && diagnose.RuleOf(i.Cause).Family == diagnose.FamilyDark {
				return []state.Subject{theFleet} // the fleet's incident has counts of sites
			}
		}
		if i, ok := c.New.(*fleet.Incident); ok && i.State == fleet.IncidentClosed {
			return []state.Subject{state.About(c.Key)} // after the notification of its end, MostClosed applies to it
		}
		return nil
	}
	if !diagnose.IsWork(c.Key.Kind) && !isRollout(c.Key.Kind) {
		return nil
	}
	was, is, there := diagnose.WorkOf(c.Old), diagnose.WorkOf(c.New), c.Old != nil && c.New != nil
	stays := there && sameMaker(c.Old, c.New) && c.Old.GetUID() == c.New.GetUID()
	if was == is && stays {
		return nil
	}
	all := []state.Subject{state.About(c.Key)}
	if c.Old != nil && (c.New == nil || c.New.GetUID() != c.Old.GetUID()) {
		all = append(all, state.Subject{Key: c.Key, Part: partLeft, Was: c.Old.GetUID()})
	}
	if c.Old != nil && !stays { // after the removal the pod's owner cannot be found
		if ref := metav1.GetControllerOfNoCopy(c.Old); ref != nil && state.KindNamed(ref.Kind) != "" {
			all = append(all, state.About(state.Key{Kind: state.KindNamed(ref.Kind), Namespace: c.Key.Namespace,
				Name: ref.Name}))
		}
	}
	if was.Short != is.Short {
		all = append(all, state.Subject{Key: c.Key, Part: partShort}, theFleet)
	}
	return all
}

func touchedByPod(old, next *corev1.Pod) (all []state.Subject) {
	was, is := diagnose.PodItself(old), diagnose.PodItself(next)
	there := old != nil && next != nil
	adopted := there && !sameMaker(old, next)
	differs := was != is || is.Cause != "" &&
		(adopted || there && (old.Spec.NodeName != next.Spec.NodeName || state.Terminated(old) != state.Terminated(next)))
	for _, p := range []*corev1.Pod{old, next} {
		if p != nil && differs {
			all = append(all, state.About(controllerOf(p)), state.About(troubled(p)))
		}
		if f := diagnose.PodItself(p); f.Image != "" && differs {
			all = append(all, aboutImage(f.Image))
		}
		if p != nil && p.Spec.NodeName != "" && (!there || adopted || old.Spec.NodeName != next.Spec.NodeName ||
			(old.DeletionTimestamp == nil) != (next.DeletionTimestamp == nil) ||
			state.Terminated(old) != state.Terminated(next) || len(old.Spec.Tolerations) != len(next.Spec.Tolerations)) {
			all = append(all, aboutNode(p.Spec.NodeName, "", nil))
		}
	}
	if next != nil && !evicted(old) && evicted(next) {
		all = append(all, aboutNode(next.Spec.NodeName, partEvicted, true))
	}
	return all
}

// sameMaker tells whether two versions of an object have the same controller. If not, the object's
// incidents now belong to another workload.
func sameMaker(a, b metav1.Object) bool {
	x, y := metav1.GetControllerOfNoCopy(a), metav1.GetControllerOfNoCopy(b)
	return (x == nil) == (y == nil) && (x == nil || x.UID == y.UID)
}

func aboutNode(name, part string, was any) state.Subject {
	return state.Subject{Key: state.Key{Kind: state.Nodes, Name: name}, Part: part, Was: was}
}

// evicted tells whether a pod is being evicted because of its node.
func evicted(p *corev1.Pod) bool {
	if p == nil || p.DeletionTimestamp == nil {
		return false
	}
	c := state.PodCondition(p, corev1.DisruptionTarget)
	return c != nil && c.Status == corev1.ConditionTrue && c.Reason == "DeletionByTaintManager"
}

func touchedByNode(key state.Key, old, next *corev1.Node) (all []state.Subject) {
	if old != nil && next != nil && sameTrouble(old, next) {
		return nil
	}
	for _, n := range []*corev1.Node{old, next} {
		if n != nil {
			all = append(all, aboutSite(state.SiteOf(n)))
		}
	}
	if diagnose.Ready(old) != diagnose.Ready(next) || old == nil || next == nil || !maps.Equal(old.Labels, next.Labels) {
		all = append(all, state.Subject{Key: key, Part: partReady}, theFleet)
	}
	return all
}

// sameTrouble tells whether two versions of a node are the same for incidents.
func sameTrouble(a, b *corev1.Node) bool {
	if !maps.Equal(a.Labels, b.Labels) || len(a.Status.Conditions) != len(b.Status.Conditions) {
		return false
	}
	for i := range a.Status.Conditions {
		x, y := &a.Status.Conditions[i], &b.Status.Conditions[i]
		if x.Type != y.Type || x.Status != y.Status || x.Reason != y.Reason ||
			!x.LastTransitionTime.Equal(&y.LastTransitionTime) {
			return false
		}
	}
	s, t := state.NoExecuteOf(a), state.NoExecuteOf(b)
	return (s == nil) == (t == nil) && (s == nil || s.TimeAdded.Equal(t.TimeAdded)) &&
		state.HasOutage(b, state.OutageOf(a))
}

// viewOfSite returns the fields of a site on which incidents depend.
func viewOfSite(s *fleet.Site) (v struct {
	state       fleet.SiteState
	held, rate  string
	policy      fleet.DisruptionPolicy
	next, until time.Time
},
) {
	if s == nil {
		return v
	}
	v.state, v.held, v.rate, v.policy = s.Status.State, s.Status.Held, s.Status.EvictionRate, s.Spec.DisruptionPolicy
	if t := s.Status.NextEviction; t != nil {
		v.next = t.UTC()
	}
	if m := s.Spec.Maintenance; m != nil {
		v.until = m.Until.UTC()
	}
	return v
}
