package kube

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func TestScenarioLifecycleOfANode(t *testing.T) {
	t.Run("S12.lifecycle.1 a Node made by hand, unschedulable and Ready, is read, labelled, listed by its label, updated, deleted, and then not found", func(t *testing.T) {
		s := newServer(newFake())
		const all, one = "/api/v1/nodes", "/api/v1/nodes/e2e-node"
		made := &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "e2e-node"}, Spec: corev1.NodeSpec{Unschedulable: true},
			Status: fakeNode("e2e-node", "").Status,
		}
		body := func(o any) string {
			b, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		var n corev1.Node
		send(t, s, "POST", all, "", body(made), 201, &n)
		send(t, s, "POST", all, "", body(made), 409, nil)
		send(t, s, "GET", one, "", "", 200, &n)
		if !n.Spec.Unschedulable || state.ReadyOf(&n) != corev1.ConditionTrue || n.UID == "" {
			t.Errorf("made %+v", n)
		}
		send(t, s, "PATCH", one, smp, `{"metadata":{"labels":{"e2e":"patched"}},"spec":{"unschedulable":true}}`, 200, &n)
		var list corev1.NodeList
		send(t, s, "GET", all+"?labelSelector=e2e%3Dpatched", "", "", 200, &list)
		if len(list.Items) != 1 || list.Items[0].Name != "e2e-node" {
			t.Errorf("by its label: %v", list.Items)
		}
		n.Labels["e2e"], n.Spec.Unschedulable = "updated", false
		send(t, s, "PUT", one, "", body(n), 200, &n)
		if n.Labels["e2e"] != "updated" || n.Spec.Unschedulable {
			t.Errorf("updated %+v", n)
		}
		if send(t, s, "GET", all+"?labelSelector=e2e%3Dpatched", "", "", 200, &list); len(list.Items) != 0 {
			t.Errorf("by its old label: %v", list.Items)
		}
		send(t, s, "DELETE", one, "", "", 200, nil)
		send(t, s, "GET", one, "", "", 404, nil)
	})
}
