package wire

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ReportedLabels are the labels of Kubernetes that devices report and the hub sets itself, by
// what it knows of the device.
var ReportedLabels = []string{corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch"}

// CheckLabel tells why a device may not give itself a label when it registers: it cannot be
// one, or is Kubernetes' own, such as those that decide where pods may run.
func CheckLabel(key, value string) error {
	if slices.Contains(ReportedLabels, key) {
		return fmt.Errorf("label %q is the device's own, which the hub sets by what it reports: leave it out", key)
	}
	return checkPair("label", key, value)
}

// CheckTaint tells why a device may not give itself a taint when it registers.
func CheckTaint(t corev1.Taint) error {
	switch t.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		return fmt.Errorf("taint %q has the effect %q: use NoSchedule, PreferNoSchedule or NoExecute", t.Key, t.Effect)
	}
	return checkPair("taint", t.Key, t.Value)
}

func checkPair(what, key, value string) error {
	if Reserved(key) {
		return fmt.Errorf(
			"%s %q is Kubernetes' own, and not for a device to give itself: use another prefix, or set it on the Node", what,
			key)
	}
	if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
		return fmt.Errorf("%s %q: the key %s", what, key, msgs[0])
	}
	if msgs := validation.IsValidLabelValue(value); len(msgs) > 0 {
		return fmt.Errorf("%s %q: the value %q %s", what, key, value, msgs[0])
	}
	return nil
}

// Reserved tells whether a key is one of Kubernetes' own.
func Reserved(key string) bool {
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
