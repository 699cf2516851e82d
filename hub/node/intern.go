package node

import (
	"unique"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// intern makes the words that every node of a fleet repeats one in memory.
func intern(st *corev1.NodeStatus) {
	state.ShareStatus(st, func(s string) string { return unique.Make(s).Value() })
}
