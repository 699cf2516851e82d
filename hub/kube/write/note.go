package write

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// changed describes for the audit what an update of a node or workload did, or "". From a record
// that says only "changed", a reader cannot see who cordoned a node or stopped its drain.
func changed(live, next state.Object) string {
	switch next := next.(type) {
	case *corev1.Node:
		before, ok := live.(*corev1.Node)
		if !ok {
			return ""
		}
		_, was := before.Annotations[state.DrainAnnotation]
		_, is := next.Annotations[state.DrainAnnotation]
		switch {
		case is && !was:
			return "drain"
		case was && !is && next.Spec.Unschedulable:
			return "stop the drain"
		case next.Spec.Unschedulable && !before.Spec.Unschedulable:
			return "cordon"
		case before.Spec.Unschedulable && !next.Spec.Unschedulable:
			return "uncordon"
		}
	case *appsv1.Deployment, *appsv1.StatefulSet:
		if before, now := state.Replicas(live), state.Replicas(next); before != now {
			return fmt.Sprintf("scale from %d to %d", before, now)
		}
	}
	return ""
}
