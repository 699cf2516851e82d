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

// refreshLabels sets the default labels, the most important first: they follow the device, all
// others belong to the administrator.
func (d *Devices) refreshLabels(s state.Snapshot, n *corev1.Node, rec *state.Record, st wire.Status) {
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	set := func(key, value string) {
		if value != "" && n.Labels[key] != value && valid(key, value) {
			label(n, key, value)
		}
	}
	set(corev1.LabelHostname, n.Name) // unique, and nobody else's to say
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
		if _, has := n.Labels[fleet.LabelProfile]; has && !known { // what it has was found when more was known
		} else if name := d.Profile(s, n.Status, hardware); name != "" {
			label(n, fleet.LabelProfile, name)
		} else if len(hardware) > 0 { // none fits it any more
			delete(n.Labels, fleet.LabelProfile)
		}
	}
	maps.DeleteFunc(n.Labels, func(k, _ string) bool {
		_, still := st.Registration.Labels[k]
		return measured(k) && !still
	})
	for _, k := range slices.Sorted(maps.Keys(st.Registration.Labels)) {
		if _, has := n.Labels[k]; measured(k) && (has || len(n.Labels) < mostLabels) {
			set(k, st.Registration.Labels[k])
		}
	}
}

// label sets a label of a node, unless the node, made by hand, is full: nobody could change it any
// more.
func label(n *corev1.Node, key, value string) {
	if _, has := n.Labels[key]; has || len(n.Labels) < bound.MaxLabels {
		metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
	}
}

// measured tells whether a label is one that a device has measured.
func measured(label string) bool { return strings.HasPrefix(label, fleet.LabelHardwarePrefix) }

// report puts what a device reports of itself into its Node. The device's clock
// decides nothing: a condition that changed, changed now. Nor does what it says of
// conditions that are the hub's. Those of others stay, as a kubelet leaves them. One that says
// nothing of Ready is not ready. old is what was remembered of it before; nil: nothing.
func (d *Devices) report(n *corev1.Node, st wire.Status, old *state.Record, now time.Time) {
	if old == nil {
		old = &state.Record{}
	}
	next := *st.Status.DeepCopy()
	intern(&next)
	kept := 0
	next.Conditions = slices.DeleteFunc(next.Conditions, func(c corev1.NodeCondition) bool {
		if hubs(c.Type) || c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue &&
			c.Status != corev1.ConditionFalse {
			return true
		}
		kept++
		return kept > mostConditions && c.Type != corev1.NodeReady
	})
	if !slices.ContainsFunc(next.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		next.Conditions = append(next.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
			Message: "the device says neither that it is ready nor that it is not",
		})
	}
	for i := range next.Conditions {
		c := &next.Conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		if have := state.NodeCondition(n, c.Type); have != nil && have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
	}
	for _, c := range n.Status.Conditions { // the hub's own stay, and those of others as far as there is room
		others := isUnknownCondition(c.Type) && !slices.Contains(old.Conditions, string(c.Type)) &&
			len(next.Conditions) < mostConditions
		if !slices.ContainsFunc(next.Conditions, func(d corev1.NodeCondition) bool {
			return d.Type == c.Type
		}) && (hubs(c.Type) || others) {
			next.Conditions = append(next.Conditions, c)
		}
	}
	// Ready stands last, where people look for it.
	sort.SliceStable(next.Conditions, func(i, j int) bool {
		return next.Conditions[i].Type != corev1.NodeReady && next.Conditions[j].Type == corev1.NodeReady
	})
	keepExtended(&next, n.Status, old.Extended)
	keepKnown(&next, n.Status)
	n.Status = next
}

// awaitProfile notes whether what a device says of itself follows from its board profile. It can
// give less under that: a pod that was placed before would not fit.
func awaitProfile(n *corev1.Node, st wire.Status) {
	if st.Profile == nil || *st.Profile == n.Labels[fleet.LabelProfile] {
		delete(n.Annotations, state.AwaitsProfile)
		return
	}
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, state.AwaitsProfile, "true")
}

// keepKnown keeps what a device knew last of its engine, and does not know now: it may start before
// its engine.
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

// keepExtended keeps the extended resources that an administrator has written into a
// Node's status (kubectl patch --subresource=status): a device reports only its own.
// What it does not report any more is gone: own.
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
		next.Allocatable[name] = q // as a kubelet does: nothing of it is kept back
	}
}

// extended tells whether a resource is none of Kubernetes' own.
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

// isUnknownCondition tells whether a condition is none that an agent or the hub is known to say: a
// device may say it, or somebody else.
func isUnknownCondition(t corev1.NodeConditionType) bool { return fleet.MeaningOf(t) == fleet.Unjudged }

// unknownConditions returns the odd ones of the conditions that a device says.
func unknownConditions(list []corev1.NodeCondition) (types []string) {
	for i := range list {
		if isUnknownCondition(list[i].Type) {
			types = append(types, string(list[i].Type))
		}
	}
	return types
}

func hubs(t corev1.NodeConditionType) bool {
	return t == fleet.ConditionFlapping || t == fleet.ConditionIdentityConflict || t == fleet.ConditionPodCIDRAvailable
}

// sameNode compares but for heartbeat times: one that says nothing new is not
// worth a write.
func sameNode(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && a.Annotations[state.AwaitsProfile] == b.Annotations[state.AwaitsProfile] &&
		fleet.SameStatus(a.Status, b.Status)
}
