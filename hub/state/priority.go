package state

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
)

// The priority classes that are always there, and what is said of the others.
const (
	NodeCritical        = "system-node-critical"
	ClusterCritical     = "system-cluster-critical"
	SystemClassPrefix   = "system-"
	HighestUserPriority = 1000000000 // of a class that is none of the system's, and of a pod without a class
)

// SystemClasses are the priority classes that are always there: what they are worth, and what for.
var SystemClasses = []schedulingv1.PriorityClass{
	systemClass(NodeCritical, 2000001000, "Used for system critical pods that must not be moved from their current node."),
	systemClass(ClusterCritical, 2000000000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
}

func systemClass(name string, value int32, text string) (c schedulingv1.PriorityClass) {
	c.Name, c.Value, c.Description, c.PreemptionPolicy = name, value, text, new(corev1.PreemptLowerPriority)
	return c
}

// SystemClass returns the class of the system that has the name, nil if it is none.
func SystemClass(name string) *schedulingv1.PriorityClass {
	if !strings.HasPrefix(name, SystemClassPrefix) {
		return nil
	}
	for i := range SystemClasses {
		if SystemClasses[i].Name == name {
			return &SystemClasses[i]
		}
	}
	return nil
}

// PriorityClass returns a priority class, nil if there is none. Those of the system are what they are, whatever
// stands in the database.
func (s Snapshot) PriorityClass(name string) *schedulingv1.PriorityClass {
	if c := SystemClass(name); c != nil {
		return c
	}
	return get[*schedulingv1.PriorityClass](s, Key{Kind: PriorityClasses, Name: name})
}

// DefaultPriorityClass returns the class of pods that name none, nil if there is none: of several the one of the
// lowest value, as Kubernetes does.
func (s Snapshot) DefaultPriorityClass() (lowest *schedulingv1.PriorityClass) {
	for c := range Each[*schedulingv1.PriorityClass](s, PriorityClasses, "") {
		if c.GlobalDefault && SystemClass(c.Name) == nil && (lowest == nil || c.Value < lowest.Value) {
			lowest = c
		}
	}
	return lowest
}

// Alike tells whether two snapshots have the very same objects of a kind.
func (s Snapshot) Alike(o Snapshot, k Kind) bool { return s.tables[k.index()] == o.tables[k.index()] }
