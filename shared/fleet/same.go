package fleet

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// SameStatus compares the statuses of a node but for heartbeat times and the order of conditions.
// What every device says is looked at field by field, which costs a tenth of what reflection does:
// of a fleet that comes back all but a few say what they said before.
func SameStatus(a, b corev1.NodeStatus) bool {
	if !SameResources(a.Capacity, b.Capacity) || !SameResources(a.Allocatable, b.Allocatable) ||
		!slices.Equal(a.Addresses, b.Addresses) || !sameConditions(a.Conditions, b.Conditions) {
		return false
	}
	for _, st := range []*corev1.NodeStatus{&a, &b} {
		st.Capacity, st.Allocatable, st.Addresses, st.Conditions = nil, nil, nil, nil
	}
	return apiequality.Semantic.DeepEqual(a, b)
}

// SameResources compares amounts, however they are written.
func SameResources(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}

func sameConditions(a, b []corev1.NodeCondition) bool {
	if len(a) != len(b) {
		return false
	}
	for i, c := range a {
		if !sameCondition(c, b[i]) && !slices.ContainsFunc(b, func(other corev1.NodeCondition) bool {
			return sameCondition(c, other)
		}) {
			return false
		}
	}
	return true
}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.LastTransitionTime.Equal(&b.LastTransitionTime) && a.Type == b.Type && a.Status == b.Status &&
		a.Reason == b.Reason && a.Message == b.Message
}

// Recent is what is kept of a history: its last turns, at most so many, and of those that are older
// than age the one that still held when the age began.
func Recent[T any](history []T, at func(T) time.Time, most int, age time.Duration) []T {
	last := at(history[len(history)-1])
	for len(history) > 1 && (len(history) > most || last.Sub(at(history[1])) >= age) {
		history = history[1:]
	}
	return history
}

// A container that crashes is started again at once, then after 10 s, twice as long after each
// crash, 5 min at most; what has run for 10 min begins anew. As the kubelet does.
const (
	FirstBackOff = 10 * time.Second
	MaxBackOff   = 5 * time.Minute
	ForgiveAfter = 10 * time.Minute
)

// NextBackOff is how long a container waits after a crash, when it waited so long after the one
// before.
func NextBackOff(last time.Duration) time.Duration {
	return min(max(2*last, FirstBackOff), MaxBackOff)
}
