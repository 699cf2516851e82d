package node

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Pods handles a device's list of its pods. It returns when the consequences are durable.
func (d *Devices) Pods(ctx context.Context, c Caller, pods wire.Pods) error {
	node := c.Node
	p := d.nodes.get(node)
	boot := p.boot.Load()
	if boot == nil || *boot != pods.Boot || pods.Seq <= p.pods.Load() {
		return fmt.Errorf("pods %d of %s: %w", pods.Seq, node, ErrStale)
	}
	if pods.Base > 0 && pods.Base != p.pods.Load() { // the list refers to an earlier list that did not arrive
		d.askAgain(node, p)
		return nil
	}
	if !p.allows(d.Age()) {
		p.deferredMessages.Add(1)
		return nil // the next lease shows that the hub is behind, and the hub requests the list again
	}
	holds, whole := p.addPart(pods)
	done, err := d.Do(control.FromNode(ctx, node), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		if err := speaks(s, c); err != nil {
			return nil, err
		}
		if rec := s.Record(node); rec == nil || rec.Boot != pods.Boot {
			return nil, fmt.Errorf("pods %d of %s: %w", pods.Seq, node, ErrStale)
		}
		changes := podChanges(s, node, pods, now)
		if whole {
			changes = append(changes, stopped(s, node, pods.Generation, holds)...)
		}
		if whole && pods.Base == 0 { // a list that refers to an earlier list does not list the unchanged pods
			p.podsStale.Store(p.silent.Load()) // a list from before the node became silent is outdated
		}
		return changes, nil
	})
	p.charge(done)
	if err != nil {
		return err
	}
	if p.partRemembered(pods, whole); whole {
		p.pods.Store(pods.Seq)
	}
	return nil
}

// A partialList is the received part of a list of pods that comes in parts. It has only the pods'
// UIDs; their statuses are handled with each part.
type partialList struct {
	boot  string
	seq   uint64
	parts [wire.MaxParts]bool
	holds [wire.MaxParts][]types.UID // UIDs by part, of the newest version of the part
}

// addPart adds a part and returns the UIDs of the pods that the device has. whole tells whether all
// parts have arrived.
func (p *liveness) addPart(pods wire.Pods) (holds map[types.UID]bool, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.list == nil || p.list.boot != pods.Boot || p.list.seq != pods.Seq || pods.Parts <= 1 {
		p.list = &partialList{boot: pods.Boot, seq: pods.Seq}
	}
	g, part := p.list, max(pods.Part, 1)-1
	g.holds[part] = make([]types.UID, len(pods.Pods))
	for i, reported := range pods.Pods {
		g.holds[part][i] = reported.UID
	}
	for i, seen := range g.parts[:max(pods.Parts, 1)] {
		if !seen && i != part {
			return nil, false
		}
	}
	holds = map[types.UID]bool{}
	for _, uids := range g.holds {
		for _, uid := range uids {
			holds[uid] = true
		}
	}
	return holds, true
}

// partRemembered records that a part, or the whole list, is stored.
func (p *liveness) partRemembered(pods wire.Pods, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if whole {
		p.list = nil
	} else if g := p.list; g != nil && g.boot == pods.Boot && g.seq == pods.Seq {
		g.parts[pods.Part-1] = true
	}
}

// podChanges returns the changes from a device's list of its pods.
func podChanges(s state.Snapshot, node string, pods wire.Pods, now time.Time) (changes []state.Change) {
	for _, reported := range pods.Pods {
		if reported.AsBefore() {
			continue
		}
		p := s.Pod(reported.Namespace, reported.Name)
		if p == nil || p.UID != reported.UID || p.Spec.NodeName != node || state.Terminated(p) {
			continue
		}
		next := state.ForkPod(p)
		mergeStatus(next, reported.Status, now)
		if apiequality.Semantic.DeepEqual(p.Status, next.Status) {
			continue
		}
		c := state.Put(next, "")
		if p.Status.Phase != next.Status.Phase {
			c.Why = fmt.Sprintf("pod %s on %s %s", state.Display(next), node, next.Status.Phase)
			if next.Status.Message != "" {
				c.Why += ": " + next.Status.Message
			}
		}
		// A deleted pod that has finished has stopped.
		if next.DeletionTimestamp != nil && state.Terminated(next) && len(next.Finalizers) == 0 {
			changes = append(changes, state.Put(next, "")) // so that watchers first receive how the pod ended
			c = state.Remove(next, fmt.Sprintf("pod %s on %s has stopped", state.Display(next), node))
		}
		changes = append(changes, c)
	}
	return changes
}

// stopped returns the removal of deleted pods that the device no longer has. The device must have
// stored the desired state of that generation. A pod with a finalizer, such as a Job's, is marked
// as failed instead, because no other component would do that.
func stopped(s state.Snapshot, node string, generation int64, holds map[types.UID]bool) (changes []state.Change) {
	if rec := s.Record(node); rec == nil || generation < rec.Generation {
		return nil // the device may not have its current desired state
	}
	for p := range s.PodsOn(node) {
		switch why := fmt.Sprintf("pod %s on %s has stopped", state.Display(p), node); {
		case p.DeletionTimestamp == nil || holds[p.UID]:
		case len(p.Finalizers) == 0:
			changes = append(changes, state.Remove(p, why))
		case !state.Terminated(p):
			p = state.ForkPod(p)
			p.Status.Phase = corev1.PodFailed
			changes = append(changes, state.Put(p, why))
		}
	}
	return changes
}

// mergeStatus takes over a device's status of a pod, without the conditions that belong to the hub
// or to other writers. A device must not set those, because it would never remove them. It may set
// shared conditions that are missing.
func mergeStatus(p *corev1.Pod, reported corev1.PodStatus, now time.Time) {
	have, old := &p.Status, p.Status
	*have = *reported.DeepCopy()
	plausiblePod(have, &old, now)
	dropForeign(p, &old)
	have.NominatedNodeName, have.QOSClass = "", old.QOSClass
	if have.StartTime == nil {
		have.StartTime = old.StartTime
	} else if old.StartTime != nil {
		have.StartTime = old.StartTime
	}
	seen := make(map[corev1.PodConditionType]bool, len(have.Conditions))
	have.Conditions = slices.DeleteFunc(have.Conditions, func(c corev1.PodCondition) bool {
		again := seen[c.Type]
		seen[c.Type] = true
		return again || !isDeviceCondition(c.Type) &&
			(!isSharedCondition(&c) || slices.ContainsFunc(old.Conditions, func(was corev1.PodCondition) bool {
				return was.Type == c.Type
			}))
	})
	for _, c := range old.Conditions {
		if !isDeviceCondition(c.Type) {
			have.Conditions = append(have.Conditions, c)
		}
	}
	state.SettleReady(p, now)
	for i := range have.Conditions {
		c := &have.Conditions[i]
		was := slices.IndexFunc(old.Conditions, func(was corev1.PodCondition) bool { return was.Type == c.Type })
		if was >= 0 && !isDeviceCondition(c.Type) {
			continue
		}
		c.LastTransitionTime, c.LastProbeTime = metav1.NewTime(now), metav1.Time{}
		if was >= 0 && old.Conditions[was].Status == c.Status {
			c.LastTransitionTime = old.Conditions[was].LastTransitionTime
		}
	}
	// Sort the conditions, because their order has no meaning and must not count as a change.
	sort.SliceStable(have.Conditions, func(i, j int) bool {
		return order(have.Conditions[i].Type) < order(have.Conditions[j].Type)
	})
}

// dropForeign removes statuses of unknown containers and too long lists from a pod's status, so
// that a device cannot enlarge it. Our own devices never send those.
func dropForeign(p *corev1.Pod, old *corev1.PodStatus) {
	st := &p.Status
	st.PodIPs, st.HostIPs = st.PodIPs[:min(len(st.PodIPs), maxIPs)], st.HostIPs[:min(len(st.HostIPs), maxIPs)]
	st.AllocatedResources, st.Resources, st.Resize = nil, nil, ""
	st.ResourceClaimStatuses, st.ExtendedResourceClaimStatus, st.NodeAllocatableResourceClaimStatuses,
		st.VolumeHealth = nil, nil, nil, nil
	var debug []corev1.Container
	for i := range p.Spec.EphemeralContainers {
		debug = append(debug, corev1.Container{Name: p.Spec.EphemeralContainers[i].Name})
	}
	st.InitContainerStatuses = knownContainers(p.Spec.InitContainers, old.InitContainerStatuses, st.InitContainerStatuses)
	st.ContainerStatuses = knownContainers(p.Spec.Containers, old.ContainerStatuses, st.ContainerStatuses)
	st.EphemeralContainerStatuses = knownContainers(debug, old.EphemeralContainerStatuses, st.EphemeralContainerStatuses)
}

// maxIPs is the limit of addresses of a pod or host, more than one per family.
const maxIPs = 8

// knownContainers returns one status for each existing container.
func knownContainers(list []corev1.Container, old, reported []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for _, c := range reported {
		i := slices.IndexFunc(list, func(is corev1.Container) bool { return is.Name == c.Name })
		if i < 0 || slices.ContainsFunc(kept, func(is corev1.ContainerStatus) bool { return is.Name == c.Name }) {
			continue
		}
		c.VolumeMounts, c.User, c.AllocatedResourcesStatus = nil, nil, nil
		var was corev1.ContainerStatus
		if j := slices.IndexFunc(old, func(was corev1.ContainerStatus) bool { return was.Name == c.Name }); j >= 0 {
			was = old[j]
		}
		c.RestartCount = max(c.RestartCount, was.RestartCount) // the count never decreases, even if the device has lost it
		if was.Resources == nil {
			was.Resources = &corev1.ResourceRequirements{}
		}
		want := &list[i].Resources
		granted(c.AllocatedResources, want.Requests, was.AllocatedResources)
		if c.Resources != nil {
			c.Resources.Claims = nil
			granted(c.Resources.Requests, want.Requests, was.Resources.Requests)
			granted(c.Resources.Limits, want.Limits, was.Resources.Limits)
		}
		kept = append(kept, c)
	}
	return kept
}

// granted limits a container's reported resources to the wanted or the earlier amount. Otherwise
// the device could use up a quota.
func granted(says, want, had corev1.ResourceList) {
	for name, q := range says {
		most, asked := want[name]
		if before, ok := had[name]; ok && before.Cmp(most) > 0 {
			most, asked = before, true
		}
		switch {
		case !asked:
			delete(says, name)
		case q.Cmp(most) > 0:
			says[name] = most.DeepCopy()
		}
	}
}

// isDeviceCondition tells whether a pod's device sets and removes a condition.
func isDeviceCondition(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
		fleet.ConditionDevicesPresent,
		corev1.PodResizePending, corev1.PodResizeInProgress:
		return true
	}
	return false
}

// overwritten tells whether another writer has overwritten a device's part of a pod's status.
// Opening a readiness gate is not overwriting, because the hub then sets Ready.
func overwritten(old, next *corev1.Pod) bool {
	devicePart := func(p *corev1.Pod) corev1.PodStatus {
		st := p.Status
		st.NominatedNodeName, st.QOSClass = "", ""
		st.Conditions = slices.DeleteFunc(slices.Clone(st.Conditions), func(c corev1.PodCondition) bool {
			return !isDeviceCondition(c.Type) || c.Type == corev1.PodReady && len(p.Spec.ReadinessGates) > 0
		})
		return st
	}
	return !apiequality.Semantic.DeepEqual(devicePart(old), devicePart(next))
}

// isSharedCondition tells whether a device may set a condition that belongs to the hub: that the
// pod is scheduled, or that the device evicted it.
func isSharedCondition(c *corev1.PodCondition) bool {
	return c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
		c.Reason == corev1.PodReasonTerminationByKubelet
}

func order(t corev1.PodConditionType) int {
	return slices.Index([]corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
		corev1.PodScheduled, corev1.DisruptionTarget,
	}, t)
}
