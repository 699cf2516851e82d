package kube

import (
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// signDrain notes in the order to drain a node who has given it: whatever it says of
// that itself. One that cannot be read is for admission to refuse.
func (c *call) signDrain(live, next state.Object) {
	n, ok := next.(*corev1.Node)
	if !ok {
		return
	}
	text, ordered := n.Annotations[state.DrainAnnotation]
	if !ordered || live != nil && live.GetAnnotations()[state.DrainAnnotation] == text {
		return
	}
	if o, err := state.ParseDrainOrder(text); err == nil {
		o.By = c.who.Name
		n.Annotations[state.DrainAnnotation] = o.String()
	}
}
