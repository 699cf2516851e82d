package admission

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// DefaultTolerations adds the default tolerations for nodes that are not ready or unreachable. It
// adds none for a key that an existing toleration has, with NoExecute or any effect. A toleration
// without a key counts as every key.
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

// extendedTolerations adds, for each requested extended resource, a toleration of a NoSchedule
// taint with that key. So a node that is tainted with the name of its hardware runs only pods that
// request the hardware. Kubernetes' admission plugin ExtendedResourceToleration does the same.
func extendedTolerations(spec *corev1.PodSpec, have []corev1.Toleration) []corev1.Toleration {
	requested := map[corev1.ResourceName]bool{}
	eachContainer(spec, func(c *corev1.Container) {
		for name := range c.Resources.Requests {
			requested[name] = !isNative(name)
		}
	})
	for _, name := range sortedKeys(requested) {
		t := corev1.Toleration{Key: string(name), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
		if requested[name] && !slices.ContainsFunc(have, func(h corev1.Toleration) bool { return h.MatchToleration(&t) }) {
			have = append(have, t)
		}
	}
	return have
}

// pressureToleration adds the toleration of memory pressure to every pod that requests memory or
// cpu. Kubernetes does so for pods that are not BestEffort. The scheduler and the device both use
// it.
func pressureToleration(spec *corev1.PodSpec, have []corev1.Toleration) []corev1.Toleration {
	t := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
	if qos(spec) == corev1.PodQOSBestEffort || state.Tolerates(have, &t) {
		return have
	}
	return append(have, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect})
}

func tolerated(have []corev1.Toleration, key string) bool {
	for _, t := range have {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
