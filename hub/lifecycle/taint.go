package lifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// byCondition maps the status of a condition to its NoSchedule taint.
var byCondition = []struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	key       string
}{
	{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady},
	{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable},
	{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure},
	{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure},
	{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable},
	{fleet.ConditionOutOfDisk, corev1.ConditionTrue, fleet.TaintOutOfDisk},
	{fleet.ConditionTemperatureOK, corev1.ConditionFalse, fleet.TaintTooHot},
}

// taintsFor returns the taints that a node should have: the NoSchedule taints of its conditions,
// the user's taints, and at most one NoExecute taint of this package. It only changes or removes
// that taint, because adding one depends on the site's rate. The outage keeps the replaced taint,
// because running deadlines stay; nil: the node is ready or has never reported.
func taintsFor(n *corev1.Node, now time.Time) ([]corev1.Taint, *state.Outage) {
	at := state.Ceil(now)
	want := map[string]bool{}
	for _, rule := range byCondition {
		if c := state.NodeCondition(n, rule.condition); c != nil && c.Status == rule.status {
			want[rule.key] = true
		}
	}
	ready := state.ReadyOf(n)
	// An empty Ready means that the node has never reported.
	if _, awaits := n.Annotations[state.AwaitsProfile]; awaits && ready == corev1.ConditionTrue || ready == "" {
		want[corev1.TaintNodeNotReady] = true
	}
	if n.Spec.Unschedulable {
		want[corev1.TaintNodeUnschedulable] = true
	}
	if c := state.NodeCondition(n, fleet.ConditionFlapping); c != nil && c.Status == corev1.ConditionTrue {
		want[fleet.TaintFlapping] = true
	}

	var out []corev1.Taint
	var leaving []corev1.Taint // our NoExecute taints; more than one if a user wrote them
	for _, t := range n.Spec.Taints {
		switch {
		case owned(t):
			if want[t.Key] {
				delete(want, t.Key)
				out = append(out, t)
			}
		case t.Effect == corev1.TaintEffectNoExecute &&
			(t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable):
			leaving = append(leaving, t)
		default:
			if t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded == nil {
				t.TimeAdded = &at // tolerations count from this moment
			}
			out = append(out, t)
		}
	}
	for _, rule := range byCondition {
		if want[rule.key] {
			delete(want, rule.key)
			out = append(out, corev1.Taint{Key: rule.key, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &at})
		}
	}
	if want[corev1.TaintNodeUnschedulable] {
		out = append(out, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
			TimeAdded: &at})
	}
	if want[fleet.TaintFlapping] {
		out = append(out, corev1.Taint{Key: fleet.TaintFlapping, Effect: corev1.TaintEffectPreferNoSchedule, TimeAdded: &at})
	}
	if ready == corev1.ConditionTrue || ready == "" {
		return out, nil
	}
	outage := state.OutageOf(n)
	if outage == nil {
		outage = &state.Outage{Since: metav1.NewMicroTime(state.FailedAt(n))}
		if outage.Since.IsZero() || outage.Since.After(now) {
			outage.Since.Time = now
		}
	}
	if len(leaving) == 0 {
		outage.TaintPeriods = nil // a user who removes the taint also ends its deadlines
		return out, outage
	}
	next := noExecute(ready, at)
	for _, t := range leaving {
		switch {
		case t.TimeAdded == nil:
		case t.Key == next.Key:
			next.TimeAdded = t.TimeAdded
		default:
			outage.TaintPeriods = append(outage.TaintPeriods, state.TaintPeriod{Key: t.Key, From: *t.TimeAdded, To: at})
		}
	}
	return append(out, next), outage
}

// owned tells whether the hub derives a taint from a condition or a cordon.
func owned(t corev1.Taint) bool {
	if t.Effect == corev1.TaintEffectPreferNoSchedule {
		return t.Key == fleet.TaintFlapping
	}
	if t.Effect != corev1.TaintEffectNoSchedule {
		return false
	}
	if t.Key == corev1.TaintNodeUnschedulable {
		return true
	}
	for _, rule := range byCondition {
		if t.Key == rule.key {
			return true
		}
	}
	return false
}

// noExecute returns the NoExecute taint of a node whose Ready is False or Unknown.
func noExecute(ready corev1.ConditionStatus, at metav1.Time) corev1.Taint {
	t := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute, TimeAdded: &at}
	if ready == corev1.ConditionUnknown {
		t.Key = corev1.TaintNodeUnreachable
	}
	return t
}

func sameTaints(a, b []corev1.Taint) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Taint) bool {
		return state.SameTaint(x, y) && x.TimeAdded.Equal(y.TimeAdded)
	})
}
