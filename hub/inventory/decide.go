package inventory

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// TaintShutdown is Kubernetes' NoSchedule taint of a node whose machine is shut down.
const TaintShutdown = "node.cloudprovider.kubernetes.io/shutdown"

// Decide returns the changes that follow from a list. startup is the hub's startup grace period,
// which a site can override. A silent node stays until that has passed since its creation and since
// the hub's start. Without a list Decide only removes the taints of ready nodes.
func Decide(s state.Snapshot, l List, startup time.Duration, now time.Time) (changes []state.Change) {
	for n := range s.Nodes() {
		if c, ok := decide(s, n, l, startup, now); ok {
			changes = append(changes, c)
		}
	}
	return changes
}

func decide(s state.Snapshot, n *corev1.Node, l List, startup time.Duration, now time.Time) (state.Change, bool) {
	tainted := slices.IndexFunc(n.Spec.Taints, shutdown) >= 0
	ready, placed := state.ReadyOf(n) == corev1.ConditionTrue,
		state.SiteOf(n) != state.DefaultSite || n.Labels[corev1.LabelTopologyZone] != ""
	if ready && placed && !tainted {
		return state.Change{}, false // the list cannot change this node
	}
	m, listed := l.Of(n.Name)
	switch {
	case ready:
		// A ready node is alive, so the list is outdated.
	case l.Len() == 0 || stillStarting(s, n, startup, now):
		return state.Change{}, false
	case !listed || m.State == Gone:
		why := fmt.Sprintf("delete node %s: it is not ready, and the inventory says that its machine is gone", n.Name)
		if !listed {
			why = fmt.Sprintf("delete node %s: it is not ready, and the inventory does not list its machine", n.Name)
		}
		if len(n.Finalizers) > 0 {
			return markDeleted(n, why, now)
		}
		return state.Remove(n, why).Event("DeletingNode"), true
	}
	off := !ready && m.State == Shutdown
	place := m.Site != "" && !placed
	if off == tainted && !place {
		return state.Change{}, false
	}
	n = state.Fork(n)
	why := fmt.Sprintf("node %s is on site %s, as the inventory says", n.Name, m.Site)
	if place {
		metav1.SetMetaDataLabel(&n.ObjectMeta, corev1.LabelTopologyZone, m.Site)
	}
	switch {
	case off && !tainted:
		at := metav1.NewTime(now.Truncate(time.Second))
		n.Spec.Taints = append(n.Spec.Taints,
			corev1.Taint{Key: TaintShutdown, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &at})
		why = fmt.Sprintf("taint %s %s:%s: it is not ready, and the inventory says that its machine has been shut down",
			n.Name, TaintShutdown, corev1.TaintEffectNoSchedule)
	case !off && tainted:
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, shutdown)
		why = fmt.Sprintf("untaint %s %s:%s: the inventory says that its machine is %s", n.Name, TaintShutdown,
			corev1.TaintEffectNoSchedule, m.State)
		if ready {
			why = fmt.Sprintf("untaint %s %s:%s: it is ready", n.Name, TaintShutdown, corev1.TaintEffectNoSchedule)
		}
	}
	return state.Put(n, why).Event("InventoryChanged"), true
}

func shutdown(t corev1.Taint) bool {
	return t.Key == TaintShutdown && t.Effect == corev1.TaintEffectNoSchedule
}

// stillStarting tells whether a node has not had enough time to report.
func stillStarting(s state.Snapshot, n *corev1.Node, startup time.Duration, now time.Time) bool {
	if site := s.Site(state.SiteOf(n)); site != nil && site.Spec.NodeStartupGracePeriod != nil {
		startup = site.Spec.NodeStartupGracePeriod.Duration
	}
	since := n.CreationTimestamp.Time
	if listening := s.Listening(); listening.After(since) {
		since = listening
	}
	return !now.After(since.Add(startup))
}

// markDeleted returns the deletion of a node that still has a finalizer.
func markDeleted(n *corev1.Node, why string, now time.Time) (state.Change, bool) {
	if n.DeletionTimestamp != nil {
		return state.Change{}, false
	}
	n = state.Fork(n)
	at := metav1.NewTime(now.Truncate(time.Second))
	zero := int64(0)
	n.DeletionTimestamp, n.DeletionGracePeriodSeconds = &at, &zero
	return state.Put(n, why).Event("DeletingNode"), true
}
