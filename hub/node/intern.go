package node

import (
	"unique"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// intern makes all nodes share the strings that are equal on most nodes.
func intern(st *corev1.NodeStatus) {
	state.ShareStatus(st, func(s string) string { return unique.Make(s).Value() })
}
