package state

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// NodeFits tells whether a node matches the nodeSelector and the required node affinity of a pod.
func NodeFits(spec *corev1.PodSpec, n *corev1.Node) bool {
	fits, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(n)
	return err == nil && fits
}
