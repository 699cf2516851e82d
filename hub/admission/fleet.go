package admission

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"flotilla.dev/hub/state"
)

// Consulted are the kinds that Complete looks at: what it said stands as long as nothing of them changes.
var Consulted = slices.DeleteFunc(slices.Clone(state.Kinds()), func(k state.Kind) bool { return !k.Row().Consulted })

// Complete fills in, in place, what the fleet and the namespace of a new object say of it, and returns why it may not be,
// in Kubernetes' words. Default has been applied to it.
func Complete(o state.Object, s state.Snapshot) error {
	switch o := o.(type) {
	case *corev1.Pod:
		if err := withRuntime(o, s); err != nil {
			return err
		}
		if err := prioritise(&o.Spec, s); err != nil {
			return err
		}
		return ranged(o, s)
	case *corev1.PersistentVolumeClaim:
		return rangedClaim(o, s)
	case *schedulingv1.PriorityClass:
		return onlyDefault(o, s)
	}
	return nil
}

// MayReplace says why an object may not take the place of what was there, for what else there is in the fleet.
func MayReplace(o state.Object, s state.Snapshot) error {
	if c, ok := o.(*schedulingv1.PriorityClass); ok {
		return onlyDefault(c, s)
	}
	return nil
}
