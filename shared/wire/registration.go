package wire

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ReportedLabels are Kubernetes' labels that the hub sets from the device's report.
var ReportedLabels = []string{corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch"}

// CheckLabel returns why a device may not register with a label: the label is invalid, or reserved
// for Kubernetes, for example because it decides where pods may run.
func CheckLabel(key, value string) error {
	if slices.Contains(ReportedLabels, key) {
		return fmt.Errorf("label %q is set by the hub from the device's report: omit it", key)
	}
	return checkPair("label", key, value)
}

// CheckTaint returns why a device may not register with a taint.
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
			"%s %q is reserved for Kubernetes: use another prefix, or set it on the Node", what,
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

// Reserved reports whether a key is reserved for Kubernetes.
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
