package node

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// refreshLabels sets the default labels, the most important ones first. They follow the device. All
// other labels belong to the administrator.
func (d *Devices) refreshLabels(s state.Snapshot, n *corev1.Node, rec *state.Record, st wire.Status) {
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	set := func(key, value string) {
		if value != "" && n.Labels[key] != value && valid(key, value) {
			label(n, key, value)
		}
	}
	set(corev1.LabelHostname, n.Name) // the name is unique, and no other node may claim it
	if rec.Site != "" {
		label(n, corev1.LabelTopologyZone, rec.Site)
	}
	set(corev1.LabelArchStable, st.Status.NodeInfo.Architecture)
	set(corev1.LabelOSStable, st.Status.NodeInfo.OperatingSystem)
	set(fleet.LabelBoard, st.Registration.Labels[fleet.LabelBoard])
	set("beta.kubernetes.io/arch", st.Status.NodeInfo.Architecture)
	set("beta.kubernetes.io/os", st.Status.NodeInfo.OperatingSystem)
	if d.Profile != nil {
		hardware := st.Hardware
		if hardware == nil {
			hardware = s.Report(n.Name).Text()
		}
		known := n.Status.NodeInfo.Architecture != "" && !n.Status.Capacity.Memory().IsZero()
		if _, has := n.Labels[fleet.LabelProfile]; has && !known { // found earlier, when more facts were known
		} else if name := d.Profile(s, n.Status, hardware); name != "" {
			label(n, fleet.LabelProfile, name)
		} else if len(hardware) > 0 { // no profile matches any more
			delete(n.Labels, fleet.LabelProfile)
		}
	}
	maps.DeleteFunc(n.Labels, func(k, _ string) bool {
		_, still := st.Registration.Labels[k]
		return measured(k) && !still
	})
	for _, k := range slices.Sorted(maps.Keys(st.Registration.Labels)) {
		if _, has := n.Labels[k]; measured(k) && (has || len(n.Labels) < maxLabels) {
			set(k, st.Registration.Labels[k])
		}
	}
}

// label sets a label of a node unless the node has too many labels already, because users must be
// able to change labels.
func label(n *corev1.Node, key, value string) {
	if _, has := n.Labels[key]; has || len(n.Labels) < bound.MaxLabels {
		metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
	}
}

// measured tells whether a device measures the label.
func measured(label string) bool { return strings.HasPrefix(label, fleet.LabelHardwarePrefix) }

// report writes a device's status into its Node. Times are the hub's, not the device's. Conditions
// of the hub and of other writers stay, as with a kubelet. A status without Ready makes the node
// not ready. old is the record before the report; nil: no record.
func (d *Devices) report(n *corev1.Node, st wire.Status, old *state.Record, now time.Time) {
	if old == nil {
		old = &state.Record{}
	}
	next := *st.Status.DeepCopy()
	intern(&next)
	kept := 0
	next.Conditions = slices.DeleteFunc(next.Conditions, func(c corev1.NodeCondition) bool {
		if hubCondition(c.Type) || c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue &&
			c.Status != corev1.ConditionFalse {
			return true
		}
		kept++
		return kept > maxConditions && c.Type != corev1.NodeReady
	})
	if !slices.ContainsFunc(next.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		next.Conditions = append(next.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
			Message: "the device does not report Ready",
		})
	}
	for i := range next.Conditions {
		c := &next.Conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		if have := state.NodeCondition(n, c.Type); have != nil && have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
	}
	for _, c := range n.Status.Conditions { // the hub's own conditions stay; those of other writers stay if there is space
		others := isUnknownCondition(c.Type) && !slices.Contains(old.Conditions, string(c.Type)) &&
			len(next.Conditions) < maxConditions
		if !slices.ContainsFunc(next.Conditions, func(d corev1.NodeCondition) bool {
			return d.Type == c.Type
		}) && (hubCondition(c.Type) || others) {
			next.Conditions = append(next.Conditions, c)
		}
	}
	// Ready comes last, where users look for it.
	sort.SliceStable(next.Conditions, func(i, j int) bool {
		return next.Conditions[i].Type != corev1.NodeReady && next.Conditions[j].Type == corev1.NodeReady
	})
	keepExtended(&next, n.Status, old.Extended)
	keepKnown(&next, n.Status)
	n.Status = next
}

// awaitProfile records whether a device's status already reflects its board profile. The profile
// may reduce its capacity, so a pod that is bound before might not fit.
func awaitProfile(n *corev1.Node, st wire.Status) {
	if st.Profile == nil || *st.Profile == n.Labels[fleet.LabelProfile] {
		delete(n.Annotations, state.AwaitsProfile)
		return
	}
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, state.AwaitsProfile, "true")
}

// keepKnown keeps the last known facts about the engine if the device does not know them, for
// example because its engine has not started yet.
func keepKnown(next *corev1.NodeStatus, have corev1.NodeStatus) {
	is, was := &next.NodeInfo, have.NodeInfo
	if is.MachineID != was.MachineID {
		return
	}
	is.Architecture = cmp.Or(is.Architecture, was.Architecture)
	if is.ContainerRuntimeVersion == "" {
		is.ContainerRuntimeVersion, next.RuntimeHandlers = was.ContainerRuntimeVersion, have.RuntimeHandlers
	}
}

// keepExtended keeps the extended resources that an administrator wrote into a Node's status
// (kubectl patch --subresource=status). own are those that the device reported before; they are
// removed if it no longer reports them.
func keepExtended(next *corev1.NodeStatus, have corev1.NodeStatus, own []string) {
	for name, q := range have.Capacity {
		if _, reported := next.Capacity[name]; reported || !extended(name) || slices.Contains(own, string(name)) {
			continue
		}
		if next.Capacity == nil {
			next.Capacity = corev1.ResourceList{}
		}
		if next.Allocatable == nil {
			next.Allocatable = corev1.ResourceList{}
		}
		next.Capacity[name] = q
		next.Allocatable[name] = q // as with a kubelet, allocatable is the capacity
	}
}

// extended tells whether a resource is not one of Kubernetes' own.
func extended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !wire.Reserved(string(name))
}

func extendedIn(list corev1.ResourceList) (names []string) {
	for name := range list {
		if extended(name) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// isUnknownCondition tells whether neither the agent nor the hub sets the condition. The device or
// another writer may set it.
func isUnknownCondition(t corev1.NodeConditionType) bool { return fleet.MeaningOf(t) == fleet.Unjudged }

// unknownConditions returns the types of the unknown conditions in a list.
func unknownConditions(list []corev1.NodeCondition) (types []string) {
	for i := range list {
		if isUnknownCondition(list[i].Type) {
			types = append(types, string(list[i].Type))
		}
	}
	return types
}

func hubCondition(t corev1.NodeConditionType) bool {
	return t == fleet.ConditionFlapping || t == fleet.ConditionIdentityConflict || t == fleet.ConditionPodCIDRAvailable
}

// sameNode compares two nodes without heartbeat times, because a report without changes is not
// worth a write.
func sameNode(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && a.Annotations[state.AwaitsProfile] == b.Annotations[state.AwaitsProfile] &&
		fleet.SameStatus(a.Status, b.Status)
}
