package control

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// known are the labels of Kubernetes that devices report and the hub sets itself, by
// what it knows of the device.
var known = []string{corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch"}

// own returns which of its labels and taints a device may give itself when it
// registers, and names the others. Those of Kubernetes it may not: they decide where
// pods may run (node-restriction.kubernetes.io among them), and whether they must
// leave. placed: its site is known otherwise.
func own(r wire.Registration, placed bool) (labels map[string]string, taints []corev1.Taint, refused []string) {
	labels = map[string]string{}
	for k, v := range r.Labels {
		switch {
		case slices.Contains(known, k):
		case k == corev1.LabelTopologyZone && !placed && v != "" && valid(k, v):
			labels[k] = v
		case reserved(k) || !valid(k, v):
			refused = append(refused, fmt.Sprintf("label %q", k))
		default:
			labels[k] = v
		}
	}
	slices.Sort(refused)
	for _, t := range r.Taints {
		t.TimeAdded = nil
		effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
		if reserved(t.Key) || !valid(t.Key, t.Value) || !slices.Contains(effects, t.Effect) {
			refused = append(refused, fmt.Sprintf("taint %q", t.Key))
		} else {
			taints = addTaint(taints, t)
		}
	}
	return labels, taints, refused
}

// addTaint adds a taint unless one of its key and effect is there.
func addTaint(to []corev1.Taint, t corev1.Taint) []corev1.Taint {
	if slices.ContainsFunc(to, func(have corev1.Taint) bool { return have.MatchTaint(&t) }) {
		return to
	}
	return append(to, t)
}

func valid(key, value string) bool {
	return len(validation.IsQualifiedName(key)) == 0 && len(validation.IsValidLabelValue(value)) == 0
}

// reserved tells whether a key is one of Kubernetes' own.
func reserved(key string) bool {
	prefix, _, ok := strings.Cut(key, "/")
	if !ok {
		return false
	}
	for _, domain := range []string{"kubernetes.io", "k8s.io"} {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return true
		}
	}
	return false
}

// registered is the change by which a device's Node comes to be.
func registered(n *corev1.Node, st wire.Status, refused []string) state.Change {
	c := state.Put(n, fmt.Sprintf("register node %s on site %s: %s", n.Name, state.SiteOf(n), about(st))).Event("RegisteredNode")
	if len(refused) > 0 {
		if len(refused) > 5 {
			refused = append(refused[:5:5], fmt.Sprintf("%d more", len(refused)-5))
		}
		c.Why += "; not its own to give, and left out: " + strings.Join(refused, ", ")
		c.Warn = true
	}
	return c
}
