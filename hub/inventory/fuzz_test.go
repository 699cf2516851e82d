package inventory

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/hub/state"
)

// FuzzParse parses any text. An accepted list has valid node names, deletes or taints no ready
// node, and changes nothing in a second decision at the same moment.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"- name: pi-1\n  site: oslo\n- name: pi-2\n  state: shutdown\n- {name: pi-3, state: gone}\n", `[{"name":"pi-1","state":"present"}]`, "", "[]",
		"- &a {name: pi-1}\n- *a\n", "- name: pi-1\n---\n- name: pi-2\n", "- name: !!binary cGktMQ==\n",
		"- <<: {name: pi-2}\n  state: gone\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Parse(text)
		if err != nil {
			if l.Len() > 0 {
				t.Fatalf("a list of %d machines and the error %v", l.Len(), err)
			}
			return
		}
		if l.Len() == 0 {
			t.Fatal("a list without a machine is accepted")
		}
		for name, m := range l.machines {
			if m.Name != name || len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsValidLabelValue(m.Site)) > 0 {
				t.Fatalf("an invalid name or site is accepted: %+v", m)
			}
			if m.State != Present && m.State != Shutdown && m.State != Gone {
				t.Fatalf("an invalid state is accepted: %+v", m)
			}
		}
		var objects []state.Object
		for name, ready := range map[string]corev1.ConditionStatus{"pi-1": corev1.ConditionTrue,
			"pi-2": corev1.ConditionUnknown, "pi-3": corev1.ConditionFalse} {
			objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
				CreationTimestamp: metav1.NewTime(noon)},
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}})
		}
		s := state.Load(state.Empty("test", noon), objects, 1)
		now := noon.Add(time.Hour)
		s, _ = state.Apply(s, Decide(s, l, startup, now))
		n := s.Node("pi-1")
		if n == nil || len(n.Spec.Taints) > 0 {
			t.Fatalf("a node that is ready became %+v", n)
		}
		if again := Decide(s, l, startup, now); len(again) > 0 {
			t.Fatalf("a second decision wants %v", again)
		}
	})
}
