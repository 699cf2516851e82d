package serve

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/state"
)

// Clients may write wrong times into events, taints and conditions. A hub that used such a time as
// its own would start in the future, where every certificate has expired.
func TestTheHubsTimeIgnoresClientsTimes(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	far := metav1.NewTime(time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC))
	run := func(do func(*Hub)) {
		t.Helper()
		hub, err := New(t.Context(), Options{Config: cfg, Version: "test", Log: slog.New(slog.DiscardHandler),
			Listeners: Listeners{Dev: pipe.New()}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- hub.Run(ctx) }()
		<-hub.Up()
		do(hub)
		stop()
		if err := <-over; err != nil {
			t.Fatal(err)
		}
	}
	for what, o := range map[string]state.Object{
		"an event": &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e", UID: "u-e"}, LastTimestamp: far},
		"a taint": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", UID: "u-1"},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute, TimeAdded: &far}}}},
		"a condition": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-2", UID: "u-2"},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "CableIn", Status: corev1.ConditionTrue,
				LastTransitionTime: far}}}},
	} {
		run(func(h *Hub) {
			if _, err := h.Loop.Do(t.Context(), func(_ state.Snapshot, now time.Time) ([]state.Change, error) {
				return []state.Change{state.Put(o, "")}, nil
			}); err != nil {
				t.Fatal(err)
			}
		})
		run(func(h *Hub) {
			if now := h.Loop.Now(); time.Until(now) > time.Hour {
				t.Errorf("%s: the hub's time starts at %s, more than an hour ahead", what, now)
			}
			if _, err := h.Loop.Do(t.Context(), func(_ state.Snapshot, now time.Time) ([]state.Change, error) {
				return []state.Change{state.Remove(h.Loop.Snapshot().Get(state.KeyOf(o)), "")}, nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}
