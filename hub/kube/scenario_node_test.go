package kube

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Each sign of life of a device confirms what it has reported: the heartbeat times show that, and
// the node keeps its revision.
func TestHeartbeatsOfANodeAreItsLeases(t *testing.T) {
	f := seeded()
	n := fakeNode("pi-3", "oslo")
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: fleet.ConditionFlapping,
		Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(fakeStart)})
	f.put(n)
	s := newServer(f)
	before := f.Snapshot().Revision
	beats := func() (device, hub time.Time, rev string) {
		var n corev1.Node
		send(t, s, "GET", "/api/v1/nodes/pi-3", "", "", 200, &n)
		var list corev1.NodeList
		send(t, s, "GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dpi-3", "", "", 200, &list)
		if !equality.Semantic.DeepEqual(list.Items[0].Status, n.Status) {
			t.Errorf("heartbeats in the list: %v, in the object: %v", list.Items[0].Status.Conditions, n.Status.Conditions)
		}
		return n.Status.Conditions[0].LastHeartbeatTime.UTC(), n.Status.Conditions[1].LastHeartbeatTime.UTC(),
			n.ResourceVersion
	}
	device, hub, rev := beats()
	if !device.Equal(f.renewed) || !hub.Equal(fakeStart) {
		t.Errorf("heartbeats of a device's and the hub's condition: %s and %s, want %s and %s", device, hub, f.renewed, fakeStart)
	}
	f.renewed = f.renewed.Add(time.Hour)
	if again, _, same := beats(); !again.Equal(f.renewed) || same != rev {
		t.Errorf("heartbeat after another lease: %s at revision %s, want %s at %s", again, same, f.renewed, rev)
	}
	f.renewed = time.Time{}
	if never, _, _ := beats(); !never.Equal(fakeStart) {
		t.Errorf("heartbeat without a lease since the hub's start: %s, want the stored %s", never, fakeStart)
	}
	if f.Snapshot().Revision != before {
		t.Error("reads must not change the fleet")
	}
}

func TestScenarioLifecycleOfANode(t *testing.T) {
	t.Run("S12.lifecycle.1 a Node made by hand, unschedulable and Ready, is read, labelled, listed by its label, "+
		"updated, deleted, and then not found", func(t *testing.T) {
		s := newServer(newFake())
		const all, one = "/api/v1/nodes", "/api/v1/nodes/e2e-node"
		made := &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "e2e-node"},
			Spec:   corev1.NodeSpec{Unschedulable: true},
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
			t.Errorf("the new node is %+v, want it unschedulable and Ready", n)
		}
		send(t, s, "PATCH", one, smp, `{"metadata":{"labels":{"e2e":"patched"}},"spec":{"unschedulable":true}}`, 200, &n)
		var list corev1.NodeList
		send(t, s, "GET", all+"?labelSelector=e2e%3Dpatched", "", "", 200, &list)
		if len(list.Items) != 1 || list.Items[0].Name != "e2e-node" {
			t.Errorf("the label selects %v, want e2e-node", list.Items)
		}
		n.Labels["e2e"], n.Spec.Unschedulable = "updated", false
		send(t, s, "PUT", one, "", body(n), 200, &n)
		if n.Labels["e2e"] != "updated" || n.Spec.Unschedulable {
			t.Errorf("the updated node is %+v, want the new label and schedulable", n)
		}
		if send(t, s, "GET", all+"?labelSelector=e2e%3Dpatched", "", "", 200, &list); len(list.Items) != 0 {
			t.Errorf("the old label selects %v, want nothing", list.Items)
		}
		send(t, s, "DELETE", one, "", "", 200, nil)
		send(t, s, "GET", one, "", "", 404, nil)
	})
}
