package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func TestLabelsAndTaintsOfABoardProfile(t *testing.T) {
	set := func(text string) (g state.ProfileGrants) { // a=1 is a label, camera=yes:NoSchedule a taint
		for word := range strings.FieldsSeq(text) {
			k, v, _ := strings.Cut(word, "=")
			if v, effect, ok := strings.Cut(v, ":"); ok {
				g.Taints = append(g.Taints, corev1.Taint{Key: k, Value: v, Effect: corev1.TaintEffect(effect)})
			} else {
				if g.Labels == nil {
					g.Labels = map[string]string{}
				}
				g.Labels[k] = v
			}
		}
		return g
	}
	for _, c := range []struct{ rule, was, want, have, then string }{
		{"a new label is added", "", "a=1", "", "a=1"},
		{"a label that left the profile is removed", "a=1 b=2", "b=2", "a=1 b=2", "b=2"},
		{"a user's label stays", "", "", "x=1", "x=1"},
		{"a label that a user changed stays after it left the profile", "a=1", "", "a=mine", "a=mine"},
		{"a label gets its new value", "a=1", "a=2", "a=1", "a=2"},
		{"a label that a user changed stays", "a=1", "a=2", "a=mine", "a=mine"},
		{"a label that a user removed stays away", "a=1", "a=1", "", ""},
		{"a removed label with a new value stays away", "a=1", "a=2", "", ""},
		{"a new label overwrites a user's", "", "a=1", "a=mine", "a=1"},
		{"a new taint is added", "", "c=y:NoSchedule", "", "c=y:NoSchedule"},
		{"a taint that left the profile is removed, and no other", "c=y:NoSchedule", "", "c=y:NoSchedule c=y:NoExecute", "c=y:NoExecute"},
		{"a taint gets its new value", "c=y:NoSchedule", "c=z:NoSchedule", "c=y:NoSchedule", "c=z:NoSchedule"},
		{"a taint that a user changed stays", "c=y:NoSchedule", "", "c=mine:NoSchedule", "c=mine:NoSchedule"},
		{"a taint that a user removed stays away", "c=y:NoSchedule", "c=y:NoSchedule", "", ""},
		{"a taint that existed before belongs to the user", "", "c=y:NoSchedule", "c=mine:NoSchedule", "c=mine:NoSchedule"},
	} {
		was, want, have := set(c.was), set(c.want), set(c.have)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: have.Labels}, Spec: corev1.NodeSpec{Taints: have.Taints}}
		changed := applyProfile(n, &was, &want)
		var got []string
		for _, k := range slices.Sorted(maps.Keys(n.Labels)) {
			got = append(got, k+"="+n.Labels[k])
		}
		for _, taint := range n.Spec.Taints {
			got = append(got, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
		}
		if now := strings.Join(got, " "); now != c.then || changed != (c.have != c.then) {
			t.Errorf("%s: the node has %q, changed %v; want %q", c.rule, now, changed, c.then)
		}
		if applyProfile(n, &want, &want) {
			t.Errorf("%s: a second call changes the node again", c.rule)
		}
	}
}

// A profile leaves space in the Node, because otherwise users could not change the Node any more.
func TestABoardProfileDoesNotFillItsNodes(t *testing.T) {
	n, want := &corev1.Node{}, &state.ProfileGrants{Labels: map[string]string{}}
	for i := range 64 {
		want.Labels[fmt.Sprintf("l%02d", i)] = "v"
		want.Taints = append(want.Taints, corev1.Taint{Key: fmt.Sprint("t", i), Effect: corev1.TaintEffectNoSchedule})
	}
	applyProfile(n, &state.ProfileGrants{}, want)
	if len(n.Labels) != maxLabels || len(n.Spec.Taints) != maxTaints || n.Labels["l00"] != "v" || n.Labels["l63"] != "" {
		t.Errorf("the node has %d labels and %d taints", len(n.Labels), len(n.Spec.Taints))
	}
	if applyProfile(n, want, want) {
		t.Error("a second call changes the node again")
	}
}
