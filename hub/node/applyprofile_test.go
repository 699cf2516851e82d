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

func TestWhatABoardProfileGivesAndTakes(t *testing.T) {
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
		{"a new label is given", "", "a=1", "", "a=1"},
		{"one that left the profile is taken", "a=1 b=2", "b=2", "a=1 b=2", "b=2"},
		{"one that somebody gave stays", "", "", "x=1", "x=1"},
		{"one that left and was changed since stays", "a=1", "", "a=mine", "a=mine"},
		{"one with a new value gets it", "a=1", "a=2", "a=1", "a=2"},
		{"one that somebody changed stays", "a=1", "a=2", "a=mine", "a=mine"},
		{"one that somebody removed stays away", "a=1", "a=1", "", ""},
		{"also with a new value", "a=1", "a=2", "", ""},
		{"a new label goes over what was there", "", "a=1", "a=mine", "a=1"},
		{"a new taint is given", "", "c=y:NoSchedule", "", "c=y:NoSchedule"},
		{"a taint that left is taken, and no other", "c=y:NoSchedule", "", "c=y:NoSchedule c=y:NoExecute", "c=y:NoExecute"},
		{"a taint with a new value gets it", "c=y:NoSchedule", "c=z:NoSchedule", "c=y:NoSchedule", "c=z:NoSchedule"},
		{"a taint that somebody changed stays", "c=y:NoSchedule", "", "c=mine:NoSchedule", "c=mine:NoSchedule"},
		{"a taint that somebody removed stays away", "c=y:NoSchedule", "c=y:NoSchedule", "", ""},
		{"a taint that was there is somebody's", "", "c=y:NoSchedule", "c=mine:NoSchedule", "c=mine:NoSchedule"},
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
			t.Errorf("%s: a second time changes it again", c.rule)
		}
	}
}

// What a profile gives leaves room in the Node: nobody could change it any more.
func TestABoardProfileDoesNotFillItsNodes(t *testing.T) {
	n, want := &corev1.Node{}, &state.ProfileGrants{Labels: map[string]string{}}
	for i := range 64 {
		want.Labels[fmt.Sprintf("l%02d", i)] = "v"
		want.Taints = append(want.Taints, corev1.Taint{Key: fmt.Sprint("t", i), Effect: corev1.TaintEffectNoSchedule})
	}
	applyProfile(n, &state.ProfileGrants{}, want)
	if len(n.Labels) != mostLabels || len(n.Spec.Taints) != mostTaints || n.Labels["l00"] != "v" || n.Labels["l63"] != "" {
		t.Errorf("it has %d labels and %d taints", len(n.Labels), len(n.Spec.Taints))
	}
	if applyProfile(n, want, want) {
		t.Error("a second time changes it again")
	}
}
