package state

import (
	corev1 "k8s.io/api/core/v1"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// Tolerates tells whether one of the tolerations tolerates a taint. The operators that
// compare numbers, alpha in Kubernetes, are none of ours.
func Tolerates(all []corev1.Toleration, t *corev1.Taint) bool {
	return schedcorev1.TolerationsTolerateTaint(klog.Logger{}, all, t, false)
}
