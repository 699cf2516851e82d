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

// register creates the Node of a device that reports for the first time. It also returns the
// requested labels and taints that it refused. A device of the development listener has no join
// token, so it names its site itself.
func (d *Devices) register(s state.Snapshot, node string, rec *state.Record, st wire.Status,
	now time.Time) (n *corev1.Node, refused []string) {
	n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, CreationTimestamp: metav1.NewTime(now)}}
	n.Labels, n.Spec.Taints, refused = allowedRegistration(st.Registration, !rec.Enrolled.IsZero(),
		maxLabels-hubLabels-len(rec.Labels))
	for i, k := range slices.Sorted(maps.Keys(rec.Labels)) {
		if i >= maxLabels-hubLabels {
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

// A device, its token and its board profile may not use up the space for labels, taints and
// conditions of its Node, because the hub and users need some of it.
const (
	maxLabels     = bound.MaxLabels - 8     // limit for labels of device, token and profile together
	hubLabels     = 8                       // labels that refreshLabels sets
	maxTaints     = bound.MaxTaints - 24    // limit for taints of a registration and a profile together
	maxConditions = bound.MaxConditions - 8 // limit for conditions of a status
)

// allowedRegistration returns the labels and taints that a registering device may set, and the
// names of the refused ones. Kubernetes' own labels and taints are refused, because they decide
// where pods run (for example node-restriction.kubernetes.io) and whether they must leave. placed:
// the token names the site. most: limit of labels.
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
		if wire.CheckTaint(t) != nil || len(taints) >= maxTaints {
			refused = append(refused, fmt.Sprintf("taint %q", t.Key))
		} else {
			taints = addTaint(taints, t)
		}
	}
	return labels, taints, refused
}

// addTaint adds a taint unless one with its key and effect exists.
func addTaint(to []corev1.Taint, t corev1.Taint) []corev1.Taint {
	if slices.ContainsFunc(to, func(have corev1.Taint) bool { return have.MatchTaint(&t) }) {
		return to
	}
	return append(to, t)
}

func valid(key, value string) bool {
	return len(validation.IsQualifiedName(key)) == 0 && len(validation.IsValidLabelValue(value)) == 0
}

// registered returns the change that creates a device's Node.
func registered(n *corev1.Node, st wire.Status, refused []string) state.Change {
	c := state.Put(n, fmt.Sprintf("register node %s on site %s: %s", n.Name, state.SiteOf(n),
		about(st))).Event("RegisteredNode")
	if len(refused) > 0 {
		if len(refused) > 5 {
			refused = append(refused[:5:5], fmt.Sprintf("%d more", len(refused)-5))
		}
		c.Why += "; not allowed and left out: " + strings.Join(refused, ", ")
		c.Warn = true
	}
	return c
}
