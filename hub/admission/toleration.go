package admission

import (
	corev1 "k8s.io/api/core/v1"
)

// priorityClasses are those that every Kubernetes has, and their values. There
// are no others: PriorityClass objects are not served.
var priorityClasses = map[string]int32{
	"system-cluster-critical": 2000000000,
	"system-node-critical":    2000001000,
}

// highestUserPriority is the highest spec.priority without a class.
const highestUserPriority = 1000000000

// DefaultTolerations adds the tolerations that every pod has: of nodes that are
// not ready and of unreachable ones, for the settings' seconds. Each is left out
// where a toleration has that key (or none) and that effect (or none), whatever
// its operator and its seconds.
func DefaultTolerations(have []corev1.Toleration, s Settings) []corev1.Toleration {
	for _, t := range []struct {
		key     string
		seconds int64
	}{
		{corev1.TaintNodeNotReady, s.NotReadySeconds},
		{corev1.TaintNodeUnreachable, s.UnreachableSeconds},
	} {
		if !tolerated(have, t.key) {
			seconds := t.seconds
			have = append(have, corev1.Toleration{
				Key: t.key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			})
		}
	}
	return have
}

func tolerated(have []corev1.Toleration, key string) bool {
	for _, t := range have {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}

// DaemonSetTolerations adds the tolerations of a DaemonSet's pods, which stay
// with their node whatever happens to it: not-ready and unreachable without an
// end, pressure and cordons, and, on the host's network, a network that is not
// there. One that the pod has already is replaced.
func DaemonSetTolerations(s *corev1.PodSpec) {
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		for i := range s.Tolerations {
			if have := &s.Tolerations[i]; have.MatchToleration(&t) {
				*have = t
				return
			}
		}
		s.Tolerations = append(s.Tolerations, t)
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if s.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
}
