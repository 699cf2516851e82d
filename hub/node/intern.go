package node

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
)

// intern makes the words that every node of a fleet repeats (types, reasons and
// messages of conditions, versions, resource names) one in memory.
func intern(st *corev1.NodeStatus) {
	for i := range st.Conditions {
		c := &st.Conditions[i]
		c.Type = corev1.NodeConditionType(one(string(c.Type)))
		c.Status = corev1.ConditionStatus(one(string(c.Status)))
		c.Reason, c.Message = one(c.Reason), one(c.Message)
	}
	n := &st.NodeInfo
	n.KernelVersion, n.OSImage, n.OperatingSystem, n.Architecture = one(n.KernelVersion), one(n.OSImage), one(n.OperatingSystem), one(n.Architecture)
	n.ContainerRuntimeVersion, n.KubeletVersion = one(n.ContainerRuntimeVersion), one(n.KubeletVersion)
	for i := range st.Images {
		for j := range st.Images[i].Names {
			st.Images[i].Names[j] = one(st.Images[i].Names[j])
		}
	}
	st.Capacity, st.Allocatable = names(st.Capacity), names(st.Allocatable)
}

func names(list corev1.ResourceList) corev1.ResourceList {
	if list == nil {
		return nil
	}
	out := make(corev1.ResourceList, len(list))
	for name, q := range list {
		out[corev1.ResourceName(one(string(name)))] = q
	}
	return out
}

func one(s string) string { return unique.Make(s).Value() }
