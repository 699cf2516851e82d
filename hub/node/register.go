package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/wire"
)

// register makes the Node of a device that reports for the first time, and names what
// it asked for and does not get. One that came in through the development listener has
// no join token to say its site, and says it itself.
func (d *Devices) register(s state.Snapshot, node string, rec *state.Record, st wire.Status,
	now time.Time) (n *corev1.Node, refused []string) {
	n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	n.Labels, n.Spec.Taints, refused = allowedRegistration(st.Registration, !rec.Enrolled.IsZero(), mostLabels-hubsLabels-len(rec.Labels))
	for i, k := range slices.Sorted(maps.Keys(rec.Labels)) {
		if i >= mostLabels-hubsLabels {
			refused = append(refused, fmt.Sprintf("label %q of its token", k))
			continue
		}
		n.Labels[k] = rec.Labels[k]
	}
	n.Spec.Unschedulable = st.Registration.Unschedulable
	d.report(n, st, nil, now)
	d.refreshLabels(s, n, rec, st)
	awaitProfile(n, st)
	rec.Granted = grantsOf(profileOf(s, n))
	applyProfile(n, &state.ProfileGrants{}, rec.Granted)
	return n, refused
}

// What a device says of itself, its token and its board profile may not fill its Node: where there
// is no room for what the hub and people put there, nobody could change it any more.
const (
	mostLabels     = bound.MaxLabels - 8     // with which all of these end
	hubsLabels     = 8                       // that refreshLabels sets
	mostTaints     = bound.MaxTaints - 24    // with which those of a registration and a profile end
	mostConditions = bound.MaxConditions - 8 // of a status
)

// allowedRegistration returns which of its labels and taints a device may give itself when it
// registers, and names the others. Those of Kubernetes it may not: they decide where
// pods may run (node-restriction.kubernetes.io among them), and whether they must
// leave. placed: its site is known otherwise. most: so many labels.
func allowedRegistration(r wire.Registration, placed bool,
	most int) (labels map[string]string, taints []corev1.Taint, refused []string) {
	labels = map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		v := r.Labels[k]
		switch {
		case slices.Contains(wire.ReportedLabels, k):
		case k == corev1.LabelTopologyZone && !placed && v != "" && valid(k, v):
			labels[k] = v
		case wire.CheckLabel(k, v) != nil, len(labels) >= most:
			refused = append(refused, fmt.Sprintf("label %q", k))
		default:
			labels[k] = v
		}
	}
	for _, t := range r.Taints {
		t.TimeAdded = nil
		if wire.CheckTaint(t) != nil || len(taints) >= mostTaints {
			refused = append(refused, fmt.Sprintf("taint %q", t.Key))
		} else {
			taints = addTaint(taints, t)
		}
	}
	return labels, taints, refused
}

// addTaint adds a taint unless one of its key and effect is there.
func addTaint(to []corev1.Taint, t corev1.Taint) []corev1.Taint {
	if slices.ContainsFunc(to, func(have corev1.Taint) bool { return have.MatchTaint(&t) }) {
		return to
	}
	return append(to, t)
}

func valid(key, value string) bool {
	return len(validation.IsQualifiedName(key)) == 0 && len(validation.IsValidLabelValue(value)) == 0
}

// registered is the change by which a device's Node comes to be.
func registered(n *corev1.Node, st wire.Status, refused []string) state.Change {
	c := state.Put(n, fmt.Sprintf("register node %s on site %s: %s", n.Name, state.SiteOf(n),
		about(st))).Event("RegisteredNode")
	if len(refused) > 0 {
		if len(refused) > 5 {
			refused = append(refused[:5:5], fmt.Sprintf("%d more", len(refused)-5))
		}
		c.Why += "; not its own to give, and left out: " + strings.Join(refused, ", ")
		c.Warn = true
	}
	return c
}
